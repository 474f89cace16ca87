"""A trace of a table of edges: who looks at whom, with what weight, and nothing else."""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass
from pathlib import Path

import numpy as np
import torch
from numpy.typing import ArrayLike, NDArray

from headloom.errors import InputError
from headloom.formats.trace import TraceData
from headloom.mechanism.graph import All, AttentionGraph
from headloom.mechanism.masks import Mask
from headloom.tracing.given import KINDS, mask_is_causal
from headloom.tracing.given_tokens import GivenTokens, TokensGiven, ends_of_kind, given_traces
from headloom.tracing.recording.score_terms import ranges_of
from headloom.tracing.recording.session import Session
from headloom.tracing.sources.tensors import weights_call

__all__ = ["NEAR", "from_edges"]

#: How far from 1 the weights of a row may sum, as of numbers written with a few decimals.
NEAR = 1e-3

_WHOLE = ("layer", "head", "query", "key")
_TEXTS = ("name", "kind", "query_token", "key_token")

Whole = NDArray[np.int64]


@dataclass(frozen=True)
class _Edges:
    """The columns of a table: whole numbers, weights, and texts where there are some."""

    whole: dict[str, Whole]
    weight: NDArray[np.float64]
    texts: dict[str, NDArray[np.str_]]

    def of_layer(self, number: int) -> _Edges:
        own = self.whole["layer"] == number
        return _Edges(
            {name: column[own] for name, column in self.whole.items()},
            self.weight[own],
            {name: column[own] for name, column in self.texts.items()},
        )


def from_edges(
    table: Mapping[str, ArrayLike],
    *,
    mask: Mask | None,
    tokens: TokensGiven | Mapping[str, TokensGiven] | None = None,
    tokenizer: object = None,
    strongest: bool = False,
    kind: str | None = None,
    model: str | None = None,
    save: Path | str | None = None,
    overwrite: bool = False,
) -> TraceData:
    """Make a trace of a table with a row for each edge.

    What is not in the table is not known: a row of the matrix whose weights sum to less than 1 has
    the rest nowhere (`rest`), and then no entropy (NaN).

    Args:
        table: columns layer, head, query, key (from 0) and weight; and perhaps name and kind of
            the layer, query_token and key_token. A dict of arrays, or a DataFrame.
        mask: who may look at whom; where some layers look from one sequence at another, in the
            layers of the decoder, whose others may look at all.
        tokens, tokenizer: see `headloom.from_queries_keys`; None: those of the table, or numbers.
        strongest: whether the edges are the strongest ones of each row, which may lack others;
            else each row must be whole.
        kind: of the layers; None: that of the column, or by the mask.
        model, save, overwrite: see `headloom.from_queries_keys`.

    Raises: InputError: weights that are none, an edge twice or where the mask hides it, rows that
        are not whole.

    >>> table = {"layer": [0, 0], "head": [0, 0], "query": [0, 1], "key": [0, 0], "weight": [1, 1]}
    >>> from_edges(table, mask=None).layers[0].graph.adjacency(0).toarray().tolist()
    [[1.0, 0.0], [1.0, 0.0]]
    """
    edges = _checked(table)
    of_layers = {
        number: edges.of_layer(number) for number in np.unique(edges.whole["layer"]).tolist()
    }
    length = 1 + int(max(edges.whole["query"].max(), edges.whole["key"].max()))
    by_mask = "decoder" if mask_is_causal(mask, length, length) else "encoder"
    kinds = {
        number: _only("kind", number, own) or kind or by_mask for number, own in of_layers.items()
    }
    if wrong := set(kinds.values()) - set(KINDS):
        raise InputError(f"edges of kind {wrong.pop()!r}; expected {', '.join(KINDS)}.")
    pair = "cross" in kinds.values()
    ends: dict[str, list[tuple[int, str]]] = {}
    for number, own_kind in kinds.items():
        for name, side in zip(ends_of_kind(own_kind, pair), ("query", "key"), strict=True):
            ends.setdefault(name, []).append((number, side))
    reach: dict[str, int] = {}
    of_table: dict[str, list[str]] = {}
    for name, sides in ends.items():
        places = np.concatenate([of_layers[number].whole[side] for number, side in sides])
        reach[name] = 1 + int(places.max())
        if {"query_token", "key_token"} <= set(edges.texts):
            texts = np.concatenate(
                [of_layers[number].texts[f"{side}_token"] for number, side in sides]
            )
            there, first = np.unique(places, return_index=True)
            if len(there) == reach[name]:  # else some position without an edge has no name
                of_table[name] = _tokens(name, texts[first], places, texts)
    given = tokens if isinstance(tokens, Mapping) or tokens is None else {"tokens": tokens}
    sequences = GivenTokens(given or of_table or None, tokenizer, 1, pair)
    for name, own_tokens in (given or {}).items():
        if len(own_tokens) < reach.get(name, 0):
            raise InputError(
                f"edges: a position {reach[name] - 1}, and {len(own_tokens)} tokens; expected a "
                "token for each position, from 0."
            )
        reach[name] = len(own_tokens)

    def record(session: Session) -> None:
        for number, own in of_layers.items():
            path = _only("name", number, own) or f"layers.{number}"
            # Of an encoder-decoder the decoder alone may not look at all.
            own_mask = mask if not pair or kinds[number] == "decoder" else None
            queries, keys = (reach[name] for name in ends_of_kind(kinds[number], pair))
            shape = (1 + int(own.whole["head"].max()), queries, keys)
            graph = _graph(f"edges of layer {number}", own, shape, own_mask, strongest)
            session.take(weights_call(path, kinds[number], graph, own_mask), graph)

    (trace,) = given_traces(sequences, record, "edges", model, All(), save, overwrite=overwrite)
    return trace


def _checked(table: Mapping[str, ArrayLike]) -> _Edges:
    """The columns that are read, which hold what edges have."""
    if missing := [name for name in (*_WHOLE, "weight") if name not in table]:
        raise InputError(
            f"edges: no column {', '.join(missing)}; expected {', '.join(_WHOLE)}, weight."
        )
    weight = np.asarray(table["weight"], dtype=np.float64)
    if not len(weight):
        raise InputError("edges: the table has no rows; expected one for each edge.")
    whole = {name: np.asarray(table[name]) for name in _WHOLE}
    for name, column in whole.items():
        most = 2**15 - 2 if name in ("layer", "head") else 2**31 - 2
        if column.dtype.kind not in "iu" or column.min() < 0 or column.max() > most:
            raise InputError(
                f"edges: the column {name} holds {column.dtype} from {column.min()} to "
                f"{column.max()}; expected whole numbers from 0 to {most:,}."
            )
    wrong = ~(np.isfinite(weight) & (weight >= 0) & (weight <= 1 + NEAR))
    if wrong.any():
        place = int(wrong.argmax())
        raise InputError(
            f"edges: a weight of {weight[place]:.6g} in row {place} of the table, and "
            f"{int(wrong.sum()):,} such; expected numbers from 0 to 1, after the softmax."
        )
    return _Edges(
        {name: column.astype(np.int64) for name, column in whole.items()},
        weight,
        {name: np.asarray(table[name], dtype=str) for name in _TEXTS if name in table},
    )


def _only(name: str, number: int, own: _Edges) -> str | None:
    """The one text of a layer in a column; None: there is no such column."""
    texts = sorted(set(own.texts[name].tolist())) if name in own.texts else []
    if len(texts) > 1:
        raise InputError(
            f"edges: layer {number} has several texts in the column {name}: "
            f"{', '.join(texts)[:80]}; expected one."
        )
    return str(texts[0]) if texts else None


def _tokens(
    name: str, names: NDArray[np.str_], places: Whole, texts: NDArray[np.str_]
) -> list[str]:
    """The tokens of a sequence, the same wherever the table names them."""
    wrong = names[places] != texts
    if wrong.any():
        place = int(wrong.argmax())
        raise InputError(
            f"edges: position {places[place]} of the {name} is {names[places[place]]!r:.40} in one "
            f"row of the table and {texts[place]!r:.40} in another; expected one token."
        )
    return [str(token) for token in names]


def _graph(
    label: str, own: _Edges, shape: tuple[int, int, int], mask: Mask | None, strongest: bool
) -> AttentionGraph:
    """The graph of the edges of a layer, in a batch of one."""
    heads, queries, keys = shape
    rows, edge_keys = own.whole["head"] * queries + own.whole["query"], own.whole["key"]
    order = np.lexsort((edge_keys, -own.weight, rows))
    row, weight, key = rows[order], own.weight[order], edge_keys[order]
    place = np.arange(len(row)) - np.searchsorted(row, np.arange(heads * queries))[row]
    cells, times = np.unique(row * keys + key, return_counts=True)
    if times.max() > 1:
        where = _where(label, int(cells[times.argmax()]) // keys, queries)
        raise InputError(f"{where}: an edge {times.max()} times; expected each once.")
    count = _count(label, row, key, shape, mask)
    sums = np.bincount(row, weight, heads * queries)
    far = np.abs(1 - sums) > NEAR
    wrong = (sums > 1 + NEAR) | ((count > 0) & far & (not strongest))
    if wrong.any():
        raise InputError(
            f"{_where(label, int(wrong.argmax()), queries)}: its weights sum to "
            f"{sums[wrong][0]:.6g}, and {int(wrong.sum()):,} rows are not whole; expected 1. Where "
            "the list holds the strongest edges of each row, say so (strongest=True, --strongest)."
        )
    # What a list of the strongest edges lacks is on other keys, however little of a row it is.
    lacks = far | (strongest & (np.bincount(row, minlength=len(count)) < count))
    rest = np.where((count > 0) & lacks, np.maximum(1 - sums, 0), 0)
    terms = -weight * np.log(np.where(weight > 0, weight, 1))
    entropy = np.bincount(row, terms, heads * queries)
    entropy[(count > 0) & far] = np.nan
    logarithms = np.log(np.maximum(weight, np.finfo(np.float32).tiny))

    def slots(
        values: Whole | NDArray[np.float64], empty: float, dtype: torch.dtype
    ) -> torch.Tensor:
        whole = np.full((heads * queries, int(place.max()) + 1), float(empty))
        whole[row, place] = values
        return torch.from_numpy(whole).to(dtype).reshape(1, heads, queries, -1)

    def per_row(
        values: Whole | NDArray[np.float64], dtype: torch.dtype = torch.float32
    ) -> torch.Tensor:
        return torch.from_numpy(values).to(dtype).reshape(1, heads, queries)

    return AttentionGraph(
        keys=slots(key, -1, torch.int32),
        scores=slots(logarithms, -np.inf, torch.float32),
        weights=slots(weight, 0, torch.float32),
        lse=per_row(np.where(count > 0, 0, -np.inf)),
        entropy=per_row(entropy),
        rest=per_row(rest),
        count=per_row(count, torch.int32),
        length=keys,
    )


def _where(label: str, row: int, queries: int) -> str:
    return f"{label}: head {row // queries}, query {row % queries}"


def _count(
    label: str,
    row: Whole,
    key: Whole,
    shape: tuple[int, int, int],
    mask: Mask | None,
) -> Whole:
    """How many keys each row may look at, (heads * queries,); every edge is at one of them."""
    heads, queries, keys = shape
    ranges = ranges_of(mask, queries, keys)
    if mask is not None and ranges is None:
        shown = mask.dense(queries, keys)[0, 0].expand(queries, keys).numpy()
        hidden, count = ~shown[row % queries, key], shown.sum(1)
    else:  # no cell for each query and key
        assert ranges is not None
        first, end = (np.asarray(part.expand(queries)) for part in ranges)
        hidden = (key < first[row % queries]) | (key >= end[row % queries])
        count = np.maximum(end - first, 0)
    if hidden.any():
        place = int(hidden.argmax())
        raise InputError(
            f"{_where(label, int(row[place]), queries)} looks at key {key[place]}, which the mask "
            f"hides, and {int(hidden.sum()):,} such edges; expected none."
        )
    return np.tile(count, heads)
