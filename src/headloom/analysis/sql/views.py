"""A trace, or many, as views of a DuckDB database: read where they lie, never changed.

    edges     layer, head, query, key, score, weight: the kept edges
    rows      layer, head, query, lse, entropy, rest, count
    keys      layer, kv_head, key, value_norm: |v_j|, of traces that know it
    received  layer, head, key, received, received_most, received_last: what a key receives from
              all queries, of traces that know it (received_last is NaN where it was not asked for)
    tokens    sequence, position, token, text, special, start, end, seconds, image, tile,
              patch_row, patch_column: token as the vocabulary spells it, text what it says; end is
              exclusive; seconds are those of a place of a sound, the last four of a patch of an
              image; null where the trace does not know it
    layers    layer, name, kind, index, heads, queries, keys, queries_from, keys_from, scale,
              positions, mask, softcap, deviation
    heads     layer, head, role, score, ...: what `Trace.heads` says; made when it is asked for
    named     edges with the tokens at both ends, query_token and key_token, their texts,
              query_text and key_text, and the layer's kind

Positions count from 0. Of several traces, every view has a first column, `trace`.
"""

from __future__ import annotations

from collections.abc import Callable, Collection, Mapping
from pathlib import Path

import pyarrow as pa

from headloom.analysis.sql.database import VIEWS, Part
from headloom.errors import DataError
from headloom.formats.layer_data import StoredLayer
from headloom.formats.manifest import COLUMNS, EDGES, KEYS, RECEIVED, ROWS
from headloom.formats.tokens import shown
from headloom.formats.trace import TraceData, TraceLayer
from headloom.formats.trace_writer import (
    edge_table,
    key_table,
    received_table,
    row_table,
)

__all__ = ["stored_folder", "view_parts"]


def stored_folder(trace: TraceData) -> Path | None:
    """The folder that a trace lies in, whole; None: it is in memory, or a part of another."""
    folders = set()
    for number, layer in enumerate(trace.layers):
        if not isinstance(layer.data, StoredLayer) or layer.data.number != number:
            return None
        folders.add(layer.data.folder)
    return folders.pop() if len(folders) == 1 else None


def view_parts(
    trace: TraceData | Mapping[str, TraceData],
    asked: Collection[str],
    made: Collection[str] = VIEWS,
) -> dict[str, list[Part]]:
    """What the views hold: the Parquet files of saved traces, tables of unsaved ones.

    Args:
        trace: one; or several by name, and then every view has a column `trace`.
        asked: the views that will be read: their files are held against their digests first, and
            `heads` is made, which has to be computed.
        made: of unsaved traces, the views whose tables are made, besides `heads`.

    Raises: DataError: a file that will be read is not as it was written.
    """
    column = not isinstance(trace, TraceData)
    traces = {"trace": trace} if isinstance(trace, TraceData) else trace
    views: dict[str, list[Part]] = {}
    tables: tuple[tuple[str, str, Callable[[int, TraceLayer], pa.Table | None]], ...] = (
        ("edges", EDGES, lambda number, layer: edge_table(number, layer.graph)),
        ("rows", ROWS, lambda number, layer: row_table(number, layer.graph)),
        ("keys", KEYS, _keys),
        ("received", RECEIVED, _received),
    )
    for view, file, table in tables:
        if view in asked:
            _verify(traces, file)
        parts = _parts(traces, file, table if view in made else None, column)
        if view in made and not parts:
            if view not in _EMPTY:
                raise DataError(
                    f"query: {file} is gone, which every trace has. Trace again, or restore it."
                )
            parts = [Part("" if column else None, _EMPTY[view])]
        if parts:
            views[view] = parts
    whole: tuple[tuple[str, Callable[[TraceData], pa.Table], Collection[str]], ...] = (
        ("tokens", _tokens, made), ("layers", _layers, made), ("heads", _heads, asked),
    )  # fmt: skip
    for view, whole_table, needed in whole:
        if view in needed:
            views[view] = [Part(None, _stack(traces, whole_table, column))]
    return views


def _verify(traces: Mapping[str, TraceData], file: str) -> None:
    """Hold a file of every saved trace against its digest."""
    for trace in traces.values():
        folder, data = stored_folder(trace), trace.layers[0].data if trace.layers else None
        if folder is not None and isinstance(data, StoredLayer):
            data.verify(file)


def _parts(
    traces: Mapping[str, TraceData],
    file: str,
    table: Callable[[int, TraceLayer], pa.Table | None] | None,
    column: bool,
) -> list[Part]:
    """The Parquet file of each saved trace, and a table of each other one; None: no tables."""
    parts = []
    for name, trace in traces.items():
        folder = stored_folder(trace)
        if folder is not None:
            if (folder / file).exists():
                parts.append(Part(name, str((folder / file).absolute())))
        elif table is not None:
            tables = [table(place, layer) for place, layer in enumerate(trace.layers)]
            there = [one for one in tables if one is not None]
            if there:
                parts.append(Part(name if column else None, pa.concat_tables(there)))
    return parts


def _stack(
    traces: Mapping[str, TraceData], table: Callable[[TraceData], pa.Table], column: bool
) -> pa.Table:
    parts = []
    for name, trace in traces.items():
        part = table(trace)
        if column:
            part = part.add_column(0, "trace", pa.repeat(name, part.num_rows))
        parts.append(part)
    return pa.concat_tables(parts, promote_options="default")


def _keys(number: int, layer: TraceLayer) -> pa.Table | None:
    return None if layer.value_norms is None else key_table(number, layer.value_norms)


def _received(number: int, layer: TraceLayer) -> pa.Table | None:
    return None if layer.graph.received is None else received_table(number, layer.graph)


def _empty(names: tuple[str, ...], whole: tuple[str, ...]) -> pa.Table:
    """A table of these columns; some are of whole numbers, `key` and those of float32."""
    types = {name: pa.int16() for name in whole} | {"key": pa.int32()}
    return pa.table({name: pa.array([], types.get(name, pa.float32())) for name in names})


#: The views that a trace may have nothing for.
_EMPTY = {
    "keys": _empty(COLUMNS[KEYS], ("layer", "kv_head")),
    "received": _empty(COLUMNS[RECEIVED], ("layer", "head")),
}


def _clean(token: str) -> str:
    """UTF-8 has no lone surrogates."""
    return token.encode("utf-8", "replace").decode()


def _heads(trace: TraceData) -> pa.Table:
    from headloom.analysis.heads.roles import heads

    return pa.Table.from_pandas(heads(trace), preserve_index=False)


#: Columns of the view tokens, and what `Trace.positions` calls them.
_PATCHES = {"image": "images", "tile": "tiles", "patch_row": "rows", "patch_column": "columns"}


def _tokens(trace: TraceData) -> pa.Table:
    columns: dict[str, list[object]] = {
        name: [] for name in ("sequence", "position", "token", "text", "special", "start", "end",
                              "seconds", *_PATCHES)
    }  # fmt: skip
    for name, tokens in trace.sequences.items():
        known = trace.positions.get(name, {})
        nothing = [None] * len(tokens)
        offsets = known.get("offsets")
        columns["sequence"] += [name] * len(tokens)
        columns["position"] += range(len(tokens))
        columns["token"] += map(_clean, tokens)
        columns["text"] += map(_clean, shown(tokens))
        columns["special"] += known.get("special", nothing)
        columns["start"] += nothing if offsets is None else [pair[0] for pair in offsets]
        columns["end"] += nothing if offsets is None else [pair[1] for pair in offsets]
        columns["seconds"] += known.get("seconds", nothing)
        for column, what in _PATCHES.items():
            # -1 of a token that is no patch.
            columns[column] += [None if n == -1 else n for n in known.get(what, nothing)]
    types = {
        "sequence": pa.string(), "position": pa.int32(), "token": pa.string(),
        "text": pa.string(), "special": pa.bool_(), "start": pa.int64(), "end": pa.int64(),
        "seconds": pa.float64(), **dict.fromkeys(_PATCHES, pa.int32()),
    }  # fmt: skip
    return pa.table({name: pa.array(columns[name], kind) for name, kind in types.items()})


def _layers(trace: TraceData) -> pa.Table:
    rows = [
        {
            "layer": number,
            "name": layer.name,
            "kind": layer.kind,
            "index": layer.index,
            "heads": layer.shape[0],
            "queries": layer.shape[1],
            "keys": layer.shape[2],
            "queries_from": layer.queries_from,
            "keys_from": layer.keys_from,
            "scale": layer.scale,
            "positions": layer.positions,
            "mask": layer.mask,
            "softcap": layer.softcap,
            "deviation": layer.deviation,
        }
        for number, layer in enumerate(trace.layers)
    ]
    whole, real, text = pa.int32(), pa.float64(), pa.string()
    schema = {
        "layer": whole, "name": text, "kind": text, "index": whole, "heads": whole,
        "queries": whole, "keys": whole, "queries_from": text, "keys_from": text, "scale": real,
        "positions": text, "mask": text, "softcap": real, "deviation": real,
    }  # fmt: skip
    return pa.Table.from_pylist(rows, schema=pa.schema(list(schema.items())))
