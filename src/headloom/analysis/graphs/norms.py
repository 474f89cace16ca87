"""Value-weighted norms: how much of each key really reaches a query's output.

A key that is looked at strongly gives little where its value is small, as first tokens and
separators often do: raw weights alone mislead.

    output_i = sum_j w_ij v_j,    what key j gives is as long as w_ij |v_j|

Source: Kobayashi et al. 2020, equation 3 (there with the values projected, f(x_j) = v_j W_O). A
trace keeps |v_j|; give `value_norms` of projected values to have theirs.
"""

from __future__ import annotations

from torch import Tensor

from headloom.analysis.arguments import check_layer, check_source
from headloom.analysis.interval import Interval, Source, check_numbers, left_out
from headloom.errors import InputError, ShapeError
from headloom.formats.trace import TraceLayer
from headloom.mechanism.graph import AttentionGraph
from headloom.mechanism.shapes import check_type, real_tensor

__all__ = ["given_by_edges", "given_by_rows", "norms_of_heads"]


def norms_of_heads(layer: TraceLayer) -> Tensor:
    """|v_j| of each head, (heads, keys): heads that share values have the same.

    Raises: InputError: the trace does not know them.
    """
    check_layer("norms_of_heads", layer)
    if layer.value_norms is None:
        raise InputError(
            f"layer {layer.name}: the norms of its values were not kept. Trace the model again."
        )
    return layer.value_norms.repeat_interleave(layer.heads // layer.value_norms.shape[0], 0)


def given_by_edges(graph: AttentionGraph, value_norms: Tensor) -> Tensor:
    """What each kept edge gives: ``w_ij |v_j|``, in the places of ``graph.weights``.

    Args: graph: without a batch; value_norms: (heads, keys).
    Returns: (heads, queries, k).
    Raises: ShapeError: there is not a norm for each head and key.

    >>> import torch, headloom
    >>> looks = torch.zeros(1, 1, 1)                              # half on each of two keys
    >>> _, graph = headloom.attend(looks, torch.zeros(1, 2, 1), torch.zeros(1, 2, 1))
    >>> given_by_edges(graph, torch.tensor([[0.0, 4.0]]))[0, 0, :2]
    tensor([0., 2.])
    """
    check_type("norms", "the graph", graph, AttentionGraph, "kept edges, layer.graph")
    check_source("norms", graph)
    _check(graph.shape, value_norms)
    heads, queries, places = graph.keys.shape
    there = graph.keys.clamp(min=0).long().reshape(heads, -1)
    return graph.weights * value_norms.gather(1, there).reshape(heads, queries, places)


def given_by_rows(source: Source, value_norms: Tensor) -> Interval:
    """What all keys give a query: ``sum_j w_ij |v_j|``, which the share of an edge is taken of.

    An upper bound of the length of the query's output. From kept edges, what was left out gives
    from nothing to its mass times the largest norm.

    Args: source: all weights, or the kept edges; value_norms: (heads, keys).
    Returns: (heads, queries).
    """
    check_source("norms", source)
    check_numbers(source, "norms")
    _check(source.shape, value_norms)
    if not isinstance(source, AttentionGraph):
        exact = (source @ value_norms[..., None])[..., 0]
        return Interval(exact, exact)
    lower = given_by_edges(source, value_norms).sum(-1)
    most = value_norms.max(-1, keepdim=True).values if value_norms.shape[-1] else 0.0
    return Interval(lower, lower + left_out(source)[0] * most)


def _check(shape: tuple[int, ...], value_norms: Tensor) -> None:
    real_tensor("norms", "value_norms", value_norms)
    if value_norms.shape != (shape[0], shape[2]):
        raise ShapeError(
            f"norms: the norms of values are {tuple(value_norms.shape)}; expected a number for "
            f"each head and key, {(shape[0], shape[2])}. Repeat those that heads share."
        )
