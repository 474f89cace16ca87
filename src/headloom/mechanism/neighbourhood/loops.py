"""Self-loops of an edge_index, and the features that they get."""

from __future__ import annotations

import torch
from torch import Tensor

from headloom.errors import InputError
from headloom.mechanism.shapes import describe, in_words

__all__ = ["Fill", "with_self_loops"]

#: Where self-loops have their features from: a number or tensor for all, or how the features of the
#: edges that point to the node are combined; None: 1.
Fill = float | Tensor | str | None

_COMBINED = {
    "add": "sum",
    "sum": "sum",
    "mean": "mean",
    "min": "amin",
    "max": "amax",
    "mul": "prod",
}


def with_self_loops(
    edge_index: Tensor, features: Tensor | None, fill: Fill, nodes: int
) -> tuple[Tensor, Tensor | None]:
    """Exactly one self-loop for each of the first `nodes` nodes, after all other edges.

    Args:
        edge_index: (2, edges), sources over targets; its own self-loops are left out.
        features: (edges, features) or (edges,) or None.
        fill: what the self-loops' features are: see `Fill`.
        nodes: how many get one.

    Raises: InputError: fill is none of these.
    Source: the graphs of Velickovic et al. 2018, section 2.1, whose nodes look at themselves.

    >>> with_self_loops(torch.tensor([[0, 1, 1], [1, 1, 0]]), None, "mean", 2)[0]
    tensor([[0, 1, 0, 1],
            [1, 0, 0, 1]])
    """
    others = edge_index[0] != edge_index[1]
    edge_index = edge_index[:, others]
    loops = torch.arange(nodes, dtype=edge_index.dtype, device=edge_index.device).expand(2, -1)
    joined = torch.cat((edge_index, loops), 1)
    if features is None:
        return joined, None
    features = features[others]
    return joined, torch.cat((features, _filled(edge_index[1], features, fill, nodes)))


def _filled(targets: Tensor, features: Tensor, fill: Fill, nodes: int) -> Tensor:
    """The features of self-loops, (nodes, ...)."""
    shape = (nodes, *features.shape[1:])
    if isinstance(fill, str):
        if fill not in _COMBINED:
            raise InputError(
                f"fill_value: it is {in_words(fill)}; expected a number, a tensor or one of "
                f"{', '.join(_COMBINED)}."
            )
        # The empty product is 1, everything else that is empty 0.
        filled = features.new_full(shape, 1.0 if fill == "mul" else 0.0)
        inside = targets < nodes
        targets, features = targets[inside].long(), features[inside]
        places = targets.reshape(-1, *(1,) * (features.ndim - 1)).expand_as(features)
        return filled.scatter_reduce(0, places, features, _COMBINED[fill], include_self=False)
    if isinstance(fill, Tensor):
        try:
            return fill.to(features).expand(shape)
        except RuntimeError:
            raise InputError(
                f"fill_value: it is {describe(fill)}; an edge has features "
                f"{tuple(features.shape[1:])}. Give a tensor of that shape, or a number."
            ) from None
    try:
        return features.new_full(shape, 1.0 if fill is None else float(fill))
    except (TypeError, ValueError, OverflowError):
        raise InputError(
            f"fill_value: it is {type(fill).__name__}; expected a number, a tensor or one of "
            f"{', '.join(_COMBINED)}."
        ) from None
