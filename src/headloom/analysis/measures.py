"""Measures of a trace as DataFrames, with a title and notes in their `attrs`.

`title` is a line above the rows, or ""; `notes` are sentences below them. For `exact`, see
`headloom.analysis.weights.weights_of`.
"""

from __future__ import annotations

import math
import warnings
from collections.abc import Sequence

import numpy as np
import pandas
from numpy.typing import NDArray
from torch import Tensor

from headloom.analysis.arguments import OneTrace, trace_of
from headloom.analysis.graphs import rollout as rollouts
from headloom.analysis.graphs.flow import attention_flow, flow_weights
from headloom.analysis.graphs.spectrum import energy_rank, pagerank
from headloom.analysis.graphs.strength import components, heavy_hitters, received, reciprocity
from headloom.analysis.graphs.token_clusters import token_clusters
from headloom.analysis.weights import (
    Source,
    in_half_precision,
    keeps_all,
    mean_left_out,
    name_of,
    weights_of,
)
from headloom.errors import InputError
from headloom.formats.tokens import shown, visible
from headloom.formats.trace import TraceData, TraceLayer, layer_number
from headloom.mechanism.graph import AttentionGraph
from headloom.mechanism.shapes import chosen, place_of

#: Maximal number of input positions of a flow, each of which is a separate problem.
FLOWS = 256
#: Positions up to which the rank is computed by default: 0.05 s a head there.
EXACT_RANK = 512


def graph_measures(
    trace: OneTrace, *, by: str = "head", exact: bool | None = None, exact_rank: int = EXACT_RANK
) -> pandas.DataFrame:
    """Return the graph measures of a trace.

    Args:
        trace: of any model.
        by: "head": a row for each head; "layer": a row for each layer.
        exact: see `headloom.analysis.weights.weights_of`.
        exact_rank: positions up to which the rank is computed, at most 2,048; it needs all singular
            values.

    Returns: a DataFrame with the columns

        layer, kind, head                 by layer without head
        entropy                           mean over queries, nats
        received_key, _token, _share      the key that receives most, and its share of all mass
        hitters                           fewest keys with 0.9 of it; by layer of the mean matrix
        rank                              effective rank by energy; by layer the mean; NaN for more
                                          positions than `exact_rank`
        reciprocity                       of self-attention; by layer the mean over heads
        pagerank_key, _token, pagerank    the highest; by layer of the mean
        parts, largest_part               parts connected by edges of 0.1 or more, and the size of
                                          the largest
        rest                              mean mass of a row on keys that were not kept
        source                            kind of weights: "exact", "rounded" (from queries and
                                          keys stored in half precision) or "kept"

    The entropy is always the model's own, and the attention received by keys is of all weights if
    the trace was made with ``received=True``.

    Raises: InputError: `exact`, and a layer has no exact weights.
    """
    trace = trace_of("measures", trace)
    chosen("measures", "by", by, ("head", "layer"))
    tables = [
        pandas.DataFrame(
            {"layer": number, "kind": layer.kind, **_columns(layer, by, exact, exact_rank)},
            index=range(layer.heads if by == "head" else 1),
        )
        for number, layer in enumerate(trace.layers)
    ]
    table = pandas.concat(tables, ignore_index=True)
    return table[[name for name in _COLUMNS if name in table]]


_COLUMNS = (
    "layer", "kind", "head", "entropy", "received_key", "received_token", "received_share",
    "hitters", "rank", "reciprocity", "pagerank_key", "pagerank_token", "pagerank", "parts",
    "largest_part", "rest", "source",
)  # fmt: skip


def _columns(layer: TraceLayer, by: str, exact: bool | None, exact_rank: int) -> dict[str, object]:
    """Return the measures of a layer: a number for each head, or one."""
    together = by == "layer"
    columns: dict[str, object] = {} if together else {"head": range(layer.heads)}
    if not all(layer.shape):
        return columns  # no tokens

    def rows(of_heads: Tensor) -> list[float]:
        return [float(of_heads.mean())] if together else of_heads.tolist()

    def highest(measure: str, values: Tensor) -> dict[str, object]:
        keys, tokens = values.argmax(-1).tolist(), shown(layer.key_tokens)
        return {f"{measure}_key": keys, f"{measure}_token": [tokens[key] for key in keys]}

    source = weights_of(layer, exact)
    mass = received(source).double()
    mass = mass.sum(0, keepdim=True) if together else mass
    is_short = max(layer.shape[1:]) <= exact_rank
    columns |= {
        "entropy": rows(layer.graph.entropy.double().mean(-1)),
        **highest("received", mass),
        "received_share": (mass.amax(-1) / mass.sum(-1).clamp(min=1e-300)).tolist(),
        "hitters": heavy_hitters(source, together=together).count.tolist(),
        "rank": rows(energy_rank(source)) if is_short else math.nan,
        "rest": 0.0,
        "source": name_of(layer, source),
    }
    if source is layer.graph:
        sinks = None if layer.terms is None else layer.terms.sinks
        columns["rest"] = rows(mean_left_out(layer.graph, sinks))
    if layer.one_sequence:
        ranks, parts = pagerank(source), components(source, together=together)
        values = ranks.mean[None] if together else ranks.heads
        columns |= {
            "reciprocity": rows(reciprocity(source)),
            **highest("pagerank", values),
            "pagerank": values.amax(-1).tolist(),
            "parts": parts.count.tolist(),
            "largest_part": parts.largest.tolist(),
        }
    return columns


def graphs(trace: TraceData, *, by: str = "layer", exact: bool | None = None) -> pandas.DataFrame:
    """Measure strength, heavy hitters, rank, PageRank, reciprocity, parts: see `graph_measures`."""
    rows = graph_measures(trace, by=by, exact=exact)
    kept = "kept" in set(rows.get("source", ()))
    lacking = "Of the kept edges; rest is the mean mass of a row on other keys." if kept else ""
    return table_of(rows, "", lacking, _half(trace.layers, exact))


def rollout(
    trace: TraceData, *, token: int = -1, reached: bool = False, kind: str | None = None,
    exact: bool | None = None,
) -> pandas.DataFrame:  # fmt: skip
    """Return the share of each input position in an output position, largest first.

    reached: whether to return the share of the input position in each output position instead. For
    others see `headloom.analysis.graphs.rollout.rollout_rows`.
    """
    layers, queries, keys, _ = rollouts.chosen_layers(trace, kind)
    with warnings.catch_warnings(action="ignore"):  # of skipped layers, which are in the notes
        measure = rollouts.rollout_columns if reached else rollouts.rollout_rows
        result = measure(trace, token, kind=kind, exact=exact)
    ends = queries, keys
    tokens, others = (
        shown(trace.sequences[name]) for name in (reversed(ends) if reached else ends)
    )
    of_itself = ""
    if result.own is not None:
        of_itself = (
            f"In all {float(result.values.sum()):.4f} of it from the {keys}, "
            f"{float(result.own):.4f} of the {queries} itself."
        )
    rest = float(result.rest.max())
    lacking = f"{'Rows lack' if reached else 'It lacks'} up to {rest:.2g}: what went along edges "
    return table_of(
        _ordered(share=result.values.flatten().numpy(), token=others),
        f"{visible(tokens[token])} ({token % len(tokens)}) {'went to' if reached else 'holds'}:",
        of_itself,
        rollouts.passed_over(trace, kind),
        lacking + "that were not kept, or to sinks." if rest > 1e-4 else "",
        _half(layers, exact),
    )


def flow(
    trace: TraceData, *, token: int = -1, kind: str | None = None, exact: bool | None = None
) -> pandas.DataFrame:
    """Return the largest flow from an output position to each input position.

    For the arguments see `headloom.analysis.graphs.flow.attention_flow`.
    """
    layers, *names, _ = rollouts.chosen_layers(trace, kind)
    queries, keys = (shown(trace.sequences[name]) for name in names)
    if len(keys) > FLOWS:
        raise InputError(
            f"flow: {len(keys):,} input positions, each of which is a problem of its own; {FLOWS} "
            "are measured at most. In Python, attention_flow takes those that are wanted."
        )
    with warnings.catch_warnings(action="ignore"):
        flows = attention_flow(trace, token, range(len(keys)), kind=kind, exact=exact)
    sources = [flow_weights(layer, exact) for layer in layers]
    whole = not any(isinstance(x, AttentionGraph) and not keeps_all(x) for x in sources)
    return table_of(
        _ordered(flow=flows.numpy(), token=keys),
        f"To {visible(queries[token])} ({token % len(queries)}) can flow from:",
        rollouts.passed_over(trace, kind),
        "" if whole else "Along the kept edges: through all of them at least so much can flow.",
        _half(layers, exact) if whole else "",
    )


def clusters(
    trace: TraceData, *, layer: str | int | None = None, head: int | None = None,
    count: int | None = None, exact: bool | None = None,
) -> pandas.DataFrame:  # fmt: skip
    """Group tokens that attend to each other more than to others (spectral clustering).

    layer: the clusters of this layer, a row for each position; None: a row for each layer. head: of
    the layer; None: the mean of its heads. count: of clusters; None: by the eigenvalues.
    """
    if layer is not None:
        numbers = [layer_number(trace, layer)]
    elif head is not None:
        raise InputError(f"head {head} of no layer; give its layer too.")
    else:
        numbers = [n for n, x in enumerate(trace.layers) if x.one_sequence and all(x.shape)]
    if not numbers:
        raise InputError("clusters: the trace has no self-attention layer.")
    layers, divided, sources = [trace.layers[number] for number in numbers], [], list[Source]()
    for row_layer in layers:
        if head is not None:
            head = place_of("layer", "clusters", "head", head, row_layer.heads)
        sources.append(weights_of(row_layer, exact))
        divided.append(token_clusters(sources[-1], count, head=head))
    names = [name_of(row_layer, source) for row_layer, source in zip(layers, sources, strict=True)]
    fewer = min(parts.number for parts in divided)
    notes = [
        f"{fewer} clusters, not {count}: there are no more positions that have attention."
        if count is not None and fewer < count
        else "",
        "Of the kept edges." if "kept" in names else "",
        _half(layers, exact),
    ]
    if layer is None:
        rows = pandas.DataFrame(
            {
                "layer": numbers,
                "kind": [row_layer.kind for row_layer in layers],
                "clusters": [parts.number for parts in divided],
                "cut": [parts.cut for parts in divided],
                "least": [parts.least for parts in divided],
                "largest": [int(parts.sizes.max(initial=0)) for parts in divided],
                "source": names,
            }
        )
        about = "With a layer: the tokens of each cluster; with a count: so many clusters."
        return table_of(rows, "", about, *notes)
    (parts,) = divided
    stays = [
        f"Cluster {label}: {size} positions; of what they give and receive "
        f"{100 * (1 - leaving):.1f} % stays there."
        for label, (size, leaving) in enumerate(zip(parts.sizes, parts.leaving, strict=True))
    ]
    if absent := int((parts.labels < 0).sum()):
        stays.append(f"{absent} without any attention.")
    tokens = shown(layers[0].key_tokens)
    rows = pandas.DataFrame(
        {"cluster": parts.labels, "position": range(len(tokens)), "token": tokens}
    )
    heads = f"the mean of {layers[0].heads} heads" if head is None else f"head {head}"
    return table_of(
        rows.sort_values(["cluster", "position"], ignore_index=True),
        f"Layer {trace.label(numbers[0])}, {heads}: normalized cut {parts.cut:.4f}; no division "
        f"into as many has less than {parts.least:.4f}.",
        *stays,
        *notes,
    )


def _ordered(*, token: Sequence[str], **values: NDArray[np.floating]) -> pandas.DataFrame:
    """Return positions with their tokens by a measure, the largest first."""
    rows = pandas.DataFrame({"position": range(len(token)), "token": token, **values})
    return rows.sort_values([*values], ascending=False, kind="stable", ignore_index=True)


def table_of(rows: pandas.DataFrame, title: str, *notes: str | None) -> pandas.DataFrame:
    """Add a title and notes to rows."""
    rows.attrs |= {"title": title, "notes": [note for note in notes if note]}
    return rows


def _half(layers: Sequence[TraceLayer], exact: bool | None) -> str:
    return "" if exact is False else in_half_precision(layers)
