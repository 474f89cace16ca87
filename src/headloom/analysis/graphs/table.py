"""A table of the graph measures of a trace: a row for each head, or for each layer."""

from __future__ import annotations

import math
from typing import TYPE_CHECKING

from torch import Tensor

from headloom.analysis.arguments import check_trace, real_number
from headloom.analysis.graphs.components import components
from headloom.analysis.graphs.pagerank import pagerank
from headloom.analysis.graphs.reciprocity import reciprocity
from headloom.analysis.graphs.spectrum import EXACT_RANK, energy_rank
from headloom.analysis.graphs.strength import heavy_hitters, received
from headloom.analysis.heads.pattern_mass import CHEAP_CELLS, only_edges_exact, rounded_to
from headloom.analysis.interval import Source, check_numbers, keeps_all, left_out
from headloom.errors import InputError, optional_package
from headloom.formats.files import JsonObject
from headloom.formats.tokens import shown
from headloom.formats.trace import TraceData, TraceLayer
from headloom.mechanism.graph import AttentionGraph
from headloom.mechanism.shapes import check_flag, in_words, whole_number

if TYPE_CHECKING:
    import pandas

__all__ = ["graph_measures", "layer_source"]


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
        exact: True: from all weights; False: from the kept edges; None: from all of them where
            that is cheap.
        share: of the mass, for heavy hitters.
        threshold: the weight of an edge that connects.
        exact_rank: positions up to which the rank is computed from all eigenvalues; beyond, it lies
            between two bounds, from all weights too. See `headloom.analysis.graphs.spectrum`.

    Returns: a DataFrame with the columns

        layer, kind, head                 by layer without head
        entropy                           mean over queries, nats
        received_key, _token, _share, _share_high    who receives most, and its share of all mass
        hitters, hitters_high             how few keys hold the share; by layer of the mean matrix
        reciprocity, reciprocity_high     of self-attention; by layer the mean over heads
        pagerank_key, _token, pagerank, pagerank_bound    the highest; by layer of the mean
        rank_low, rank_high               directions in use, by energy, at least and at most; by
                                          layer the means of both
        parts, largest_part, parts_certain    connected parts, and the size of the largest; not
                                          certain: edges that were left out may join some of them
        source                            of which weights: "exact", "rounded" (of queries and keys
                                          stored in half precision) or "kept"

    Where two columns stand side by side the true value lies between them; from all weights they
    are equal, but for the rank of more positions than `exact_rank`; received and hitters also where
    a trace was made with ``received=True``. The entropy is the model's own in every case.

    Raises: InputError: pandas is not installed, or a layer has no exact weights that were asked
    for.
    """
    with optional_package("measures"):
        import pandas
    check_trace("measures", trace)
    if not isinstance(by, str) or by not in ("head", "layer"):
        raise InputError(f'measures: by={in_words(by)}; expected "head" or "layer".')
    check_flag("measures", "exact", exact, optional=True)
    share = real_number("measures", "share", share, above=True)
    threshold = real_number("measures", "threshold", threshold, above=True)
    exact_rank = whole_number("measures", "exact_rank", exact_rank, 0)
    rows: list[JsonObject] = []
    for number, layer in enumerate(trace.layers):
        source, name = layer_source("measures", layer, exact)
        measures = _by_head if by == "head" else _by_layer
        labels = {"layer": number, "kind": layer.kind}
        if not all(layer.shape):
            # Of no token there is nothing to measure.
            rows += [labels | ({"head": h} if by == "head" else {}) for h in range(layer.heads)][
                : None if by == "head" else 1
            ]
            continue
        rows += [
            labels | row | {"source": name}
            for row in measures(layer, source, share, threshold, exact_rank)
        ]
    return pandas.DataFrame(rows)


def _by_head(
    layer: TraceLayer, source: Source, share: float, threshold: float, exact_rank: int
) -> list[JsonObject]:
    got, hitters = received(source), heavy_hitters(source, share)
    rank = energy_rank(source, exact_up_to=exact_rank)
    entropy = layer.graph.entropy.double().mean(-1)
    rows: list[JsonObject] = []
    for head in range(layer.heads):
        best = int(got.middle[head].argmax())
        rows.append(
            {
                "head": head,
                "entropy": float(entropy[head]),
                **_named("received", layer, best),
                **_share(source, got.lower[head], got.upper[head], head, best),
                "hitters": int(hitters.count.lower[head]),
                "hitters_high": int(hitters.count.upper[head]),
                "rank_low": float(rank.lower[head]),
                "rank_high": float(rank.upper[head]),
            }
        )
    if layer.one_sequence:
        mutual, ranks = reciprocity(source), pagerank(source, edges=layer.graph)
        parts = components(source, threshold)
        for head, row in enumerate(rows):
            best = int(ranks.heads[head].argmax())
            row |= {
                "reciprocity": float(mutual.lower[head]),
                "reciprocity_high": float(mutual.upper[head]),
                **_named("pagerank", layer, best),
                "pagerank": float(ranks.heads[head, best]),
                "pagerank_bound": float(ranks.bound[head, best]),
                "parts": int(parts.count[head]),
                "largest_part": int(parts.largest[head]),
                "parts_certain": bool(parts.complete[head]),
            }
    return rows


def _by_layer(
    layer: TraceLayer, source: Source, share: float, threshold: float, exact_rank: int
) -> list[JsonObject]:
    got = received(source)
    hitters = heavy_hitters(source, share, together=True)
    rank = energy_rank(source, exact_up_to=exact_rank)
    best = int(got.middle.mean(0).argmax())
    row: JsonObject = {
        "entropy": float(layer.graph.entropy.double().mean()),
        **_named("received", layer, best),
        **_share(source, got.lower.sum(0), got.upper.sum(0), None, best),
        "hitters": int(hitters.count.lower[0]),
        "hitters_high": int(hitters.count.upper[0]),
        "rank_low": float(rank.lower.mean()),
        "rank_high": float(rank.upper.mean()),
    }
    if layer.one_sequence:
        mutual, ranks = reciprocity(source), pagerank(source, edges=layer.graph)
        parts = components(source, threshold, together=True)
        top = int(ranks.mean.argmax())
        row |= {
            "reciprocity": float(mutual.lower.mean()),
            "reciprocity_high": float(mutual.upper.mean()),
            **_named("pagerank", layer, top),
            "pagerank": float(ranks.mean[top]),
            "pagerank_bound": float(ranks.mean_bound[top]),
            "parts": int(parts.count[0]),
            "largest_part": int(parts.largest[0]),
            "parts_certain": bool(parts.complete[0]),
        }
    return [row]


def _share(
    source: Source, lower: Tensor, upper: Tensor, head: int | None, key: int
) -> dict[str, float]:
    """Between which bounds the share lies that a key has of all mass on keys.

    A row that sees no key has none; a sink's is on no key, and part of what was left out.
    head: None: of all together.
    """
    kept = float(lower.double().sum())
    missing = 0.0
    if isinstance(source, AttentionGraph) and source.received is None:
        mass = left_out(source)[0].double()
        missing = float(mass.sum() if head is None else mass[head].sum())
    least, most = float(lower[key]), min(float(upper[key]), float(lower[key]) + missing)
    others = kept - least
    return {
        "received_share": least / (kept + missing) if kept + missing > 0 else 0.0,
        "received_share_high": most / (others + most) if others + most > 0 else 0.0,
    }


def _named(measure: str, layer: TraceLayer, key: int) -> JsonObject:
    return {f"{measure}_key": key, f"{measure}_token": shown(layer.key_tokens)[key]}


def layer_source(operation: str, layer: TraceLayer, exact: bool | None) -> tuple[Source, str]:
    """A layer's weights, and what they are in a word.

    Args:
        operation: whose errors begin with it.
        layer: of a trace.
        exact: True: all weights; False: the kept edges; None: all of them where that is cheap.

    Returns: ``layer.matrix`` with "exact"; ``layer.normalised_matrix`` with "rounded" where its
    queries and keys are stored in half precision; or ``layer.graph`` with "kept", or with
    "exact" where these are all edges.
    Raises: InputError: exact weights that the layer does not have; weights that are not numbers.
    """
    if exact is not False and only_edges_exact(layer):
        exact = False
    if exact is None:
        exact = math.prod(layer.shape) <= CHEAP_CELLS and layer.matrix is not None
    if not exact or (layer.matrix is None and keeps_all(layer.graph)):
        check_numbers(layer.graph, f"{operation}: layer {layer.name}")
        return layer.graph, "exact" if keeps_all(layer.graph) else "kept"
    matrix = layer.normalised_matrix
    if matrix is None:
        raise InputError(
            f"{operation}: layer {layer.name} has no exact weights: {layer.no_matrix}. Take the "
            "kept edges, exact=False."
        )
    check_numbers(matrix, f"{operation}: layer {layer.name}")
    return matrix, "exact" if rounded_to(layer) is None else "rounded"
