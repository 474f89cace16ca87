"""Handing a trace to other tools: GraphML, NetworkX, Parquet, NumPy, SciPy.

Edges lead from queries to keys; in a matrix, rows are queries and columns keys.
"""

from __future__ import annotations

import json
from collections.abc import Callable
from pathlib import Path
from typing import TYPE_CHECKING, Any

import numpy as np

from weft.errors import InputError
from weft.formats.files import atomic_file
from weft.formats.tokens import shown, visible
from weft.formats.trace import TraceData, TraceLayer

if TYPE_CHECKING:
    import networkx
    import scipy.sparse

__all__ = [
    "export_layer",
    "to_networkx",
    "to_numpy",
    "to_scipy",
    "write_graphml",
    "write_npz",
    "write_parquet",
    "write_trace_parquet",
]


def to_scipy(layer: TraceLayer, head: int, of: str = "weights") -> scipy.sparse.csr_array:
    """The kept edges of a head as a sparse matrix, (queries, keys).

    of: "weights" or "scores".
    """
    return layer.graph.adjacency(head, of)


def to_numpy(layer: TraceLayer, head: int | None = None) -> np.ndarray[Any, Any]:
    """The kept weights as a dense array, 0 elsewhere: (queries, keys); head None: with the heads.

    Raises: InputError: no such head, or more than 1 GiB.
    """
    if head is not None:
        dense: np.ndarray[Any, Any] = layer.graph.adjacency(head).toarray()
        return dense
    return layer.graph.dense().numpy()


def to_networkx(layer: TraceLayer, head: int) -> networkx.DiGraph | networkx.Graph:
    """A head as a NetworkX graph: `score` and `weight` on its edges, `token` on its nodes.

    Nodes are 0, 1, ... where a sequence looks at itself, else ("query", i) and ("key", j); each
    carries its `token` and its `position`, and its `sequence`.
    """
    found = layer.graph.to_networkx(head, one_sequence=layer.one_sequence)
    for node, values in found.nodes(data=True):
        side, position = node if isinstance(node, tuple) else ("query", node)
        tokens = layer.query_tokens if side == "query" else layer.key_tokens
        values["token"] = shown(tokens)[position]
        values["position"] = position
        values["sequence"] = layer.queries_from if side == "query" else layer.keys_from
    return found


def write_graphml(layer: TraceLayer, head: int, path: Path | str) -> None:
    """A head as GraphML, for Gephi, Cytoscape, igraph, yEd.

    XML has no control characters: in tokens they become their pictures, as everywhere that weft
    shows a token.
    """
    import networkx

    graph = to_networkx(layer, head)
    named = networkx.relabel_nodes(
        graph,
        {node: "".join(map(str, node)) for node in graph.nodes if isinstance(node, tuple)},
    )
    for _, values in named.nodes(data=True):
        values["token"] = visible(values["token"], 1000)
    for _, _, values in named.edges(data=True):
        values.update({name: float(value) for name, value in values.items()})
    with atomic_file(path) as temporary:
        networkx.write_graphml(named, temporary, encoding="utf-8")


def write_npz(layer: TraceLayer, path: Path | str) -> None:
    """A layer as an .npz file: the tensors of its graph, and its tokens as JSON texts.

    (NumPy's own strings lose zero characters at their ends.)
    """
    graph = layer.graph
    tensors = {
        name: getattr(graph, name).numpy()
        for name in ("keys", "scores", "weights", "lse", "entropy", "rest", "count")
    }
    with atomic_file(path) as temporary, temporary.open("wb") as file:
        np.savez_compressed(
            file,
            **tensors,
            shape=np.array(layer.shape),
            query_tokens=np.array(json.dumps(layer.query_tokens)),
            key_tokens=np.array(json.dumps(layer.key_tokens)),
        )


def write_parquet(layer: TraceLayer, path: Path | str, head: int | None = None) -> None:
    """The kept edges of a layer, or of one head, as Parquet, with the tokens at both ends.

    Columns: head, query, key, score, weight, query_token, key_token.
    """
    import pyarrow.compute as pc

    table = _named_edges(layer, 0).drop_columns(["layer"])
    if head is not None:
        _check_head(layer, head)
        table = table.filter(pc.equal(table["head"], head))
    _write_table(table, path)


def write_trace_parquet(trace: TraceData, path: Path | str) -> None:
    """The kept edges of all layers as one Parquet file, with names and tokens beside the numbers.

    Columns: layer, head, query, key, score, weight, query_token, key_token, kind, index, name;
    `layer` counts from 0 in the order of the trace.
    """
    import pyarrow as pa

    tables = []
    for number, layer in enumerate(trace.layers):
        table = _named_edges(layer, number)
        for name, value in (("kind", layer.kind), ("index", layer.index), ("name", layer.name)):
            table = table.append_column(name, pa.repeat(value, table.num_rows))
        tables.append(table)
    _write_table(pa.concat_tables(tables), path)


def _named_edges(layer: TraceLayer, number: int) -> Any:
    import pyarrow as pa

    from weft.formats.trace_files import edge_table

    table = edge_table(number, layer.graph)
    for side, tokens in (("query", layer.query_tokens), ("key", layer.key_tokens)):
        # UTF-8 has no lone surrogates.
        names = [token.encode("utf-8", "replace").decode() for token in tokens]
        table = table.append_column(f"{side}_token", pa.array(names, pa.string()).take(table[side]))
    return table


def _write_table(table: Any, path: Path | str) -> None:
    import pyarrow.parquet as pq

    with atomic_file(path) as temporary:
        pq.write_table(table, temporary, compression="zstd")


def _check_head(layer: TraceLayer, head: int | None) -> int:
    if head is None:
        raise InputError("export: this format holds one head. Choose it, as in head=0.")
    if not 0 <= head < layer.heads:
        raise InputError(f"export: head {head}; the layer has heads 0 to {layer.heads - 1}.")
    return head


def _write_scipy(layer: TraceLayer, head: int | None, path: Path) -> None:
    import scipy.sparse

    with atomic_file(path) as temporary, temporary.open("wb") as file:
        scipy.sparse.save_npz(file, to_scipy(layer, _check_head(layer, head)))


def _write_numpy(layer: TraceLayer, head: int | None, path: Path) -> None:
    with atomic_file(path) as temporary, temporary.open("wb") as file:
        np.save(file, to_numpy(layer, head), allow_pickle=False)


_WRITERS: dict[str, Callable[[TraceLayer, int | None, Path], None]] = {
    ".graphml": lambda layer, head, path: write_graphml(layer, _check_head(layer, head), path),
    ".parquet": lambda layer, head, path: write_parquet(layer, path, head),
    ".npy": _write_numpy,
    ".npz": lambda layer, head, path: (
        write_npz(layer, path) if head is None else _write_scipy(layer, head, path)
    ),
}


def export_layer(layer: TraceLayer, path: Path | str, head: int | None = None) -> None:
    """Write a layer, or one of its heads, to a file whose suffix chooses the format.

        .graphml   one head as a graph
        .parquet   edges with their tokens
        .npy       dense weights, (queries, keys) or (heads, queries, keys)
        .npz       one head: a SciPy sparse matrix (scipy.sparse.load_npz); a layer: all its numbers

    Raises: InputError: another suffix, no such head, or a format that needs one; DataError: the
    file cannot be written.
    """
    path = Path(path)
    writer = _WRITERS.get(path.suffix.lower())
    if writer is None:
        raise InputError(f"{path}: expected a file name that ends in {', '.join(_WRITERS)}.")
    if head is not None:
        _check_head(layer, head)
    writer(layer, head, path)
