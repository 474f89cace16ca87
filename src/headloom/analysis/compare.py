"""Two traces side by side: which heads and which edges changed most.

Of two models, two checkpoints of one, or two texts of as many tokens. Rows are compared by their
total variation, the share of mass that is elsewhere:

    d_i = 1/2 sum_j |p_ij - q_ij|,    0: alike, 1: on other keys altogether

A head's change is the mean over its queries.

From kept edges, with M and l what each row left out in all and at most in one weight: keys kept by
both are known; a key that one alone kept, with weight p, adds from p - l' to p, and what neither
kept at most M + M':

    sum_both |p - q| + sum_one max(0, p - l') <= 2 d_i <= sum_both |p - q| + sum_one p + M + M'
"""

from __future__ import annotations

import heapq
import math
from collections.abc import Iterator
from dataclasses import dataclass
from typing import TYPE_CHECKING

import torch
from torch import Tensor

from headloom.analysis.arguments import check_layer, check_trace
from headloom.analysis.heads.pattern_mass import rounded_to
from headloom.analysis.interval import Interval, keeps_all, left_out
from headloom.analysis.tiles import row_tiles
from headloom.errors import InputError
from headloom.formats.tokens import shown, visible
from headloom.formats.trace import TraceData, TraceLayer
from headloom.mechanism.graph import AttentionGraph
from headloom.mechanism.matrix.attention_matrix import AttentionMatrix
from headloom.mechanism.shapes import check_flag, place_of, whole_number

if TYPE_CHECKING:
    import pandas

__all__ = [
    "Change",
    "Comparison",
    "changed_edges",
    "compare",
    "distance",
    "first_difference",
    "matched_layers",
]

#: Cells of a layer up to which all weights are compared without being asked for.
CHEAP_CELLS = 2**28
#: Cells that are formed at a time.
BLOCK_CELLS = 2**24
#: Weights of a head that are looked up, besides those of the edges that are wanted, at most.
_LOOKED_UP = 256

#: What sentences call the two traces, where nothing else is said.
_NAMES = ("the first", "the second")


@dataclass(frozen=True)
class Change:
    """One edge in both traces: its weight in the first, and in the second.

    exact: whether both are known; else the one that was not kept is halfway to the most that it
    can be.
    unkept: which of them that is, "before" or "after"; "": neither.
    """

    layer: int
    head: int
    query: int
    key: int
    before: float
    after: float
    exact: bool
    unkept: str = ""

    @property
    def bounds(self) -> tuple[tuple[float, float], tuple[float, float]]:
        """What the weight before lies between, and the weight after."""
        before, after = (self.before, self.before), (self.after, self.after)
        if self.unkept == "before":
            before = (0.0, 2 * self.before)
        if self.unkept == "after":
            after = (0.0, 2 * self.after)
        return before, after


@dataclass(frozen=True, eq=False)
class Comparison:
    """How two traces differ.

    first, second: the traces.
    layers: their numbers in the first and in the second trace, that were compared.
    heads: total variation of each head, (heads,), for each of these; an interval.
    entropies: mean entropy of the second less that of the first, (heads,).
    edges: those that changed most, the most changed first; none that is known to be as before.
    tokens: how many tokens differ, of how many.
    """

    first: TraceData
    second: TraceData
    layers: tuple[tuple[int, int], ...]
    heads: tuple[Interval, ...]
    entropies: tuple[Tensor, ...]
    edges: tuple[Change, ...]
    tokens: tuple[int, int]

    @property
    def most(self) -> tuple[float, float]:
        """The change of the head that changed most lies between these; (0, 0): none changed."""
        ends = [(change.lower.max(), change.upper.max()) for change in self.heads]
        return max(float(low) for low, _ in ends), max(float(high) for _, high in ends)

    def table(self) -> pandas.DataFrame:
        """A row for each head, most changed first: layer, other_layer, head, kind, change, ..."""
        import pandas

        rows = [
            {
                "layer": number,
                "other_layer": other,
                "head": head,
                "kind": self.first.layers[number].kind,
                "change": float(change.lower[head]),
                "change_high": float(change.upper[head]),
                "entropy_change": float(entropy[head]),
                "name": self.first.layers[number].name,
            }
            for (number, other), change, entropy in zip(
                self.layers, self.heads, self.entropies, strict=True
            )
            for head in range(len(change.lower))
        ]
        table = pandas.DataFrame(rows)
        order = (table["change"] + table["change_high"]).sort_values(ascending=False, kind="stable")
        return table.loc[order.index].reset_index(drop=True)

    def edge_table(self) -> pandas.DataFrame:
        """A row for each of the edges, with the tokens of both traces at both ends.

        A weight lies between `before` and `before_high`, or `after` and `after_high`; `change` is
        that of the middles.
        """
        import pandas

        counterpart = dict(self.layers)
        rows = []
        for change in self.edges:
            layer = self.first.layers[change.layer]
            other = self.second.layers[counterpart[change.layer]]
            before, after = change.bounds
            rows.append(
                {
                    "layer": change.layer,
                    "head": change.head,
                    "query": change.query,
                    "key": change.key,
                    "before": before[0],
                    "before_high": before[1],
                    "after": after[0],
                    "after_high": after[1],
                    "change": change.after - change.before,
                    "query_token": shown(layer.query_tokens)[change.query],
                    "key_token": shown(layer.key_tokens)[change.key],
                    "other_query_token": shown(other.query_tokens)[change.query],
                    "other_key_token": shown(other.key_tokens)[change.key],
                    "exact": change.exact,
                }
            )
        return pandas.DataFrame(rows)


def compare(
    first: TraceData,
    second: TraceData,
    *,
    exact: bool | None = None,
    edges: int = 20,
    names: tuple[str, str] = _NAMES,
) -> Comparison:
    """Which heads and edges changed most from one trace to another.

    Args:
        first, second: with layers of the same kinds, heads and numbers of tokens. Layers go by kind
            and index; those that only one trace has are left out.
        exact: True: rows are compared in all weights; False: in the kept edges, with bounds; None:
            in all of them where that is cheap.
        edges: how many are wanted.
        names: what errors call the traces.

    Raises: InputError: no layer of one fits one of the other, or has no exact weights that were
    asked for.
    """
    check_flag("compare", "exact", exact, optional=True)
    edges = whole_number("compare", "edges", edges, 0)
    pairs = matched_layers(first, second, names)
    heads, entropies, changes = [], [], []
    for number, other in pairs:
        ours, theirs = first.layers[number], second.layers[other]
        heads.append(distance(ours, theirs, exact=exact))
        graphs = ours.graph, theirs.graph
        entropies.append(graphs[1].entropy.mean(-1) - graphs[0].entropy.mean(-1))
        for head in range(ours.heads):
            changes += changed_edges(number, ours, theirs, head, edges, exact)
    changes.sort(key=lambda change: -abs(change.after - change.before))
    tokens = [
        pair
        for name in first.sequences.keys() & second.sequences.keys()
        for pair in zip(shown(first.sequences[name]), shown(second.sequences[name]), strict=False)
    ]
    return Comparison(
        first,
        second,
        tuple(pairs),
        tuple(heads),
        tuple(entropies),
        tuple(changes[:edges]),
        (sum(a != b for a, b in tokens), len(tokens)),
    )


def first_difference(first: TraceData, second: TraceData, names: tuple[str, str] = _NAMES) -> str:
    """Where the tokens of two traces first differ, in a sentence; "": they are the same.

    names: what the sentence calls the traces.
    """
    for trace, name in zip((first, second), names, strict=True):
        check_trace("compare", trace, name)
    if first.sequences.keys() != second.sequences.keys():
        kinds = (" and ".join(trace.sequences) or "nothing" for trace in (first, second))
        said = (f"{name} has {kind}" for name, kind in zip(names, kinds, strict=True))
        return f"The traces are of other kinds: {', '.join(said)}."
    for sequence in first.sequences:
        ours, theirs = (shown(trace.sequences[sequence]) for trace in (first, second))
        of = "" if sequence == "tokens" else f" of the {sequence}"
        pairs = zip(ours, theirs, strict=False)
        place = next((at for at, (a, b) in enumerate(pairs) if a != b), min(len(ours), len(theirs)))
        if place < min(len(ours), len(theirs)):
            found = (visible(tokens[place], 40) for tokens in (ours, theirs))
            said = (f"“{token}” in {name}" for token, name in zip(found, names, strict=True))
            return f"Token {place}{of} is the first that differs: {', '.join(said)}."
        if len(ours) != len(theirs):
            longer, tokens = (names[0], ours) if len(ours) > len(theirs) else (names[1], theirs)
            counts = f"{len(ours):,} tokens{of} in {names[0]}, {len(theirs):,} in {names[1]}"
            token = visible(tokens[place], 40)
            return f"There are {counts}: at token {place} only {longer} goes on, with “{token}”."
    return ""


def matched_layers(
    first: TraceData, second: TraceData, names: tuple[str, str] = _NAMES
) -> list[tuple[int, int]]:
    """The numbers of the layers of one kind and index in both traces.

    names: what errors call the traces.

    Raises: InputError: there is none, or one pair has other heads or numbers of tokens.
    """
    check_trace("compare", first, names[0])
    check_trace("compare", second, names[1])
    there = {(layer.kind, layer.index): number for number, layer in enumerate(second.layers)}
    pairs = []
    for number, layer in enumerate(first.layers):
        other = there.get((layer.kind, layer.index))
        if other is None:
            continue
        _check_shapes(layer, second.layers[other], names)
        pairs.append((number, other))
    if not pairs:
        kinds = [" and ".join(sorted({x.kind for x in t.layers})) for t in (first, second)]
        raise InputError(
            "compare: the traces have no layer of one kind and index in common: layers of "
            f"{names[0]} are {kinds[0]}, of {names[1]} {kinds[1]}. Compare traces of models of one "
            "kind."
        )
    return pairs


def _check_shapes(layer: TraceLayer, other: TraceLayer, names: tuple[str, str] = _NAMES) -> None:
    """Raise an InputError where two layers have other heads or numbers of tokens."""
    shape = other.shape
    if shape[1:] != layer.shape[1:]:
        raise InputError(
            f"compare: layer {layer.name} has {layer.shape[1]} queries and {layer.shape[2]} "
            f"keys in {names[0]}, {shape[1]} and {shape[2]} in {names[1]}. Compare traces of as "
            "many tokens."
        )
    if shape[0] != layer.shape[0]:
        raise InputError(
            f"compare: layer {layer.name} has {layer.shape[0]} heads in {names[0]}, {shape[0]} in "
            f"{names[1]}. Compare models of as many heads."
        )


def distance(first: TraceLayer, second: TraceLayer, *, exact: bool | None = None) -> Interval:
    """The mean total variation between the rows of each head of two layers, (heads,)."""
    for layer, name in ((first, "the first"), (second, "the second")):
        check_layer("compare", layer, name)
    check_flag("compare", "exact", exact, optional=True)
    _check_shapes(first, second)
    heads, queries, keys = first.shape
    if exact is None:
        exact = heads * queries * keys <= CHEAP_CELLS and not (first.no_matrix or second.no_matrix)
    stored = first, second
    # Of half precision the matrix is that of rounded queries and keys; the graph is the model's.
    if any(rounded_to(one) for one in stored) and all(keeps_all(one.graph) for one in stored):
        exact = False
    if not exact:
        return _of_edges(first.graph, second.graph)
    if first.no_matrix or second.no_matrix:
        return _of_edges(_every_edge(first), _every_edge(second))
    causal = first.mask == second.mask == "causal"
    distance = _of_matrices(_exact(first), _exact(second), causal)
    return Interval(distance, distance)


def _every_edge(layer: TraceLayer) -> AttentionGraph:
    """The graph of all edges of a layer. Raises: InputError: they are not known."""
    if keeps_all(layer.graph):
        return layer.graph
    return _exact(layer).top(layer.shape[2])


def _exact(layer: TraceLayer) -> AttentionMatrix:
    """The whole matrix of a layer, rows that sum to 1. Raises: InputError: it has none."""
    matrix = layer.normalised_matrix
    if matrix is None:
        raise InputError(
            f"compare: layer {layer.name} has no exact weights: {layer.no_matrix}. Take the kept "
            "edges, exact=False."
        )
    return matrix


def _of_matrices(first: AttentionMatrix, second: AttentionMatrix, causal: bool) -> Tensor:
    heads, queries, _ = first.shape
    total = torch.zeros(heads, dtype=torch.float64)
    for head in range(heads):
        tiles = (row_tiles(matrix, head, causal=causal) for matrix in (first, second))
        for (_, _, ours), (_, _, theirs) in zip(*tiles, strict=True):
            total[head] += ours.sub_(theirs).abs_().sum(dtype=torch.float64)
    return (total / (2 * max(queries, 1))).float()


def _of_edges(first: AttentionGraph, second: AttentionGraph) -> Interval:
    heads, queries, _ = first.shape
    lower, upper = torch.zeros(2, heads, dtype=torch.float64)
    missing = [left_out(graph) for graph in (first, second)]
    for head in range(heads):
        ours, theirs = _in_the_other(first, second, head), _in_the_other(second, first, head)
        least = most = torch.zeros(queries, dtype=torch.float64)
        for graph, (there, weight), (_, largest) in (
            (first, ours, missing[1]),
            (second, theirs, missing[0]),
        ):
            own = torch.where(graph.keys[head] >= 0, graph.weights[head], 0).double()
            # An edge that both kept is met twice.
            both = torch.where(there, (own - weight).abs(), 0).sum(-1) / 2
            alone = torch.where(there, 0, own)
            least = least + both + (alone - largest[head, :, None]).clamp(min=0).sum(-1)
            most = most + both + alone.sum(-1)
        mass = missing[0][0][head] + missing[1][0][head]
        lower[head] = least.clamp(max=2).mean() / 2
        upper[head] = (most + mass).clamp(max=2).mean() / 2
    return Interval(lower.float(), upper.float())


def _in_the_other(graph: AttentionGraph, other: AttentionGraph, head: int) -> tuple[Tensor, Tensor]:
    """Whether each edge of one graph is kept in the other too, and its weight there."""
    keys, others = graph.keys[head], other.keys[head]
    size = max(1, BLOCK_CELLS // max(1, keys.shape[1] * others.shape[1]))
    there, weights = [], []
    for start in range(0, len(keys), size):
        rows = slice(start, start + size)
        same = keys[rows, :, None] == others[rows, None, :]
        same &= keys[rows, :, None] >= 0
        there.append(same.any(-1))
        weights.append((same * other.weights[head, rows, None, :]).sum(-1).double())
    if not there:
        return torch.zeros_like(keys, dtype=torch.bool), torch.zeros(keys.shape).double()
    return torch.cat(there), torch.cat(weights)


def changed_edges(
    number: int,
    first: TraceLayer,
    second: TraceLayer,
    head: int,
    wanted: int,
    exact: bool | None = None,
) -> list[Change]:
    """The edges of a head that changed most, among those that one of the traces kept.

    number: what the first layer is called; wanted: how many; more may be given. exact: False:
    weights that were not kept are not looked up; the middle of what they can be counts. Else those
    that can have changed most are, at most 256 besides the wanted ones.
    """
    for layer, name in ((first, "the first"), (second, "the second")):
        check_layer("compare", layer, name)
    _check_shapes(first, second)
    head = place_of("layer", "compare", "head", head, first.heads)
    wanted = whole_number("compare", "wanted", wanted, 0)
    check_flag("compare", "exact", exact, optional=True)
    changes = [
        *_changed(number, head, (first, second), wanted, exact, turned=False),
        *_changed(number, head, (second, first), wanted, exact, turned=True),
    ]
    changes.sort(key=lambda change: -abs(change.after - change.before))
    return changes


def _changed(
    number: int,
    head: int,
    layers: tuple[TraceLayer, TraceLayer],
    wanted: int,
    exact: bool | None,
    *,
    turned: bool,
) -> Iterator[Change]:
    """Of the edges that the first of two layers kept; turned: it is the one after."""
    layer, other = layers
    there, weight = _in_the_other(layer.graph, other.graph, head)
    kept = layer.graph.keys[head] >= 0
    if turned:  # edges that both kept are taken once
        kept = kept & ~there
    own = layer.graph.weights[head].double()
    largest = left_out(other.graph)[1][head].double()
    guess = torch.where(there, weight, largest[:, None] / 2)
    # What is no number (NaN) is no edge that changed most.
    change = torch.where(kept, (own - guess).abs(), -1).nan_to_num(-1)
    count, found = int((change >= 0).sum()), list[float]()
    matrix = None if exact is False else other.matrix
    if matrix is not None:
        # Weights are looked up while one more can have changed more than those that are wanted.
        at_most = torch.where(there, change, torch.maximum(own, largest[:, None] - own))
        change = torch.where(change < 0, change, at_most)
        count = min(count, wanted + _LOOKED_UP)
    ordered = change.flatten().topk(count if matrix is not None else min(wanted, count))
    for most, place in zip(*(part.tolist() for part in ordered), strict=True):
        if len(found) >= wanted and (not found or most <= found[0]):
            return
        query, slot = divmod(place, change.shape[1])
        key = int(layer.graph.keys[head, query, slot])
        known = bool(there[query, slot]) or float(largest[query]) == 0
        value = float(guess[query, slot])
        if not known and matrix is not None:
            value, known = float(matrix[head, query, key]), True
            if math.isnan(value):
                continue
        ends = float(own[query, slot]), value
        if known and ends[0] == ends[1]:
            continue
        heapq.heappush(found, abs(ends[0] - ends[1]))
        if len(found) > wanted:
            heapq.heappop(found)
        unkept = "" if known else "before" if turned else "after"
        yield Change(number, head, query, key, *(ends[::-1] if turned else ends), known, unkept)
