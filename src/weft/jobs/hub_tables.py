"""The small tables beside a trace on the Hub, so that its viewer shows what the numbers are of."""

from __future__ import annotations

from pathlib import Path

from weft.formats.tokens import shown
from weft.formats.trace import TraceData

__all__ = ["TABLES", "write_tables"]

#: The tables that the viewer shows, the first one first, and what a row of each is.
TABLES = {
    "edges": "an edge that was kept: layer, head, query, key, score, weight",
    "rows": "a query of a head: log-sum-exp, entropy, the rest of its mass, keys it may look at",
    "keys": "a key: the norm of its value",
    "received": "a key of a head: what it receives from all queries",
    "layers": "a layer: its name, kind, shape, and its deviation from the model's own attention",
    "tokens": "a token: the sequence it is in, its position, its text",
}


def write_tables(trace: TraceData, folder: Path) -> None:
    """Write layers.parquet and tokens.parquet."""
    import pyarrow as pa
    import pyarrow.parquet as pq

    layers = [
        {
            "layer": number, "name": layer.name, "kind": layer.kind, "heads": layer.shape[0],
            "queries": layer.shape[1], "keys": layer.shape[2], "queries_from": layer.queries_from,
            "keys_from": layer.keys_from, "deviation": layer.deviation,
        }
        for number, layer in enumerate(trace.layers)
    ]  # fmt: skip
    tokens = [
        {"sequence": name, "position": position, "token": token.encode("utf-8", "replace").decode()}
        for name, sequence in trace.sequences.items()
        for position, token in enumerate(shown(sequence))
    ]
    strings, numbers = pa.string(), pa.int64()
    schemas = {
        "layers": pa.schema(
            [
                ("layer", numbers), ("name", strings), ("kind", strings), ("heads", numbers),
                ("queries", numbers), ("keys", numbers), ("queries_from", strings),
                ("keys_from", strings), ("deviation", pa.float64()),
            ]
        ),
        "tokens": pa.schema([("sequence", strings), ("position", numbers), ("token", strings)]),
    }  # fmt: skip
    for name, rows in (("layers", layers), ("tokens", tokens)):
        pq.write_table(pa.Table.from_pylist(rows, schemas[name]), folder / f"{name}.parquet")
