"""Views of a DuckDB database over one or more traces, read in place and never changed.

    edges     layer, head, query, key, score, weight: the kept edges
    rows      layer, head, query, lse, entropy, rest, count
    keys      layer, kv_head, key, value_norm: |v_j|, of traces that have it
    received  layer, head, key, received, received_most, received_last: attention received by a key
              from all queries, of traces that have it (received_last is NaN if not requested)
    tokens    sequence, position, token, text, special, start, end, seconds, image, tile,
              patch_row, patch_column: token in the spelling of the vocabulary, and its text; end is
              exclusive; seconds are for places of a sound, the last four columns for patches of an
              image; null: unknown
    layers    layer, name, kind, index, heads, queries, keys, queries_from, keys_from, scale,
              positions, mask, softcap, deviation
    heads     layer, head, role, score, ...: see `Trace.heads`; computed when used
    named     edges with the tokens at both ends, query_token and key_token, their texts,
              query_text and key_text, and the layer's kind

Positions count from 0. With several traces, every view has a first column, `trace`.
"""

from __future__ import annotations

import re
from collections.abc import Callable, Collection, Mapping
from pathlib import Path
from typing import TYPE_CHECKING

import pyarrow as pa

from headloom.analysis.sql.database import VIEWS, Part, statement_of
from headloom.errors import InputError
from headloom.formats.layer_data import StoredLayer
from headloom.formats.manifest import EDGES, KEYS, RECEIVED, ROWS
from headloom.formats.tokens import shown
from headloom.formats.trace import TraceData, TraceLayer
from headloom.formats.trace_writer import edge_table, key_table, received_table, row_table

if TYPE_CHECKING:
    from duckdb import DuckDBPyConnection as Connection

#: Views that are files of a trace: the file, its table for a layer, and how to make such a trace.
_FILES: dict[str, tuple[str, Callable[[int, TraceLayer], pa.Table | None], str]] = {
    "edges": (EDGES, lambda n, layer: edge_table(n, layer.graph), ""),
    "rows": (ROWS, lambda n, layer: row_table(n, layer.graph), ""),
    "keys": (
        KEYS,
        lambda n, layer: None if layer.value_norms is None else key_table(n, layer.value_norms),
        " with values",
    ),
    "received": (
        RECEIVED,
        lambda n, layer: None if layer.graph.received is None else received_table(n, layer.graph),
        " with received=True",
    ),
}


def views_in(connection: Connection, query: str) -> set[str]:
    """Return the views that a query needs, and perhaps others.

    Raises: InputError: not a SELECT.
    """
    import duckdb

    statement_of(connection, query)  # check it before DuckDB uses it
    try:
        names = {name.lower() for name in connection.get_table_names(query)}
    except duckdb.Error:
        # For example `join ... using`, which needs columns of views that do not exist yet.
        names = set(re.findall(r"\b(?:from|join)\s+(\w+)", query.lower())) & set(VIEWS)
    return names | {"edges"} if "named" in names else names


def view_parts(
    trace: TraceData | Mapping[str, TraceData], needed: Collection[str]
) -> dict[str, list[Part]]:
    """Return the parts of the views: Parquet files of saved traces, tables of others.

    Args:
        trace: one; or several by name, then every view has a column `trace`.
        needed: views of the query: the digests of their files are checked first, and `heads` is
            computed.

    Raises: InputError: a needed view is in no trace; DataError: a needed file is damaged.
    """
    column = not isinstance(trace, TraceData)
    traces = {"trace": trace} if isinstance(trace, TraceData) else trace
    views: dict[str, list[Part]] = {}
    for view, (file, table, how) in _FILES.items():
        parts = []
        for name, data in traces.items():
            folder = _stored_folder(data)
            if folder is None:
                tables = [table(number, layer) for number, layer in enumerate(data.layers)]
                tables_of_layers = [rows for rows in tables if rows is not None]
                if tables_of_layers:
                    parts.append(Part(name if column else None, pa.concat_tables(tables_of_layers)))
            elif (folder / file).exists():
                stored = data.layers[0].data
                if view in needed and isinstance(stored, StoredLayer):
                    stored.verify(file)
                parts.append(Part(name, str((folder / file).absolute())))
        if parts:
            views[view] = parts
        elif view in needed:
            raise InputError(f"query: {view} needs traces made{how}; there are none here.")
    for view, whole in {"tokens": _tokens, "layers": _layers, "heads": _heads}.items():
        if view == "heads" and view not in needed:
            continue
        stack = []
        for name, data in traces.items():
            part = whole(data)
            first = pa.repeat(name, part.num_rows)
            stack.append(part.add_column(0, "trace", first) if column else part)
        views[view] = [Part(None, pa.concat_tables(stack, promote_options="default"))]
    return views


def _stored_folder(trace: TraceData) -> Path | None:
    """Return the folder of a whole saved trace; None: it is in memory, or a part of another."""
    folders = set()
    for number, layer in enumerate(trace.layers):
        if not isinstance(layer.data, StoredLayer) or layer.data.number != number:
            return None
        folders.add(layer.data.folder)
    return folders.pop() if len(folders) == 1 else None


def _heads(trace: TraceData) -> pa.Table:
    from headloom.analysis.heads.roles import heads

    return pa.Table.from_pandas(heads(trace), preserve_index=False)


#: Columns of the view tokens, and their names in `Trace.positions`.
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
        columns["token"] += map(_utf8, tokens)
        columns["text"] += map(_utf8, shown(tokens))
        columns["special"] += known.get("special", nothing)
        columns["start"] += nothing if offsets is None else [pair[0] for pair in offsets]
        columns["end"] += nothing if offsets is None else [pair[1] for pair in offsets]
        columns["seconds"] += known.get("seconds", nothing)
        for column, what in _PATCHES.items():
            # -1: not a patch.
            columns[column] += [None if n == -1 else n for n in known.get(what, nothing)]
    types = {
        "sequence": pa.string(), "position": pa.int32(), "token": pa.string(),
        "text": pa.string(), "special": pa.bool_(), "start": pa.int64(), "end": pa.int64(),
        "seconds": pa.float64(), **dict.fromkeys(_PATCHES, pa.int32()),
    }  # fmt: skip
    return pa.table({name: pa.array(columns[name], kind) for name, kind in types.items()})


def _utf8(token: str) -> str:
    """Replace lone surrogates, which UTF-8 cannot encode."""
    return token.encode("utf-8", "replace").decode()


def _layers(trace: TraceData) -> pa.Table:
    whole, real, text = pa.int32(), pa.float64(), pa.string()
    schema = {
        "layer": whole, "name": text, "kind": text, "index": whole, "heads": whole,
        "queries": whole, "keys": whole, "queries_from": text, "keys_from": text, "scale": real,
        "positions": text, "mask": text, "softcap": real, "deviation": real,
    }  # fmt: skip
    rows = []
    for number, layer in enumerate(trace.layers):
        heads, queries, keys = layer.shape
        known = {"layer": number, "heads": heads, "queries": queries, "keys": keys}
        rows.append({name: known.get(name, getattr(layer, name, None)) for name in schema})
    return pa.Table.from_pylist(rows, schema=pa.schema(list(schema.items())))
