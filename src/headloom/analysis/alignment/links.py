"""From the weights between words to links: which words belong together."""

from __future__ import annotations

from collections.abc import Callable, Mapping

import numpy as np
import torch
from torch import Tensor

from headloom.errors import InputError, ShapeError
from headloom.formats.pharaoh import Link
from headloom.mechanism.shapes import describe, in_words, real_tensor

__all__ = ["METHODS", "Method", "argmax", "dtw", "links_by", "mutual", "pairs_of"]

#: From weights (heads, target words, source words) to links, bool, of the same shape.
Method = Callable[[Tensor], Tensor]


def argmax(weights: Tensor) -> Tensor:
    """Each target word with the source word that it looks at most.

        A = {(s, t): s = argmax over s' of W(t, s')}

    A row without weight has no link; of equal weights the first is taken.

    Source: Garg et al. 2019, "Jointly Learning to Align and Translate with Transformer Models".
    """
    return _best(_checked(weights), 2)


def mutual(weights: Tensor) -> Tensor:
    """Two words, of which each is the other's best.

        A = {(s, t): s = argmax over s' of W(t, s'), t = argmax over t' of W(t', s)}

    Source: Jalili Sabet et al. 2020, "SimAlign" (Argmax).
    """
    weights = _checked(weights)
    return _best(weights, 2) & _best(weights, 1)


def _best(weights: Tensor, dimension: int) -> Tensor:
    """The largest of each row or column, where it is more than 0."""
    if not weights.numel():
        return torch.zeros_like(weights, dtype=torch.bool)
    largest, places = weights.max(dimension, keepdim=True)
    chosen = torch.zeros_like(weights, dtype=torch.bool).scatter(dimension, places, True)
    return chosen & (largest > 0)


def dtw(weights: Tensor) -> Tensor:
    """The cheapest path from the first two words to the last two that never goes back.

        D(t, s) = 1 - W(t, s) + min(D(t-1, s-1), D(t-1, s), D(t, s-1))

    Every cell of the path is a link. For languages of one order, and for sounds; of equal paths
    that over the diagonal is taken, then that which goes on in the target.

    Source: Sakoe and Chiba 1978, dynamic time warping.
    """
    cost = 1 - _checked(weights).detach().double().numpy()
    heads, rows, columns = cost.shape
    links = np.zeros(cost.shape, bool)
    if not links.size:
        return torch.from_numpy(links)
    total = np.full((heads, rows + 1, columns + 1), np.inf)
    total[:, 0, 0] = 0
    # 0: over the diagonal, 1: from the row before, 2: from the column before.
    way = np.zeros(cost.shape, np.int8)
    for row in range(rows):
        for column in range(columns):
            before = np.stack(
                (total[:, row, column], total[:, row, column + 1], total[:, row + 1, column])
            )
            way[:, row, column] = before.argmin(0)
            total[:, row + 1, column + 1] = cost[:, row, column] + before.min(0)
    for head in range(heads):
        row, column = rows - 1, columns - 1
        while row >= 0 and column >= 0:
            links[head, row, column] = True
            step = way[head, row, column]
            row, column = row - (step != 2), column - (step != 1)
    return torch.from_numpy(links)


#: By the names that `headloom align --method` takes.
METHODS: Mapping[str, Method] = {"mutual": mutual, "argmax": argmax, "dtw": dtw}


def links_by(method: str) -> Method:
    """A method by its name. Raises: InputError: there is none."""
    if not isinstance(method, str) or method not in METHODS:
        raise InputError(f"align: no method {in_words(method)}; there are {', '.join(METHODS)}.")
    return METHODS[method]


def pairs_of(links: Tensor) -> list[Link]:
    """The links of one head, bool (target words, source words), as pairs in the source's order.

    >>> pairs_of(torch.tensor([[False, True], [True, False]]))
    [(0, 1), (1, 0)]
    """
    return [(source, target) for source, target in links.T.nonzero().tolist()]


def _checked(weights: Tensor) -> Tensor:
    """Weights between words, (heads, target words, source words)."""
    real_tensor("align", "the tensor of weights", weights)
    if weights.ndim != 3:
        raise ShapeError(
            f"align: weights {describe(weights)}; expected (heads, target words, source words)."
        )
    return weights
