"""Measures of a trace as tables: rows, and the sentences that belong beside them.

Each is printed by a verb of its name, and has its rows as a DataFrame in Python. A function takes a
trace and `exact`, see `headloom.analysis.weights.weights_of`.
"""

from __future__ import annotations

import warnings
from collections.abc import Sequence
from dataclasses import dataclass
from types import ModuleType
from typing import TYPE_CHECKING

from headloom.analysis.graphs import rollout as rollouts
from headloom.analysis.graphs.flow import attention_flow, layer_edges
from headloom.analysis.graphs.table import graph_measures
from headloom.analysis.graphs.token_clusters import TokenClusters, token_clusters
from headloom.analysis.weights import in_half_precision, name_of, weights_of
from headloom.errors import InputError, optional_package
from headloom.formats.tokens import shown, visible
from headloom.formats.trace import TraceData, TraceLayer, layer_number
from headloom.mechanism.shapes import place_of

if TYPE_CHECKING:
    import pandas

__all__ = ["Table", "clusters", "flow", "graphs", "rollout"]

#: Input positions that are asked about unless they are named: each is a max-flow problem.
FLOWS = 256


@dataclass(frozen=True, eq=False)
class Table:
    """A measure. title: a line above the rows, or ""; notes: sentences below them."""

    rows: pandas.DataFrame
    title: str
    notes: tuple[str, ...]


def graphs(
    trace: TraceData,
    *,
    by: str = "layer",
    exact: bool | None = None,
    share: float = 0.9,
    threshold: float = 0.1,
    exact_rank: int = 512,
) -> Table:
    """Strength, heavy hitters, rank, PageRank, reciprocity, parts: a row for each layer or head.

    Takes what `headloom.analysis.graphs.table.graph_measures` takes.
    """
    rows = graph_measures(
        trace, by=by, exact=exact, share=share, threshold=threshold, exact_rank=exact_rank
    )
    kept = "kept" in set(rows.get("source", ()))
    lacking = "Of the kept edges; rest is the mean mass of a row on other keys." if kept else ""
    return _table(rows, "", lacking, _half(trace.layers, exact))


def rollout(
    trace: TraceData,
    *,
    token: int = -1,
    column: bool = False,
    kind: str | None = None,
    exact: bool | None = None,
) -> Table:
    """How much of each input position an output position holds, largest first.

    column: how much of the position each output position holds instead. Others as of
    `headloom.analysis.graphs.rollout.rollout_rows`.
    """
    pandas = _pandas("rollout")
    with warnings.catch_warnings(action="ignore"):  # of what is passed over, which is a note
        asked = rollouts.rollout_columns if column else rollouts.rollout_rows
        result = asked(trace, token, kind=kind, exact=exact)
    layers, *_ = rollouts.chosen_layers(trace, kind)
    queries, keys = (shown(trace.sequences[name]) for name in rollouts.ends(trace, kind))
    own, others = (keys, queries) if column else (queries, keys)
    rows = pandas.DataFrame(
        {"position": range(len(others)), "token": others, "share": result.values.flatten().numpy()}
    )
    rest = float(result.rest.max())
    lacking = f"{'Rows lack' if column else 'It lacks'} up to {rest:.2g}: what went along edges "
    return _table(
        rows.sort_values("share", ascending=False, kind="stable", ignore_index=True),
        f"{visible(own[token])} ({token % len(own)}) {'went to' if column else 'holds'}:",
        None if column else rollouts.of_own(trace, result, kind),
        rollouts.passed_over(trace, kind),
        lacking + "that were not kept, or to sinks." if rest > 1e-4 else "",
        _half(layers, exact),
    )


def flow(
    trace: TraceData,
    *,
    token: int = -1,
    sources: Sequence[int] = (),
    kind: str | None = None,
    exact: bool | None = None,
) -> Table:
    """How much can flow from an output position to input positions, through all layers.

    sources: input positions; none: all, of up to 256. Others as of
    `headloom.analysis.graphs.flow.attention_flow`.
    """
    pandas = _pandas("flow")
    layers, *_ = rollouts.chosen_layers(trace, kind)
    queries, keys = (shown(trace.sequences[name]) for name in rollouts.ends(trace, kind))
    if not sources and len(keys) > FLOWS:
        raise InputError(
            f"flow: {len(keys):,} input positions, each of which is a problem of its own. Name "
            f"those that are wanted, as --from 0 --from 5; all of them up to {FLOWS}."
        )
    targets = [place_of("sequence", "flow", "position", at, len(keys)) for at in sources]
    targets = targets or list(range(len(keys)))
    with warnings.catch_warnings(action="ignore"):
        flows = attention_flow(trace, token, targets, kind=kind, exact=exact)
    rows = pandas.DataFrame(
        {"position": targets, "token": [keys[at] for at in targets], "flow": flows.numpy()}
    )
    whole = all(layer_edges(layer, exact)[1] for layer in layers)
    return _table(
        rows.sort_values("flow", ascending=False, kind="stable", ignore_index=True),
        f"To {visible(queries[token])} ({token % len(queries)}) can flow from:",
        rollouts.passed_over(trace, kind),
        "" if whole else "Along the kept edges: through all of them at least so much can flow.",
        _half(layers, exact) if whole else "",
    )


def clusters(
    trace: TraceData,
    *,
    layer: str | None = None,
    head: int | None = None,
    count: int | None = None,
    without: Sequence[int] = (),
    exact: bool | None = None,
) -> Table:
    """Which tokens look at each other more than at the others (spectral clustering).

    Args:
        layer: the clusters of this layer, a row for each position; None: a row for each layer.
        head: of this head of the layer; None: of the mean of its heads.
        count, without: see `headloom.analysis.graphs.token_clusters.token_clusters`.
    """
    pandas = _pandas("clusters")
    if layer is not None:
        chosen = [layer_number(trace, layer)]
    elif head is not None:
        raise InputError(f"--head {head} of no layer; give its --layer too.")
    else:
        chosen = [n for n, each in enumerate(trace.layers) if each.one_sequence and all(each.shape)]
    if not chosen:
        raise InputError("clusters: no layer in which a sequence looks at itself.")
    found = []
    for number in chosen:
        of_layer = trace.layers[number]
        if head is not None:
            head = place_of("layer", "clusters", "head", head, of_layer.heads)
        weights = weights_of(of_layer, exact)
        divided = token_clusters(weights, count, head=head, without=without)
        found.append((number, divided, name_of(of_layer, weights)))
    fewer = min(divided.number for _, divided, _ in found)
    notes = [
        f"{fewer} clusters, not {count}: there are no more positions that have attention."
        if count is not None and fewer < count
        else "",
        "Of the kept edges." if any(source == "kept" for *_, source in found) else "",
        _half([trace.layers[number] for number in chosen], exact),
    ]
    if layer is None:
        rows = [
            {
                "layer": number,
                "kind": trace.layers[number].kind,
                "clusters": divided.number,
                "cut": divided.cut,
                "least": divided.least,
                "largest": max(
                    (sum(divided.labels == n) for n in range(divided.number)), default=0
                ),
                "source": source,
            }
            for number, divided, source in found
        ]
        notes.insert(0, "--layer shows the tokens of each cluster, --count asks for so many.")
        return _table(pandas.DataFrame(rows), "", *notes)
    number, divided, _ = found[0]
    return _of_one_layer(pandas, trace, number, head, divided, notes)


def _of_one_layer(
    pandas: ModuleType,
    trace: TraceData,
    number: int,
    head: int | None,
    divided: TokenClusters,
    notes: list[str],
) -> Table:
    layer = trace.layers[number]
    tokens = shown(layer.key_tokens)
    stays = [
        f"Cluster {label}: {sum(divided.labels == label)} positions; of what they give and receive "
        f"{100 * (1 - leaving):.1f} % stays there."
        for label, leaving in enumerate(divided.leaving.tolist())
    ]
    if absent := int((divided.labels < 0).sum()):
        stays.append(f"{absent} left out, or without any attention.")
    rows = {"cluster": divided.labels, "position": range(len(tokens)), "token": tokens}
    heads = f"the mean of {layer.heads} heads" if head is None else f"head {head}"
    return _table(
        pandas.DataFrame(rows).sort_values(["cluster", "position"], ignore_index=True),
        f"Layer {trace.label(number)}, {heads}: normalized cut {divided.cut:.4f}; no division into "
        f"as many has less than {divided.least:.4f}.",
        *stays,
        *notes,
    )


def _table(rows: pandas.DataFrame, title: str, *notes: str | None) -> Table:
    return Table(rows, title, tuple(note for note in notes if note))


def _half(layers: Sequence[TraceLayer], exact: bool | None) -> str:
    return "" if exact is False else in_half_precision(layers)


def _pandas(operation: str) -> ModuleType:
    with optional_package(operation):
        import pandas
    return pandas
