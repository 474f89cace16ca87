"""A table of the graph measures of a trace: a row for each head, or for each layer."""

from __future__ import annotations

from typing import TYPE_CHECKING

from torch import Tensor

from headloom.analysis.arguments import check_trace, real_number
from headloom.analysis.graphs.pagerank import pagerank
from headloom.analysis.graphs.spectrum import energy_rank
from headloom.analysis.graphs.strength import components, heavy_hitters, received, reciprocity
from headloom.analysis.weights import Source, mean_left_out, name_of, weights_of
from headloom.errors import optional_package
from headloom.formats.tokens import shown
from headloom.formats.trace import TraceData, TraceLayer
from headloom.mechanism.shapes import chosen

if TYPE_CHECKING:
    import pandas

__all__ = ["graph_measures"]

#: Positions up to which the rank is found where nothing else is asked for: 0.05 s a head there.
EXACT_RANK = 512


def graph_measures(
    trace: TraceData,
    *,
    by: str = "head",
    exact: bool | None = None,
    share: float = 0.9,
    threshold: float = 0.1,
    exact_rank: int = EXACT_RANK,
) -> pandas.DataFrame:
    """The graph measures of a trace.

    Args:
        trace: of any model.
        by: "head": a row for each head; "layer": a row for each layer.
        exact: see `headloom.analysis.weights.weights_of`.
        share: of the mass, for heavy hitters.
        threshold: the weight of an edge that connects.
        exact_rank: positions up to which the rank is computed, at most 2,048: all eigenvalues of a
            matrix of this size, 3 s a head of 2,048.

    Returns: a DataFrame with the columns

        layer, kind, head                 by layer without head
        entropy                           mean over queries, nats
        received_key, _token, _share      who receives most, and its share of all mass
        hitters                           how few keys hold the share; by layer of the mean matrix
        rank                              directions in use, by energy; by layer the mean; NaN of
                                          more positions than `exact_rank`
        reciprocity                       of self-attention; by layer the mean over heads
        pagerank_key, _token, pagerank    the highest; by layer of the mean
        parts, largest_part               connected parts, and the size of the largest
        rest                              mean mass of a row on keys that were not kept
        source                            of which weights: "exact", "rounded" (of queries and keys
                                          stored in half precision) or "kept"

    The entropy is the model's own in every case, and what keys receive is of all weights where a
    trace was made with ``received=True``.

    Raises: InputError: pandas is not installed, or a layer has no exact weights that were asked
    for.
    """
    with optional_package("measures"):
        import pandas
    check_trace("measures", trace)
    chosen("measures", "by", by, ("head", "layer"))
    share = real_number("measures", "share", share, above=True)
    threshold = real_number("measures", "threshold", threshold, above=True)
    rows: list[dict[str, object]] = []
    for number, layer in enumerate(trace.layers):
        together = by == "layer"
        labels: list[dict[str, object]] = [
            {"layer": number, "kind": layer.kind} | ({} if together else {"head": head})
            for head in range(1 if together else layer.heads)
        ]
        if all(layer.shape):  # of no token there is nothing to measure
            source = weights_of(layer, exact)
            columns = _measures(layer, source, together, share, threshold)
            if max(layer.shape[1:]) <= exact_rank:
                rank = energy_rank(source)
                columns["rank"] = [float(rank.mean())] if together else rank.tolist()
            columns["source"] = [name_of(layer, source)] * len(labels)
            for place, row in enumerate(labels):
                row |= {name: column[place] for name, column in columns.items()}
        rows += labels
    names = (
        "layer", "kind", "head", "entropy", "received_key", "received_token", "received_share",
        "hitters", "rank", "reciprocity", "pagerank_key", "pagerank_token", "pagerank", "parts",
        "largest_part", "rest", "source",
    )  # fmt: skip
    there = {name for row in rows for name in row} | {"rank"}
    return pandas.DataFrame(rows, columns=[name for name in names if name in there])


def _measures(
    layer: TraceLayer, source: Source, together: bool, share: float, threshold: float
) -> dict[str, list[object]]:
    """The columns of the rows of a layer, but for the rank."""
    got = received(source).double()
    if together:
        got = got.sum(0, keepdim=True)
    total = got.sum(-1).clamp(min=1e-300)
    columns: dict[str, list[object]] = {
        "entropy": _of_rows(layer.graph.entropy.double().mean(-1), together),
        **_highest("received", layer, got),
        "received_share": (got.amax(-1) / total).tolist(),
        "hitters": heavy_hitters(source, share, together=together).count.tolist(),
        "rest": [0.0] * len(got),
    }
    if source is layer.graph:
        sinks = None if layer.terms is None else layer.terms.sinks
        columns["rest"] = _of_rows(mean_left_out(layer.graph, sinks), together)
    if layer.one_sequence:
        ranks, parts = pagerank(source), components(source, threshold, together=together)
        highest = ranks.mean[None] if together else ranks.heads
        columns |= {
            "reciprocity": _of_rows(reciprocity(source), together),
            **_highest("pagerank", layer, highest),
            "pagerank": highest.amax(-1).tolist(),
            "parts": parts.count.tolist(),
            "largest_part": parts.largest.tolist(),
        }
    return columns


def _of_rows(of_heads: Tensor, together: bool) -> list[object]:
    return [float(of_heads.mean())] if together else of_heads.tolist()


def _highest(measure: str, layer: TraceLayer, values: Tensor) -> dict[str, list[object]]:
    keys, tokens = values.argmax(-1).tolist(), shown(layer.key_tokens)
    return {f"{measure}_key": keys, f"{measure}_token": [tokens[key] for key in keys]}
