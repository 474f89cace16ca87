"""Whole dumps and tables, and what an import of a damaged one must say: by readers without
headloom.
"""

from __future__ import annotations

import csv
import json
import re
import struct
from collections.abc import Mapping
from dataclasses import dataclass
from pathlib import Path
from typing import Any

import duckdb
import numpy as np
import pyarrow as pa
import pyarrow.csv
import pyarrow.parquet as pq
from numpy.typing import NDArray
from safetensors.numpy import save_file

import headloom

__all__ = ["KINDS", "Content", "make_dumps", "read_by_others", "read_trace", "words_of", "wrong_in"]

#: Each kind of dump: its name on disk, and what the import is told.
KINDS: dict[str, tuple[str, tuple[str, ...]]] = {
    "npy": ("dump", ("--mask", "causal")),
    "npz": ("queries.npz", ("--mask", "all")),
    "weights": ("weights.npz", ()),
    "tensors": ("queries.safetensors", ("--mask", "causal")),
    "parquet": ("edges.parquet", ("--mask", "causal")),
    "csv": ("edges.csv", ("--mask", "all", "--strongest")),
}
#: Kinds whose tokens are in a file beside them.
_WITH_TOKENS = ("npy", "npz", "csv")
_LENGTH = 6
#: Types of numbers by the names of safetensors, as NumPy has them.
_TYPES = {"F64": "<f8", "F32": "<f4", "F16": "<f2", "I64": "<i8", "I32": "<i4"}

Array = NDArray[Any]


@dataclass(frozen=True)
class Content:
    """What an input says: the arrays of each layer, or its edges; and its tokens.

    layers   for each layer {"queries": ..., "keys": ...} or {"weights": ...}, in order
    edges    weights by (layer, head, query, key)
    tokens   None: none are given
    """

    layers: list[dict[str, Array]]
    edges: dict[tuple[int, int, int, int], float]
    tokens: list[str] | None


def make_dumps(folder: Path) -> None:
    """A small whole dump of every kind, each in a folder of its name."""
    random = np.random.default_rng(0)
    shape = (2, 2, 3, _LENGTH, 4)
    queries, keys = random.normal(size=shape).astype(np.float32)
    scores = np.einsum("lhqd,lhkd->lhqk", queries, keys) / 2
    ahead = np.triu(np.ones((_LENGTH, _LENGTH), bool), 1)
    weights = _softmax(np.where(ahead, -np.inf, scores))
    for kind in KINDS:
        (folder / kind).mkdir(parents=True)
        if kind in _WITH_TOKENS:
            tokens = [f"t{place}" for place in range(_LENGTH)]
            (folder / kind / "tokens.json").write_text(json.dumps(tokens))
    dump = folder / "npy" / "dump"
    dump.mkdir()
    named: dict[str, Array] = {}
    for number in range(2):
        named |= {f"layer_{number}_q": queries[number], f"layer_{number}_k": keys[number]}
    for name, array in named.items():
        np.save(dump / f"{name}.npy", array)
    np.savez_compressed(folder / "npz" / "queries.npz", **named)  # type: ignore[arg-type]
    np.savez(folder / "weights" / "weights.npz", *[], **{
        f"layers.{number}.weights": weights[number].astype(np.float32) for number in range(2)
    })  # fmt: skip
    save_file(named, folder / "tensors" / "queries.safetensors")
    rows = [
        (layer, head, query, key, float(weights[layer, head, query, key]))
        for layer, head, query, key in np.ndindex(*weights.shape) if key <= query
    ]  # fmt: skip
    columns = dict(zip(("layer", "head", "query", "key", "weight"), zip(*rows, strict=True),
                       strict=True))  # fmt: skip
    table = pa.table({name: pa.array(column) for name, column in columns.items()})
    pq.write_table(
        table, folder / "parquet" / "edges.parquet", write_page_checksum=True, row_group_size=50
    )
    strong = table.filter(pa.compute.greater(table["weight"], 0.15))
    pyarrow.csv.write_csv(strong, folder / "csv" / "edges.csv")


def words_of(kind: str, folder: Path, output: Path) -> tuple[object, ...]:
    """The command that imports a dump."""
    name, options = KINDS[kind]
    tokens = ("--tokens", folder / "tokens.json") if kind in _WITH_TOKENS else ()
    return ("import", folder / name, "-o", output, *tokens, *options)


def _softmax(scores: Array) -> Array:
    exponentials = np.exp(scores - scores.max(-1, keepdims=True))
    weights: Array = exponentials / exponentials.sum(-1, keepdims=True)
    return weights


def read_trace(path: Path) -> Content:
    """What a trace says, by headloom."""
    trace = headloom.open(path)
    layers: list[dict[str, Array]] = []
    edges: dict[tuple[int, int, int, int], float] = {}
    for number, layer in enumerate(trace.layers):
        graph = layer.graph
        own = {"weights": graph.dense().numpy()}
        if layer.queries is not None and layer.keys is not None:
            own |= {"queries": layer.queries.numpy(), "keys": layer.keys.numpy()}
        layers.append(own)
        for head, query, place in np.argwhere(graph.keys.numpy() >= 0):
            key = int(graph.keys[head, query, place])
            weight = float(graph.weights[head, query, place])
            edges[number, int(head), int(query), key] = weight
    return Content(layers, edges, list(trace.tokens))


def read_by_others(kind: str, folder: Path) -> Content:
    """What the files say, by readers that share no code with headloom's.

    Raises: what they raise for a file that they cannot read.
    """
    path = folder / KINDS[kind][0]
    tokens = None
    if kind in _WITH_TOKENS:
        tokens = json.loads((folder / "tokens.json").read_text("utf-8-sig"))
        tokens = tokens["tokens"] if isinstance(tokens, dict) else tokens
        tokens = [f"#{token}" if isinstance(token, int) else token for token in tokens]
    if kind in ("parquet", "csv"):
        return Content([], _edges(path), tokens)
    arrays: Mapping[str, Array]
    if kind == "npy":
        arrays = {file.stem: np.load(file, allow_pickle=False) for file in path.glob("*.npy")}
    elif kind == "tensors":
        arrays = _tensors(path.read_bytes())
    else:
        with np.load(path, allow_pickle=False) as archive:
            arrays = {name: archive[name] for name in archive.files}
    layers: dict[int, dict[str, Array]] = {}
    words = {"q": "queries", "k": "keys", "weights": "weights"}
    for name, array in arrays.items():
        number, word = re.findall(r"\d+", name), re.split(r"[._]", name)[-1]
        if word in words and number:
            layers.setdefault(int(number[0]), {})[words[word]] = array
    return Content([layers[number] for number in sorted(layers)], {}, tokens)


def _tensors(content: bytes) -> dict[str, Array]:
    (length,) = struct.unpack("<Q", content[:8])
    header = json.loads(content[8 : 8 + length])
    arrays: dict[str, Array] = {}
    for name, entry in header.items():
        if name != "__metadata__":
            start, end = entry["data_offsets"]
            part = content[8 + length + start : 8 + length + end]
            arrays[name] = np.frombuffer(part, _TYPES[entry["dtype"]]).reshape(entry["shape"])
    return arrays


def _edges(path: Path) -> dict[tuple[int, int, int, int], float]:
    names = ("layer", "head", "query", "key", "weight")
    if path.suffix == ".csv":
        with path.open(encoding="utf-8", newline="") as file:
            rows = [[row[name] for name in names] for row in csv.DictReader(file)]
    else:
        # Without threads, which a process that is forked would not have.
        with duckdb.connect(config={"threads": 1}) as reader:
            query = f"select {', '.join(names)} from read_parquet($path)"
            rows = [list(row) for row in reader.execute(query, {"path": str(path)}).fetchall()]
    ordered = sorted({int(row[0]) for row in rows})
    edges: dict[tuple[int, int, int, int], float] = {}
    for layer, head, query, key, weight in rows:
        place = (ordered.index(int(layer)), int(head), int(query), int(key))
        if place in edges:
            raise ValueError(f"{place} is there twice")
        edges[place] = float(weight)
    return edges


def wrong_in(kind: str, came: Content, there: Content) -> str | None:
    """What a trace says that its files do not, or what no weights are; None: nothing."""
    if there.tokens is not None and came.tokens != there.tokens:
        return f"tokens {came.tokens} of {there.tokens}"
    if kind in ("parquet", "csv"):
        return _wrong_edges(came.edges, there.edges)
    if len(came.layers) != len(there.layers):
        return f"{len(came.layers)} layers of {len(there.layers)}"
    for number, (own, files) in enumerate(zip(came.layers, there.layers, strict=True)):
        for role, array in files.items():
            given = array[0] if array.ndim == 4 else array
            if own[role].shape != given.shape:
                return f"layer {number}: {role} {own[role].shape} of {given.shape}"
            if not np.array_equal(own[role], np.asarray(given, np.float32)) and not np.allclose(
                own[role], given, rtol=1e-6, atol=0
            ):
                return f"layer {number}: other {role}"
        problem = _wrong_weights(kind, own, files)
        if problem:
            return f"layer {number}: {problem}"
    return None


def _wrong_weights(kind: str, own: dict[str, Array], files: dict[str, Array]) -> str | None:
    weights = own["weights"].astype(np.float64)
    sums = weights.sum(-1)
    if not np.isfinite(weights).all() or (weights < 0).any():
        return "weights that are none"
    if not ((np.abs(sums - 1) < 2.1e-2) | (sums == 0)).all():
        return f"rows that sum to {sums.min():.4f} to {sums.max():.4f}"
    if kind == "weights":
        return None
    queries, keys = (np.asarray(files[role], np.float64) for role in ("queries", "keys"))
    queries, keys = (array[0] if array.ndim == 4 else array for array in (queries, keys))
    keys = np.repeat(keys, len(queries) // len(keys), 0)
    scores = queries @ keys.swapaxes(-1, -2) / np.sqrt(queries.shape[-1])
    if dict(zip(KINDS[kind][1][::2], KINDS[kind][1][1::2], strict=True))["--mask"] == "causal":
        scores[:, np.triu(np.ones(scores.shape[-2:], bool), 1)] = -np.inf
    largest = np.abs(scores[np.isfinite(scores)]).max(initial=0)
    if np.abs(_softmax(scores) - weights).max() > 2e-6 + 1e-6 * largest:
        return "weights that are not those of its queries and keys"
    return None


def _wrong_edges(
    came: dict[tuple[int, int, int, int], float], there: dict[tuple[int, int, int, int], float]
) -> str | None:
    if came.keys() != there.keys():
        return f"other edges: {sorted(came.keys() ^ there.keys())[:3]}"
    if any(abs(came[place] - weight) > 1e-6 for place, weight in there.items()):
        return "other weights"
    sums: dict[tuple[int, ...], float] = {}
    for (layer, head, query, _), weight in there.items():
        sums[layer, head, query] = sums.get((layer, head, query), 0) + weight
    if not all(weight >= 0 for weight in there.values()) or max(sums.values()) > 1.0011:
        return "weights that are none"
    return None
