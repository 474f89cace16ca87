"""What the keys of a traced layer receive, where the layer's own call did not say it.

A call says what keys receive from all its rows. Of a graph that was cut off its padding, or joined
from several passes, only some of these count, or more; and a layer that computes its own attention
says nothing. It is then summed from the weights of the graph where every edge was kept, else from
queries and keys in one more pass.
"""

from __future__ import annotations

import torch
from torch import Tensor

from headloom.formats.terms import Terms
from headloom.mechanism.function import attend
from headloom.mechanism.graph import AttentionGraph, Top
from headloom.mechanism.matrix.calls import matrix_call
from headloom.mechanism.parts import changed
from headloom.mechanism.received import LastQueries, Received, of_edges

__all__ = ["with_received"]


def with_received(
    graph: AttentionGraph,
    last: int | None,
    queries_keys: tuple[Tensor, Tensor] | None,
    terms: Terms | None,
    scale: float,
    softcap: float | None,
) -> AttentionGraph:
    """The graph of a layer with what its keys receive, if that is asked and can be known.

    Args:
        graph: without a batch.
        last: of how many last queries by themselves; 0: none; None: it is not asked.
        queries_keys, terms: what its weights are made of, cut as the graph; None: not known.
        scale, softcap: of the scores.
    """
    if last is None:
        return graph
    if graph.received is not None and bool(last) == (graph.received_last is not None):
        return graph
    if bool((graph.count <= (graph.keys >= 0).sum(-1)).all()):
        return changed(graph, **_of_kept(graph, last)._asdict())
    if queries_keys is None or terms is None or terms.missing is not None:
        return graph
    call = matrix_call(
        *queries_keys,
        mask=terms.mask,
        bias=terms.bias,
        relative=terms.relative,
        scale=scale,
        softcap=softcap,
        sinks=terms.sinks,
    )
    values = call.no_values(call.shape[2]).expand(call.keys.shape[0], -1, -1)
    _, found = attend(
        call.queries, call.keys, values, mask=call.mask, bias=call.bias, relative=call.relative,
        scale=call.scale, softcap=call.softcap, sinks=terms.sinks, keep=Top(0),
        received=LastQueries(last) if last else True,
    )  # fmt: skip
    return changed(graph, **{name: getattr(found, name) for name in Received._fields})


def _of_kept(graph: AttentionGraph, last: int) -> Received:
    """From the kept edges, which are all."""
    heads, queries, keys = graph.shape
    of_heads = []
    for head in range(heads):
        rows, places = (graph.keys[head] >= 0).nonzero(as_tuple=True)
        weights = graph.weights[head, rows, places].float()[:, None]
        columns = graph.keys[head, rows, places]
        of_heads.append(of_edges(weights, rows, columns, (queries, keys), last))
    joined = [
        None if parts[0] is None else torch.cat([part for part in parts if part is not None])
        for parts in zip(*of_heads, strict=True)
    ]
    return Received(*joined)
