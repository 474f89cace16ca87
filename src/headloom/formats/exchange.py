"""Handing a trace to other tools: GraphML, NetworkX, Parquet. Edges lead from queries to keys."""

from __future__ import annotations

from pathlib import Path
from typing import TYPE_CHECKING

from headloom.formats.files import atomic_file
from headloom.formats.trace import TraceData, TraceLayer

if TYPE_CHECKING:
    import pyarrow as pa


def write_graphml(trace: TraceData, number: int, head: int, path: Path | str) -> None:
    """A head as GraphML, for Gephi, Cytoscape, igraph, yEd; number: of its layer in the trace.

    XML has no control characters: in tokens they become their pictures, as everywhere that headloom
    shows a token.
    """
    import networkx

    graph = trace.layers[number].to_networkx(head)
    graph.graph["layer"] = number
    named = networkx.relabel_nodes(
        graph,
        {node: "".join(map(str, node)) for node in graph.nodes if isinstance(node, tuple)},
    )
    for _, values in named.nodes(data=True):
        values["token"] = values["label"]
    for _, _, values in named.edges(data=True):
        values.update({name: float(value) for name, value in values.items()})
    with atomic_file(path) as temporary:
        networkx.write_graphml(named, temporary, encoding="utf-8")


def write_trace_parquet(trace: TraceData, path: Path | str) -> None:
    """The kept edges of all layers as one Parquet file, with names and tokens beside the numbers.

    Columns: layer, head, query, key, score, weight, query_token, key_token, kind, index, name;
    `layer` counts from 0 in the order of the trace.
    """
    import pyarrow as pa
    import pyarrow.parquet as pq

    tables = []
    for number, layer in enumerate(trace.layers):
        table = _named_edges(layer, number)
        for name, value in (("kind", layer.kind), ("index", layer.index), ("name", layer.name)):
            table = table.append_column(name, pa.repeat(value, table.num_rows))
        tables.append(table)
    with atomic_file(path) as temporary:
        pq.write_table(pa.concat_tables(tables), temporary, compression="zstd")


def _named_edges(layer: TraceLayer, number: int) -> pa.Table:
    """The kept edges of a layer, with the tokens at both ends."""
    import pyarrow as pa

    from headloom.formats.trace_files import edge_table

    table = edge_table(number, layer.graph)
    for side, tokens in (("query", layer.query_tokens), ("key", layer.key_tokens)):
        # UTF-8 has no lone surrogates.
        names = [token.encode("utf-8", "replace").decode() for token in tokens]
        table = table.append_column(f"{side}_token", pa.array(names, pa.string()).take(table[side]))
    return table
