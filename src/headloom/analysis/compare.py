"""Comparison of two traces: the heads and edges that changed most.

Of two models, two checkpoints of one, or two texts with the same number of tokens. Rows are
compared by their total variation, the share of mass that moved to other keys:

    d_i = 1/2 sum_j |p_ij - q_ij|,    0: equal, 1: on other keys entirely

A head's change is the mean over its queries. From kept edges it is a lower bound: keys kept by both
are known, and for a key kept by one only, with weight p, the other's weight is at most l', the
largest weight that it can have left out:

    2 d_i >= sum_both |p - q| + sum_one max(0, p - l')
"""

from __future__ import annotations

import math
from dataclasses import dataclass, replace
from typing import TYPE_CHECKING, ClassVar

import pandas
import torch
from torch import Tensor

from headloom.analysis.arguments import OneTrace, trace_of
from headloom.analysis.weights import (
    in_half_precision,
    keeps_all,
    largest_left_out,
    row_tiles,
    weights_of,
)
from headloom.errors import InputError
from headloom.formats.tokens import shown, visible
from headloom.formats.trace import TraceData, TraceLayer
from headloom.mechanism.drawn import Plotted
from headloom.mechanism.graph import AttentionGraph
from headloom.mechanism.matrix.attention_matrix import AttentionMatrix

#: Maximal number of a head's weights that are computed, beside the requested edges.
_LOOKED_UP = 256
#: Largest rounding error of a head's change in float32.
_ROUNDED = 1e-6


@dataclass(frozen=True)
class Change:
    """Edge in both traces: its weight in the first, and in the second.

    unkept: the unknown weight, "before" or "after", which is an upper bound; "": both are known.
    """

    query: int
    key: int
    before: float
    after: float
    unkept: str = ""

    @property
    def size(self) -> float:
        """Change of the edge; with an unknown weight, a lower bound."""
        grown = self.after - self.before
        if not self.unkept:
            return abs(grown)
        return max(0.0, grown if self.unkept == "before" else -grown)


@dataclass(frozen=True, eq=False, repr=False)
class Comparison(Plotted):
    """Difference between two traces.

    heads: a DataFrame with a row for each head, the most changed first: layer, other_layer, head,
        kind, distance (its total variation), entropy_change, name, and exact: whether the distance
        is of all weights; otherwise it is a lower bound. Its `attrs` name the layers of both.
    edges: the most changed edges, the most changed first, without unchanged ones:
        layer, head, query, key, before, after, change, and query_token, key_token,
        other_query_token, other_key_token: the tokens of both traces at both ends. unkept: the
        unknown weight, "before" or "after", whose value is an upper bound.
    tokens: number of tokens that differ, and of all tokens.
    notes: sentences about the comparison.

    `plot` draws the change of every head: layers are rows, heads columns.
    """

    _picture: ClassVar[str] = "changes"

    heads: pandas.DataFrame
    edges: pandas.DataFrame
    tokens: tuple[int, int]
    notes: tuple[str, ...]

    if not TYPE_CHECKING:

        def __getattr__(self, name: str) -> object:
            """Take methods of tables, such as sort_values and head, from `heads`."""
            import pandas

            if name[0] != "_" and hasattr(pandas.DataFrame, name):
                return getattr(self.heads, name)
            return super().__getattr__(name)

    @property
    def most(self) -> float:
        """Largest distance of a head; 0: none changed."""
        return float(self.heads["distance"].max())

    @property
    def exact(self) -> bool:
        """Whether all changes are exact."""
        return bool(self.heads["exact"].all())

    @property
    def changed(self) -> bool:
        """Whether a head changed by more than rounding."""
        return self.most >= _ROUNDED

    def to_pandas(self) -> pandas.DataFrame:
        """Return the table of heads."""
        return self.heads

    def __repr__(self) -> str:
        tables = [self.heads.head(10), self.edges.head(10)] if self.changed else []
        return "\n".join([*self.notes, *(table.to_string(index=False) for table in tables)])


def compare(
    first: OneTrace, second: OneTrace, *, exact: bool | None = None, edges: int = 20
) -> Comparison:
    """Find the heads and edges that changed most: see `headloom.compare`."""
    first, second = trace_of("compare", first), trace_of("compare", second)
    heads, changed = [], []
    for number, other in matched_layers(first, second):
        ours, theirs = first.layers[number], second.layers[other]
        apart, of_all = distance(ours, theirs, exact=exact)
        grown = theirs.graph.entropy.mean(-1) - ours.graph.entropy.mean(-1)
        columns = {
            "layer": number, "other_layer": other, "head": range(ours.heads), "kind": ours.kind,
            "distance": apart.numpy(), "entropy_change": grown.numpy(), "exact": of_all,
            "name": ours.name,
        }  # fmt: skip
        heads.append(pandas.DataFrame(columns))
        tokens = {
            f"{name}{end}_token": shown(getattr(layer, f"{end}_tokens"))
            for name, layer in (("", ours), ("other_", theirs))
            for end in ("query", "key")
        }
        for head in range(ours.heads):
            for edge in changed_edges(ours, theirs, head, edges, exact):
                ends = {
                    name: of[edge.query if "query" in name else edge.key]
                    for name, of in tokens.items()
                }
                row = {"layer": number, "head": head, **vars(edge), **ends}
                changed.append((edge.size, row | {"change": edge.after - edge.before}))
    changed.sort(key=lambda pair: -pair[0])
    pairs = [
        pair
        for name in first.sequences.keys() & second.sequences.keys()
        for pair in zip(shown(first.sequences[name]), shown(second.sequences[name]), strict=False)
    ]
    table = pandas.concat(heads).sort_values(
        "distance", ascending=False, kind="stable", ignore_index=True
    )
    edge_table = pandas.DataFrame([row for _, row in changed[:edges]], columns=_EDGES)
    layers, others = ([x.label(n) for n in range(len(x.layers))] for x in (first, second))
    table.attrs |= {"layers": layers, "other_layers": others}
    edge_table.attrs["layers"] = layers
    differ = sum(a != b for a, b in pairs), len(pairs)
    notes = [note for trace in (first, second) if (note := in_half_precision(trace.layers))]
    line = f"{differ[0]} of {differ[1]} tokens differ. {first_difference(first, second)}".rstrip()
    result = Comparison(table, edge_table, differ, (*dict.fromkeys(notes), line))
    return replace(result, notes=(*result.notes, _verdict(result)))


def _verdict(result: Comparison) -> str:
    """Return a sentence about the changes, which ends in a colon if tables follow."""
    if result.changed:
        least = "" if result.exact else ", of kept edges, at least"
        return f"Heads, by the share of mass that is elsewhere{least}:"
    if not result.exact:
        return "The kept edges are the same; others are not known."
    rounding = " but for what float32 rounds" if result.most else ""
    return f"The weights are equal{rounding}: none of the {len(result.heads)} heads changed."


_EDGES = [
    "layer", "head", "query", "key", "before", "after", "change", "query_token", "key_token",
    "other_query_token", "other_key_token", "unkept",
]  # fmt: skip


def first_difference(
    first: TraceData, second: TraceData, names: tuple[str, str] = ("the first", "the second")
) -> str:
    """Return a sentence about the first different token of two traces; "": all are equal.

    names: of the traces in the sentence.
    """
    if first.sequences.keys() != second.sequences.keys():
        kinds = [" and ".join(trace.sequences) or "nothing" for trace in (first, second)]
        return (
            f"The traces are of other kinds: {names[0]} has {kinds[0]}, {names[1]} has {kinds[1]}."
        )
    for sequence in first.sequences:
        both = [shown(trace.sequences[sequence]) for trace in (first, second)]
        of = "" if sequence == "tokens" else f" of the {sequence}"
        least = min(map(len, both))
        differ = (at for at, (a, b) in enumerate(zip(*both, strict=False)) if a != b)
        if (place := next(differ, least)) < least:
            ours, theirs = (visible(tokens[place], 40) for tokens in both)
            return (
                f"Token {place}{of} is the first that differs: “{ours}” in {names[0]}, “{theirs}” "
                f"in {names[1]}."
            )
        if len(both[0]) != len(both[1]):
            longer = int(len(both[1]) > least)
            return (
                f"There are {len(both[0]):,} tokens{of} in {names[0]}, {len(both[1]):,} in "
                f"{names[1]}: at token {least} only {names[longer]} goes on, with "
                f"“{visible(both[longer][least], 40)}”."
            )
    return ""


def matched_layers(first: TraceData, second: TraceData) -> list[tuple[int, int]]:
    """Return the numbers of the layers of one kind and index in both traces.

    Raises: InputError: no such layers, or a pair with other heads or numbers of tokens.
    """
    numbers = {(layer.kind, layer.index): number for number, layer in enumerate(second.layers)}
    pairs = [
        (number, numbers[layer.kind, layer.index])
        for number, layer in enumerate(first.layers)
        if (layer.kind, layer.index) in numbers
    ]
    for number, other in pairs:
        _check_shapes(first.layers[number], second.layers[other])
    if not pairs:
        kinds = [" and ".join(sorted({x.kind for x in t.layers})) for t in (first, second)]
        raise InputError(
            "compare: the traces have no layer of one kind and index in common: layers of the "
            f"first are {kinds[0]}, of the second {kinds[1]}. Compare traces of models of one kind."
        )
    return pairs


def _check_shapes(layer: TraceLayer, other: TraceLayer) -> None:
    """Raise an InputError for two layers with different heads or numbers of tokens."""
    if layer.shape != other.shape:
        sizes = "{} heads, {} queries and {} keys"
        raise InputError(
            f"compare: layer {layer.name} has {sizes.format(*layer.shape)} in the first, "
            f"{sizes.format(*other.shape)} in the second. Both need the same numbers of heads and "
            "tokens."
        )


def distance(
    first: TraceLayer, second: TraceLayer, *, exact: bool | None = None
) -> tuple[Tensor, bool]:
    """Return the mean total variation between the rows of each head of two layers, (heads,).

    Returns: also whether it is exact; otherwise it is a lower bound.
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
    return variation_of_edges(before, after)[0].float(), of_all


def variation_of_edges(first: AttentionGraph, second: AttentionGraph) -> tuple[Tensor, Tensor]:
    """Return bounds of the total variation of each head, (heads,), float64.

    Edges that neither kept are not in the bounds.
    """
    heads, queries, _ = first.shape
    least, most = torch.zeros(2, heads, queries, dtype=torch.float64)
    for graph, other in ((first, second), (second, first)):
        largest = largest_left_out(other)
        for head in range(heads):
            shared, weight = in_the_other(graph, other, head)
            weights = torch.where(graph.keys[head] >= 0, graph.weights[head], 0).double()
            # An edge that both kept is counted twice.
            both = torch.where(shared, (weights - weight).abs() / 2, 0).sum(-1)
            alone = torch.where(shared, 0, weights)
            least[head] += both + (alone - largest[head, :, None]).clamp(min=0).sum(-1)
            most[head] += both + alone.sum(-1)
    return least.clamp(max=2).mean(-1) / 2, most


def in_the_other(graph: AttentionGraph, other: AttentionGraph, head: int) -> tuple[Tensor, Tensor]:
    """Return whether each edge of one graph is kept in the other too, and its weight there."""
    shared, weights = [], []
    for start in range(0, max(1, graph.keys.shape[1]), 256):
        rows = slice(start, start + 256)
        keys, others = graph.keys[head, rows, :, None], other.keys[head, rows, None, :]
        same = (keys == others) & (keys >= 0)
        shared.append(same.any(-1))
        weights.append((same * other.weights[head, rows, None, :]).sum(-1).double())
    return torch.cat(shared), torch.cat(weights)


def changed_edges(
    first: TraceLayer, second: TraceLayer, head: int, wanted: int, exact: bool | None = None
) -> list[Change]:
    """Return the most changed edges of a head, among the kept ones of either trace.

    wanted: their number; more may be returned. exact: False: weights that were not kept are not
    computed. Otherwise up to 256 beside the wanted ones are, the ones that can have changed most.
    """
    changes = []
    for layer, other, name in ((first, second, "after"), (second, first, "before")):
        shared, weight = in_the_other(layer.graph, other.graph, head)
        kept = layer.graph.keys[head] >= 0
        if name == "before":  # count edges that both kept once
            kept = kept & ~shared
        weights = layer.graph.weights[head].double()
        largest = largest_left_out(other.graph)[head][:, None].expand_as(weights)
        matrix = None if exact is False else other.matrix
        # An unknown weight is between 0 and the largest that was left out.
        least = (
            (weights - largest).clamp(min=0)
            if matrix is None
            else torch.maximum(weights, largest - weights)
        )
        change = torch.where(shared, (weights - weight).abs(), least)
        # NaN is not a change.
        change = torch.where(kept, change, 0).nan_to_num(0).flatten()
        count = min(wanted + (0 if matrix is None else _LOOKED_UP), int((change > 0).sum()))
        for place in change.topk(count).indices.tolist():
            query, slot = divmod(place, weights.shape[1])
            key = int(layer.graph.keys[head, query, slot])
            value, unkept = float(weight[query, slot]), ""
            if not shared[query, slot] and float(largest[query, slot]) > 0:
                value = float(largest[query, slot] if matrix is None else matrix[head, query, key])
                unkept = name if matrix is None else ""
            ends = float(weights[query, slot]), value
            if not math.isnan(value) and (unkept or ends[0] != ends[1]):
                ends = ends if name == "after" else ends[::-1]
                changes.append(Change(query, key, *ends, unkept))
    return sorted(changes, key=lambda change: -change.size)
