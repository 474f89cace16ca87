"""Trace from a table of edges: query, key and weight."""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import replace
from pathlib import Path
from typing import Any

import numpy as np
import torch
from numpy.typing import ArrayLike, NDArray
from torch import Tensor

from headloom.errors import InputError
from headloom.formats.trace import TraceData
from headloom.mechanism.graph import All, AttentionGraph
from headloom.mechanism.masks import Mask, MaskLike, read_mask
from headloom.tracing.given import given_traces, mask_is_causal
from headloom.tracing.given_sequences import (
    ENDS,
    GivenSequences,
    TokensGiven,
    TokensOfSequence,
)
from headloom.tracing.options import TraceOptions
from headloom.tracing.recording.score_terms import ranges_of
from headloom.tracing.recording.session import Session
from headloom.tracing.sources.graphs import graph_of_edges
from headloom.tracing.sources.tensors import weights_call

#: Tolerance of a row's sum, which should be 1: tables are written with a few decimals.
_NEAR = 1e-3

_WHOLE = ("layer", "head", "query", "key")
_TEXTS = ("name", "kind", "query_token", "key_token")

Whole = NDArray[np.int64]
#: Columns of a table, or their rows for one layer.
Columns = dict[str, NDArray[Any]]


def from_edges(
    table: Mapping[str, ArrayLike],
    *,
    mask: MaskLike,
    tokens: TokensGiven | None = None,
    tokenizer: object = None,
    strongest: bool = False,
    kind: str | None = None,
    model: str | None = None,
    save: Path | str | None = None,
    overwrite: bool = False,
) -> TraceData:
    """Make a trace from a table with a row for each edge.

    Edges missing from the table are unknown: a query whose weights sum to less than 1 has the rest
    as `rest`, and no entropy (NaN).

    Args:
        table: columns layer, head, query, key (from 0) and weight; optional: name and kind of the
            layer, query_token and key_token. A dict of arrays, or a DataFrame.
        mask: of all layers; of an encoder-decoder, of the decoder's self-attention only.
        tokens: see `headloom.from_queries_keys`; None: tokens of the table, or numbers.
        tokenizer: turns ids into names.
        strongest: whether the table holds only the strongest edges of each row; otherwise each row
            must be complete.
        kind: of the layers; None: from the column, or from the mask.
        model: see `headloom.from_queries_keys`, as for save and overwrite.
        save: a folder to write the trace to.
        overwrite: whether to replace an existing trace.

    Raises: InputError: weights outside 0 to 1, an edge twice or at a hidden key, incomplete rows.

    >>> table = {"layer": [0, 0], "head": [0, 0], "query": [0, 1], "key": [0, 0], "weight": [1, 1]}
    >>> from_edges(table, mask=None).layers[0].graph.adjacency(0).toarray().tolist()
    [[1.0, 0.0], [1.0, 0.0]]
    """
    columns, mask = _checked(table), read_mask(mask)
    layers: dict[int, Columns] = {
        number: {name: column[columns["layer"] == number] for name, column in columns.items()}
        for number in np.unique(columns["layer"]).tolist()
    }
    length = 1 + int(max(columns["query"].max(), columns["key"].max()))
    kind = kind or ("decoder" if mask_is_causal(mask, length, length) else "encoder")
    kinds = {n: str(layer["kind"][0]) if "kind" in layer else kind for n, layer in layers.items()}
    if wrong := set(kinds.values()) - set(ENDS):
        raise InputError(f"edges of kind {wrong.pop()!r}; expected {', '.join(ENDS)}.")
    pair = "cross" in kinds.values()
    ends = {n: ENDS[layer] if pair else ("tokens", "tokens") for n, layer in kinds.items()}
    reach, named = _sequences(layers, ends)
    if tokens is not None:
        named = {**tokens} if isinstance(tokens, Mapping) else {"tokens": tokens}
    reach |= {name: max(reach.get(name, 0), len(texts)) for name, texts in named.items()}

    def record(session: Session) -> None:
        for number, layer in layers.items():
            path = str(layer["name"][0]) if "name" in layer else f"layers.{number}"
            # In an encoder-decoder, only the decoder's self-attention is masked.
            own_mask = mask if not pair or kinds[number] == "decoder" else None
            queries, keys = (reach[name] for name in ends[number])
            shape = 1 + int(layer["head"].max()), queries, keys
            graph = _graph(f"edges of layer {number}", layer, shape, own_mask, strongest)
            session.take(weights_call(path, kinds[number], graph, own_mask), graph)

    sequences = GivenSequences(named or None, tokenizer, 1, pair)
    options = TraceOptions(keep=All(), save=save, overwrite=overwrite, verify=False, sampled=False)
    (trace,) = given_traces("edges", model, sequences, options, record)
    return trace


def _checked(table: Mapping[str, ArrayLike]) -> Columns:
    """Return the columns that edges need, checked."""
    if missing := [name for name in (*_WHOLE, "weight") if name not in table]:
        raise InputError(
            f"edges: no column {', '.join(missing)}; expected {', '.join(_WHOLE)}, weight."
        )
    weight = np.asarray(table["weight"], dtype=np.float64)
    if not len(weight):
        raise InputError("edges: the table has no rows; expected one for each edge.")
    columns: Columns = {name: np.asarray(table[name], str) for name in _TEXTS if name in table}
    for name in _WHOLE:
        column = np.asarray(table[name])
        most = 2**15 - 2 if name in ("layer", "head") else 2**31 - 2
        if column.dtype.kind not in "iu" or column.min() < 0 or column.max() > most:
            raise InputError(
                f"edges: the column {name} holds {column.dtype} from {column.min()} to "
                f"{column.max()}; expected whole numbers from 0 to {most:,}."
            )
        columns[name] = column.astype(np.int64)
    wrong = ~((weight >= 0) & (weight <= 1 + _NEAR))
    if wrong.any():
        place = int(wrong.argmax())
        raise InputError(
            f"edges: a weight of {weight[place]:.6g} in row {place} of the table "
            f"({int(wrong.sum()):,} such rows); expected numbers from 0 to 1, after the softmax."
        )
    return {**columns, "weight": weight}


def _sequences(
    layers: dict[int, Columns], ends: dict[int, tuple[str, str]]
) -> tuple[dict[str, int], dict[str, TokensOfSequence]]:
    """Return the length of each sequence, and its tokens where the table names every position."""
    parts: dict[str, list[tuple[Columns, str]]] = {}
    for number, columns in layers.items():
        for name, side in zip(ends[number], ("query", "key"), strict=True):
            parts.setdefault(name, []).append((columns, side))
    reach: dict[str, int] = {}
    tokens: dict[str, TokensOfSequence] = {}
    for name, sides in parts.items():
        places = np.concatenate([columns[side] for columns, side in sides])
        reach[name] = 1 + int(places.max())
        if not {"query_token", "key_token"} <= sides[0][0].keys():
            continue
        texts = np.concatenate([columns[f"{side}_token"] for columns, side in sides])
        positions, first = np.unique(places, return_index=True)
        wrong = texts[first][np.searchsorted(positions, places)] != texts
        if wrong.any():
            place = int(wrong.argmax())
            raise InputError(
                f"edges: position {places[place]} of the {name} is {texts[place]!r:.40} in one row "
                "of the table and another token elsewhere; expected one."
            )
        if len(positions) == reach[name]:
            tokens[name] = texts[first].tolist()
    return reach, tokens


def _graph(
    label: str, columns: Columns, shape: tuple[int, int, int], mask: Mask | None, strongest: bool
) -> AttentionGraph:
    """Return the graph of a layer's edges, in a batch of one."""
    heads, queries, keys = shape
    query, key, weight = columns["query"], columns["key"], columns["weight"]
    row = columns["head"] * queries + query

    def refuse(wrong: NDArray[np.bool_], rows: Whole, problem: str) -> None:
        if wrong.any():
            at = int(rows[wrong][0])
            where = f"{label}: head {at // queries}, query {at % queries}"
            raise InputError(f"{where}: {problem} ({int(wrong.sum()):,} such).")

    first, times = np.unique(row * keys + key, return_counts=True)
    refuse(times > 1, first // keys, "an edge occurs twice; expected once")
    count, hidden = _visible(mask, query, key, queries, keys)
    refuse(hidden, row, "an edge at a key that the mask hides; expected none")
    count = np.tile(count, heads)
    sums = np.bincount(row, weight, heads * queries)
    far = np.abs(1 - sums) > _NEAR
    wrong = (sums > 1 + _NEAR) | ((count > 0) & far & (not strongest))
    refuse(
        wrong, np.arange(len(sums)),
        f"its weights sum to {sums[wrong][:1].sum():.6g}; expected 1. If the table holds only the "
        "strongest edges of each row, give strongest=True (--strongest)",
    )  # fmt: skip
    # A list of the strongest edges lacks other keys, however small their weights.
    lacks = far | (strongest & (np.bincount(row, minlength=len(count)) < count))
    rest = np.where((count > 0) & lacks, np.maximum(1 - sums, 0), 0)
    rows, ends, weights = map(torch.from_numpy, (row, key, weight))
    graph = graph_of_edges(rows, ends, weights, len(count), keys, All())

    def per_row(values: Tensor | NDArray[np.generic]) -> Tensor:
        return torch.as_tensor(values).float().reshape(1, heads, queries)

    weights = graph.weights.reshape(1, heads, queries, -1)
    edge_keys = graph.keys.reshape(weights.shape)
    scores = weights.clamp(min=torch.finfo(torch.float32).tiny).log()
    return replace(
        graph,
        keys=edge_keys,
        scores=scores.masked_fill(edge_keys < 0, -torch.inf),
        weights=weights,
        lse=per_row(np.where(count > 0, 0, -np.inf)),
        entropy=per_row(graph.entropy).masked_fill(per_row((count > 0) & far).bool(), torch.nan),
        rest=per_row(rest),
        count=per_row(count).int(),
    )


def _visible(
    mask: Mask | None, query: Whole, key: Whole, queries: int, keys: int
) -> tuple[Whole, NDArray[np.bool_]]:
    """Return the number of visible keys of each query, and whether the mask hides each edge."""
    ranges = ranges_of(mask, queries, keys)
    if mask is not None and ranges is None:
        shown = mask.dense(queries, keys)[0, 0].expand(queries, keys).numpy()
        return shown.sum(1), ~shown[query, key]
    assert ranges is not None
    first, end = (part.expand(queries).numpy() for part in ranges)  # no cell for each pair
    return np.maximum(end - first, 0), (key < first[query]) | (key >= end[query])
