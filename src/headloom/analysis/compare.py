"""Two traces side by side: which heads and which edges changed most.

Of two models, two checkpoints of one, or two texts of as many tokens. Rows are compared by their
total variation, the share of mass that is elsewhere:

    d_i = 1/2 sum_j |p_ij - q_ij|,    0: alike, 1: on other keys altogether

A head's change is the mean over its queries. From kept edges it is what these say at least: keys
kept by both are known, and of a key that one alone kept, with weight p, the other has l' at most,
the most that it can have left out:

    2 d_i >= sum_both |p - q| + sum_one max(0, p - l')
"""

from __future__ import annotations

import math
from collections.abc import Iterator
from dataclasses import dataclass
from typing import TYPE_CHECKING

import torch
from torch import Tensor

from headloom.analysis.arguments import check_trace
from headloom.analysis.weights import keeps_all, largest_left_out, row_tiles, weights_of
from headloom.errors import InputError
from headloom.formats.tokens import shown, visible
from headloom.formats.trace import TraceData, TraceLayer
from headloom.mechanism.graph import AttentionGraph
from headloom.mechanism.matrix.attention_matrix import AttentionMatrix
from headloom.mechanism.shapes import whole_number

if TYPE_CHECKING:
    import pandas

__all__ = [
    "Change",
    "Comparison",
    "changed_edges",
    "compare",
    "distance",
    "first_difference",
    "in_the_other",
    "matched_layers",
]

#: Weights of a head that are looked up, besides those of the edges that are wanted, at most.
_LOOKED_UP = 256

#: What sentences call the two traces, where nothing else is said.
_NAMES = ("the first", "the second")


@dataclass(frozen=True)
class Change:
    """One edge in both traces: its weight in the first, and in the second.

    unkept: the one that is not known, "before" or "after": then it is the most that it can be.
    """

    layer: int
    head: int
    query: int
    key: int
    before: float
    after: float
    unkept: str = ""

    @property
    def size(self) -> float:
        """By how much the edge changed; of an unknown weight at least."""
        known, other = sorted((self.before, self.after), reverse=True)
        if self.unkept == "before":
            known, other = self.after, self.before
        elif self.unkept == "after":
            known, other = self.before, self.after
        return max(0.0, known - other)


@dataclass(frozen=True, eq=False)
class Comparison:
    """How two traces differ.

    first, second: the traces.
    layers: their numbers in the first and in the second trace, that were compared.
    heads: total variation of each head, (heads,), for each of these.
    exact: whether that is of all weights, for each of these; else it is at least so much.
    entropies: mean entropy of the second less that of the first, (heads,).
    edges: those that changed most, the most changed first; none that is known to be as before.
    tokens: how many tokens differ, of how many.
    """

    first: TraceData
    second: TraceData
    layers: tuple[tuple[int, int], ...]
    heads: tuple[Tensor, ...]
    exact: tuple[bool, ...]
    entropies: tuple[Tensor, ...]
    edges: tuple[Change, ...]
    tokens: tuple[int, int]

    @property
    def most(self) -> float:
        """The change of the head that changed most; 0: none changed."""
        return max((float(change.max()) for change in self.heads), default=0.0)

    def table(self) -> pandas.DataFrame:
        """A row for each head, most changed first: layer, other_layer, head, kind, change, ..."""
        import pandas

        rows = [
            {
                "layer": number,
                "other_layer": other,
                "head": head,
                "kind": self.first.layers[number].kind,
                "change": float(change[head]),
                "entropy_change": float(entropy[head]),
                "exact": exact,
                "name": self.first.layers[number].name,
            }
            for (number, other), change, exact, entropy in zip(
                self.layers, self.heads, self.exact, self.entropies, strict=True
            )
            for head in range(len(change))
        ]
        table = pandas.DataFrame(rows)
        return table.sort_values("change", ascending=False, kind="stable", ignore_index=True)

    def edge_table(self) -> pandas.DataFrame:
        """A row for each of the edges, with the tokens of both traces at both ends.

        unkept: the weight that is not known, "before" or "after", which is at most what stands
        there; "": both are.
        """
        import pandas

        counterpart = dict(self.layers)
        rows = []
        for change in self.edges:
            layer = self.first.layers[change.layer]
            other = self.second.layers[counterpart[change.layer]]
            rows.append(
                {
                    "layer": change.layer,
                    "head": change.head,
                    "query": change.query,
                    "key": change.key,
                    "before": change.before,
                    "after": change.after,
                    "change": change.after - change.before,
                    "query_token": shown(layer.query_tokens)[change.query],
                    "key_token": shown(layer.key_tokens)[change.key],
                    "other_query_token": shown(other.query_tokens)[change.query],
                    "other_key_token": shown(other.key_tokens)[change.key],
                    "unkept": change.unkept,
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
        exact: see `headloom.analysis.weights.weights_of`.
        edges: how many are wanted.
        names: what errors call the traces.

    Raises: InputError: no layer of one fits one of the other, or has no exact weights that were
    asked for.
    """
    check_trace("compare", first, names[0])
    check_trace("compare", second, names[1])
    edges = whole_number("compare", "edges", edges, 0)
    pairs = matched_layers(first, second, names)
    heads, known, entropies, changes = [], [], [], list[Change]()
    for number, other in pairs:
        ours, theirs = first.layers[number], second.layers[other]
        change, of_all = distance(ours, theirs, exact=exact)
        heads.append(change)
        known.append(of_all)
        entropies.append(theirs.graph.entropy.mean(-1) - ours.graph.entropy.mean(-1))
        for head in range(ours.heads):
            changes += changed_edges(number, ours, theirs, head, edges, exact)
    changes.sort(key=lambda change: -change.size)
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
        tuple(known),
        tuple(entropies),
        tuple(changes[:edges]),
        (sum(a != b for a, b in tokens), len(tokens)),
    )


def first_difference(first: TraceData, second: TraceData, names: tuple[str, str] = _NAMES) -> str:
    """Where the tokens of two traces first differ, in a sentence; "": they are the same.

    names: what the sentence calls the traces.
    """
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


def distance(
    first: TraceLayer, second: TraceLayer, *, exact: bool | None = None
) -> tuple[Tensor, bool]:
    """The mean total variation between the rows of each head of two layers, (heads,).

    Returns: beside it whether it is of all weights; else it is at least so much.
    """
    _check_shapes(first, second)
    ours, theirs = (weights_of(layer, exact, check=False) for layer in (first, second))
    heads, queries, keys = first.shape
    if isinstance(ours, AttentionMatrix) and isinstance(theirs, AttentionMatrix):
        causal = first.mask == second.mask == "causal"
        total = torch.zeros(heads, dtype=torch.float64)
        tiles = row_tiles(ours, causal=causal), row_tiles(theirs, causal=causal)
        for (_, _, tile), (_, _, other) in zip(*tiles, strict=True):
            total += tile.sub_(other).abs_().sum((1, 2), dtype=torch.float64)
        return (total / (2 * max(queries, 1))).float(), True
    of_all = all(isinstance(x, AttentionMatrix) or keeps_all(x) for x in (ours, theirs))
    before, after = (
        x.top(keys)
        if of_all and isinstance(x, AttentionMatrix) and not keeps_all(layer.graph)
        else layer.graph
        for x, layer in ((ours, first), (theirs, second))
    )
    return _of_edges(before, after), of_all


def _of_edges(first: AttentionGraph, second: AttentionGraph) -> Tensor:
    heads, queries, _ = first.shape
    total = torch.zeros(heads, dtype=torch.float64)
    for graph, other in ((first, second), (second, first)):
        largest = largest_left_out(other)
        for head in range(heads):
            there, weight = in_the_other(graph, other, head)
            own = torch.where(graph.keys[head] >= 0, graph.weights[head], 0).double()
            # An edge that both kept is met twice.
            both = torch.where(there, (own - weight).abs() / 2, 0)
            alone = torch.where(there, 0, own - largest[head, :, None]).clamp(min=0)
            total[head] += (both + alone).sum()
    return (total / (2 * max(queries, 1))).clamp(max=1).float()


def in_the_other(graph: AttentionGraph, other: AttentionGraph, head: int) -> tuple[Tensor, Tensor]:
    """Whether each edge of one graph is kept in the other too, and its weight there."""
    there, weights = [], []
    for start in range(0, max(1, graph.keys.shape[1]), 256):
        rows = slice(start, start + 256)
        keys, others = graph.keys[head, rows, :, None], other.keys[head, rows, None, :]
        same = (keys == others) & (keys >= 0)
        there.append(same.any(-1))
        weights.append((same * other.weights[head, rows, None, :]).sum(-1).double())
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
    weights that were not kept are not looked up. Else those that can have changed most are, at most
    256 besides the wanted ones.
    """
    _check_shapes(first, second)
    changes = [
        *_changed(number, head, (first, second), wanted, exact, turned=False),
        *_changed(number, head, (second, first), wanted, exact, turned=True),
    ]
    changes.sort(key=lambda change: -change.size)
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
    there, weight = in_the_other(layer.graph, other.graph, head)
    kept = layer.graph.keys[head] >= 0
    if turned:  # edges that both kept are taken once
        kept = kept & ~there
    own = layer.graph.weights[head].double()
    largest = largest_left_out(other.graph)[head][:, None].expand_as(own)
    matrix = None if exact is False else other.matrix
    # A weight that is looked up can be anything from 0 to the largest that was left out.
    least = (own - largest).clamp(min=0) if matrix is None else torch.maximum(own, largest - own)
    change = torch.where(there, (own - weight).abs(), least)
    # What is no number (NaN) is no edge that changed most.
    change = torch.where(kept, change, 0).nan_to_num(0).flatten()
    count = min(wanted + (0 if matrix is None else _LOOKED_UP), int((change > 0).sum()))
    for place in change.topk(count).indices.tolist():
        query, slot = divmod(place, own.shape[1])
        key = int(layer.graph.keys[head, query, slot])
        known = bool(there[query, slot]) or float(largest[query, slot]) == 0
        value = float(weight[query, slot]) if known else float(largest[query, slot])
        if not known and matrix is not None:
            value, known = float(matrix[head, query, key]), True
        ends = float(own[query, slot]), value
        if math.isnan(value) or (known and ends[0] == ends[1]):
            continue
        unkept = "" if known else "before" if turned else "after"
        yield Change(number, head, query, key, *(ends[::-1] if turned else ends), unkept)
