"""A trace of a list of edges: who looks at whom, with what weight, and nothing else."""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass
from typing import Any

import numpy as np
import torch
from numpy.typing import NDArray

from headloom.errors import InputError
from headloom.formats.terms import Terms
from headloom.formats.trace import LayerInMemory, TraceData, TraceLayer
from headloom.mechanism.graph import AttentionGraph
from headloom.mechanism.masks import Mask
from headloom.tracing.given_layers import KINDS
from headloom.tracing.given_tokens import GivenTokens, names_of_kind
from headloom.tracing.recording.score_terms import as_rule, ranges_of
from headloom.tracing.sources.given_queries_keys import is_causal

__all__ = ["NEAR", "from_edges"]

#: How far from 1 the weights of a row may sum, as of numbers written with a few decimals.
NEAR = 1e-3

Columns = Mapping[str, NDArray[Any]]


@dataclass(frozen=True)
class _Rows:
    """The edges of a layer, sorted by row and weight, and where each stands in its row.

    row      head * queries + query of each edge
    place    its place in the row, strongest first
    shape    (heads, queries, keys)
    """

    row: NDArray[np.int64]
    place: NDArray[np.int64]
    shape: tuple[int, int, int]

    def slots(self, values: NDArray[Any], empty: float, kept: int) -> torch.Tensor:
        """A number for each edge, (heads, queries, kept)."""
        heads, queries, _ = self.shape
        whole = np.full((heads * queries, kept), empty, values.dtype)
        whole[self.row, self.place] = values
        return torch.from_numpy(whole.reshape(heads, queries, kept))

    def sums(self, values: NDArray[np.float64]) -> NDArray[np.float64]:
        """The sum over each row, (heads * queries,)."""
        heads, queries, _ = self.shape
        return np.bincount(self.row, values, heads * queries).astype(np.float64)


def from_edges(
    columns: Columns,
    *,
    mask: Mask | None,
    tokens: Any = None,
    tokenizer: Any = None,
    strongest: bool = False,
    kind: str | None = None,
    model: str | None = None,
) -> TraceData:
    """A trace of edges.

    What is not among them is not known: a row whose weights sum to less than 1 has the rest
    nowhere (`rest`), and then no entropy (NaN). A trace needs the strongest edges of each row, so
    that no other edge weighs more than the last.

    Args:
        columns: layer, head, query, key, weight of each edge; and perhaps score, name and kind of
            its layer, query_token and key_token.
        mask: who may look at whom; where some layers look from one sequence at another, in the
            layers of the decoder, whose others may look at all.
        tokens, tokenizer: see `headloom.from_queries_keys`; None: those of the columns, or numbers.
        strongest: whether the edges are the strongest ones of each row, which may lack others;
            else each row must be whole.
        kind: of the layers; None: that of the column, or by the mask.
        model: what the trace calls the model.

    Raises: InputError: weights that are none, an edge twice, rows that are not whole.
    """
    operation = "edges"
    _check(columns)
    layers = np.unique(columns["layer"])
    said = [_said(columns, "kind", number) or kind for number in layers]
    length = 1 + int(max(columns["query"].max(), columns["key"].max()))
    by_mask = "decoder" if is_causal(mask, length, length) else "encoder"
    kinds = [own_kind or by_mask for own_kind in said]
    for number, own_kind in zip(layers, kinds, strict=True):
        if own_kind not in KINDS:
            raise InputError(f"edges: layer {number}: kind {own_kind!r}; expected {KINDS}.")
    pair = "cross" in kinds
    if tokens is None:
        tokens = _tokens_of(columns, dict(zip(layers.tolist(), kinds, strict=True)), pair)
    sequences = GivenTokens(operation, tokens, tokenizer, 1, pair)
    reach = _reach(sequences, columns, dict(zip(layers.tolist(), kinds, strict=True)))
    made: list[TraceLayer] = []
    for number, own_kind in zip(layers, kinds, strict=True):
        own = {name: column[columns["layer"] == number] for name, column in columns.items()}
        path = _said(columns, "name", number) or f"layers.{number}"
        # Of an encoder-decoder the decoder alone may not look at all.
        own_mask = mask if not pair or own_kind == "decoder" else None
        lengths = _lengths(sequences, own_kind, own, reach)
        ends = sequences.ends(path, own_kind, *lengths)
        shape = (1 + int(own["head"].max()), *lengths)
        graph = _graph(f"edges of layer {number}", own, shape, own_mask, strongest)
        terms = Terms(as_rule(own_mask, *lengths, 1))
        made.append(
            TraceLayer(
                name=path,
                kind=own_kind,
                index=sum(layer.kind == own_kind for layer in made),
                shape=shape,
                queries_from=ends[0],
                keys_from=ends[1],
                query_tokens=sequences.of(ends[0], lengths[0], 0).names,
                key_tokens=sequences.of(ends[1], lengths[1], 0).names,
                scale=1.0,
                data=LayerInMemory(graph, known_terms=terms),
                positions="bias",
                mask=terms.rule,
            )
        )
    names = {layer.queries_from: layer.query_tokens for layer in made}
    names |= {layer.keys_from: layer.key_tokens for layer in made}
    known = {
        name: sequences.of(name, len(of), 0).known
        for name, of in names.items()
        if sequences.of(name, len(of), 0).known
    }
    return TraceData(names, tuple(made), {"name": model or "edges", "given": "edges"}, known)


def _check(columns: Columns) -> None:
    """Raise an InputError for numbers that no edge has."""
    if not len(columns["weight"]):
        raise InputError("edges: the table has no rows; expected one for each edge.")
    for name in ("layer", "head", "query", "key"):
        lowest, highest = int(columns[name].min()), int(columns[name].max())
        most = 2**15 - 1 if name in ("layer", "head") else 2**31 - 1
        if lowest < 0 or highest >= most:
            raise InputError(
                f"edges: the column {name} holds {lowest if lowest < 0 else highest}; expected "
                f"whole numbers from 0 to {most - 1:,}."
            )
    weights = columns["weight"]
    wrong = ~(np.isfinite(weights) & (weights >= 0) & (weights <= 1 + NEAR))
    if wrong.any():
        place = int(wrong.argmax())
        raise InputError(
            f"edges: a weight of {weights[place]:.6g} in row {place} of the table, and "
            f"{int(wrong.sum()):,} such; expected numbers from 0 to 1, after the softmax."
        )


def _said(columns: Columns, name: str, number: int) -> str | None:
    """What a column of texts says of a layer."""
    if name not in columns:
        return None
    said = set(columns[name][columns["layer"] == number])
    if len(said) > 1:
        raise InputError(
            f"edges: layer {number} has several texts in the column {name}: "
            f"{', '.join(sorted(said))[:80]}; expected one."
        )
    return str(said.pop())


def _tokens_of(
    columns: Columns, kinds: Mapping[int, str], pair: bool
) -> dict[str, list[str]] | None:
    """The tokens that the table names at the ends of its edges, of each sequence of which it names
    every one.

    kinds: of the layers, by their numbers; pair: whether some look from one sequence at another.
    """
    if "query_token" not in columns or "key_token" not in columns:
        return None
    ends: dict[str, list[tuple[NDArray[Any], NDArray[Any]]]] = {}
    for number, kind in kinds.items():
        own = columns["layer"] == number
        for name, what in zip(names_of_kind(kind, pair), ("query", "key"), strict=True):
            ends.setdefault(name, []).append((columns[what][own], columns[f"{what}_token"][own]))
    found = {}
    for name, parts in ends.items():
        positions, tokens = (np.concatenate(part) for part in zip(*parts, strict=True))
        there, first = np.unique(positions, return_index=True)
        if len(there) <= int(there[-1]):
            continue  # a position without an edge has no name here
        names = tokens[first]
        wrong = names[positions] != tokens
        if wrong.any():
            place = int(wrong.argmax())
            of = f" of the {name}" if pair else ""
            raise InputError(
                f"edges: position {positions[place]}{of} is {names[positions[place]]!r:.40} in one "
                f"row of the table and {tokens[place]!r:.40} in another; expected one token."
            )
        found[name] = [str(name) for name in names]
    return found or None


def _reach(sequences: GivenTokens, columns: Columns, kinds: Mapping[int, str]) -> dict[str, int]:
    """How many positions the edges reach of each sequence that looks at itself."""
    reach = {sequences.names_of(kind)[0]: 0 for kind in kinds.values() if kind != "cross"}
    for number, kind in kinds.items():
        own = columns["layer"] == number
        for name, what in zip(sequences.names_of(kind), ("query", "key"), strict=True):
            if name in reach:
                reach[name] = max(reach[name], 1 + int(columns[what][own].max()))
    return reach


def _lengths(
    sequences: GivenTokens, kind: str, own: Columns, reach: Mapping[str, int]
) -> tuple[int, int]:
    """How many queries and keys a layer has: as many as tokens, or as the edges reach."""
    names = sequences.names_of(kind)
    first, second = (
        sequences.length(name) or reach.get(name, 1 + int(own[what].max()))
        for name, what in zip(names, ("query", "key"), strict=True)
    )
    for what, size in (("query", first), ("key", second)):
        if int(own[what].max()) >= size:
            raise InputError(
                f"edges: a {what} at position {int(own[what].max())}, and {size} tokens; expected "
                "a token for each position, from 0."
            )
    return first, second


def _graph(
    label: str, own: Columns, shape: tuple[int, int, int], mask: Mask | None, strongest: bool
) -> AttentionGraph:
    """The graph of the edges of a layer."""
    heads, queries, keys = shape
    rows = own["head"] * queries + own["query"]
    order = np.lexsort((own["key"], -own["weight"], rows))
    rows, weights, places = rows[order], own["weight"][order], own["key"][order]
    first = np.searchsorted(rows, np.arange(heads * queries))
    edges = _Rows(rows, np.arange(len(rows)) - first[rows], shape)
    count = _count(label, rows, places, shape, mask)
    sums = edges.sums(weights)
    looks = count > 0
    _check_sums(label, sums, looks, queries, strongest)
    scores = np.log(np.maximum(weights, np.finfo(np.float32).tiny))
    lse = np.where(looks, 0, -np.inf)
    if "score" in own:
        scores = own["score"][order]
        lse = _lse(label, edges, weights, scores)
    far = np.abs(1 - sums) > NEAR
    # What a list of the strongest edges lacks is on other keys, however little of a row it is.
    lacks = far | (strongest & (np.bincount(rows, minlength=len(count)) < count))
    rest = np.where(looks & lacks, np.maximum(1 - sums, 0), 0)
    terms = -weights * np.log(np.where(weights > 0, weights, 1))
    entropy = np.where(looks & far, np.nan, edges.sums(terms))
    kept = int(edges.place.max()) + 1

    def per_row(values: NDArray[Any]) -> torch.Tensor:
        return torch.from_numpy(values.reshape(heads, queries))

    return AttentionGraph(
        keys=edges.slots(places.astype(np.int32), -1, kept),
        scores=edges.slots(scores.astype(np.float32), -np.inf, kept),
        weights=edges.slots(weights.astype(np.float32), 0, kept),
        lse=per_row(lse.astype(np.float32)),
        entropy=per_row(entropy.astype(np.float32)),
        rest=per_row(rest.astype(np.float32)),
        count=per_row(count.astype(np.int32)),
        length=keys,
    )


def _count(
    label: str,
    rows: NDArray[np.int64],
    places: NDArray[np.int64],
    shape: tuple[int, int, int],
    mask: Mask | None,
) -> NDArray[np.int64]:
    """How many keys each row may look at, (heads * queries,); every edge is at one of them."""
    heads, queries, keys = shape
    cells = rows * keys + places
    whole, times = np.unique(cells, return_counts=True)
    if len(whole) < len(cells):
        cell = int(whole[times.argmax()])
        head, query = divmod(cell // keys, queries)
        raise InputError(
            f"{label}: head {head}, query {query}, key {cell % keys} is there "
            f"{int(times.max())} times; expected each edge once."
        )
    if mask is None:
        return np.full(heads * queries, keys)
    hidden: NDArray[Any]
    shown: NDArray[Any]
    ranges = ranges_of(mask, queries, keys)
    if ranges is not None:  # no cell for each query and key
        first, end = (np.asarray(part.expand(queries)) for part in ranges)
        of_edges = rows % queries
        hidden = (places < first[of_edges]) | (places >= end[of_edges])
        shown = np.maximum(end - first, 0)
    else:
        cells = mask.dense(queries, keys)[0, 0].expand(queries, keys).numpy()
        hidden, shown = np.asarray(~cells[rows % queries, places]), cells.sum(1)
    if hidden.any():
        row, key = int(rows[hidden.argmax()]), int(places[hidden.argmax()])
        raise InputError(
            f"{label}: head {row // queries}, query {row % queries} looks at key {key}, which the "
            f"mask hides, and {int(hidden.sum()):,} such edges; expected none. Give the mask that "
            "the model has."
        )
    return np.tile(shown, heads)


def _check_sums(
    label: str,
    sums: NDArray[np.float64],
    looks: NDArray[np.bool_],
    queries: int,
    strongest: bool,
) -> None:
    """Raise an InputError for rows that are not whole, or more than that."""
    over = sums > 1 + NEAR
    wrong = over if strongest else over | (looks & (sums < 1 - NEAR))
    if wrong.any():
        row = int(wrong.argmax())
        where = f"{label}: head {row // queries}, query {row % queries}"
        if over[row]:
            raise InputError(
                f"{where}: its weights sum to {sums[row]:.6g}; expected 1 at most, after the "
                "softmax."
            )
        raise InputError(
            f"{where}: its weights sum to {sums[row]:.6g}, and {int(wrong.sum()):,} rows are not "
            "whole; expected 1. Where the list holds the strongest edges of each row, say so "
            "(--strongest): the rest of each row is then kept as not known."
        )


def _lse(
    label: str,
    edges: _Rows,
    weights: NDArray[np.float64],
    scores: NDArray[np.float64],
) -> NDArray[np.float64]:
    """The log-sum-exp of each row: of its strongest edge, ``score - log weight``."""
    heads, queries, _ = edges.shape
    lse = np.zeros(heads * queries)
    there = weights > 1e-6
    own = np.where(there, scores - np.log(np.where(there, weights, 1)), 0)
    strong = (edges.place == 0) & there
    lse[edges.row[strong]] = own[strong]
    differs = there & ~(np.abs(own - lse[edges.row]) <= 1e-2)
    if differs.any():
        row = int(edges.row[differs.argmax()])
        raise InputError(
            f"{label}: head {row // queries}, query {row % queries}: its scores are not those of "
            "its weights: score - log(weight) differs from edge to edge. Leave the column score "
            "out, or give the scores before the softmax."
        )
    return lse
