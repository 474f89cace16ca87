"""The trace folder: an attention trace on disk, in open formats that other tools read.

    trace.json                   model, token sequences, layers, sizes and digests of the files
    edges.parquet                layer, head, query, key, score, weight: one row per kept edge
    rows.parquet                 layer, head, query, lse, entropy, rest, count: one per query
    keys.parquet                 optional: layer, kv_head, key, value_norm: one per key
    received.parquet             optional: layer, head, key, received, received_most,
                                 received_last: one per head and key
    queries_keys.safetensors     optional: layers.<n>.queries and layers.<n>.keys, and what else
                                 enters the scores, or the mask and sinks alone: see
                                 headloom.formats.terms

`layer` is the position in the list of layers of trace.json, from 0, as are head, query and key.
Both tables are in the order layer, head, query; a query's edges come strongest first. A row group
holds heads of one layer, so that one is read without the others. Nothing is ever unpickled.

A trace is written layer by layer, each while the model computes the next, so that memory holds two
layers at most, into a temporary folder that is renamed when it is whole.
"""

from __future__ import annotations

import hashlib
import json
from collections.abc import Iterator, Mapping, Sequence
from concurrent.futures import Future, ThreadPoolExecutor
from contextlib import ExitStack, contextmanager
from pathlib import Path
from typing import TYPE_CHECKING

import pyarrow as pa
import torch
from torch import Tensor

from headloom.errors import DataError, InputError
from headloom.formats.files import JsonMapping, JsonObject, file_digest, finite
from headloom.formats.folders import atomic_folder
from headloom.formats.terms import Terms
from headloom.formats.trace_files import (
    STORED_TYPES,
    TableFile,
    TensorFile,
    edge_tables,
    key_table,
    received_table,
    row_table,
)
from headloom.formats.traced_images import TracedImage
from headloom.mechanism.graph import AttentionGraph
from headloom.version import __version__

if TYPE_CHECKING:
    from headloom.formats.trace import TraceLayer


FORMAT = "headloom-trace"
#: Raised when an older headloom could not read what this one writes.
VERSION = 1

MANIFEST = "trace.json"
EDGES = "edges.parquet"
ROWS = "rows.parquet"
KEYS = "keys.parquet"
RECEIVED = "received.parquet"
QUERIES_KEYS = "queries_keys.safetensors"

EDGE_COLUMNS = ("layer", "head", "query", "key", "score", "weight")
ROW_COLUMNS = ("layer", "head", "query", "lse", "entropy", "rest", "count")
KEY_COLUMNS = ("layer", "kv_head", "key", "value_norm")
RECEIVED_COLUMNS = ("layer", "head", "key", "received", "received_most", "received_last")


def manifest_digest(manifest: JsonMapping) -> str:
    """SHA-256 of what a manifest says, besides its own digest: of its JSON, in one writing."""
    # Read back, so that keys are texts, as they are for who reads the file.
    said = json.loads(json.dumps({k: v for k, v in manifest.items() if k != "sha256"}))
    text = json.dumps(said, sort_keys=True, separators=(",", ":"))
    return hashlib.sha256(text.encode("ascii")).hexdigest()


def _stored(tensor: Tensor, dtype: torch.dtype, part: str, number: int) -> Tensor:
    """Queries or keys in a type. Raises: InputError: it does not reach as far as they do."""
    most = torch.finfo(dtype).max
    if tensor.numel() and torch.finfo(tensor.dtype).max > most:
        # What is infinite or no number stays so in every type.
        finite = tensor if bool(tensor.isfinite().all()) else tensor.nan_to_num(0, 0, 0)
        largest, name = float(finite.abs().max()), str(dtype).removeprefix("torch.")
        if largest > most:
            raise InputError(
                f"trace layer {number}: its {part} reach {largest:.3g}, {name} ends at "
                f"{most:.3g}. Store them as float32 or bfloat16."
            )
    return tensor.to(dtype)


class TraceWriter:
    """Takes the layers of a trace one after the other; made by `writing_trace`."""

    def __init__(
        self,
        folder: Path,
        sequences: Mapping[str, Sequence[str]],
        model: JsonMapping,
        dtype: torch.dtype | None,
    ) -> None:
        self._folder = folder
        self._sequences = {name: list(tokens) for name, tokens in sequences.items()}
        self._model, self._dtype = dict(model), dtype
        self._positions: dict[str, JsonMapping] = {}
        #: See Trace.verification.
        self.verification: JsonMapping | None = None
        #: Attention modules that ran and are not among the layers: see Trace.not_traced.
        self.not_traced: Sequence[Mapping[str, str]] = ()
        #: Those whose patches are among the tokens: see Trace.images.
        self.images: Sequence[TracedImage] = ()
        self._layers: list[JsonObject] = []
        self._tables: dict[str, TableFile] = {}
        self._tensors: TensorFile | None = None
        # One layer is written while the model computes the next.
        self._thread = ThreadPoolExecutor(1, "headloom-trace")
        self._pending: Future[None] | None = None

    def add_sequence(self, name: str, tokens: Sequence[str]) -> None:
        """Name a sequence that is known only while the model runs, before its first layer."""
        self._sequences[name] = list(tokens)

    def describe(self, name: str, known: JsonMapping) -> None:
        """Say more of the tokens of a sequence: see Trace.positions."""
        self._positions[name] = dict(known)

    def append(self, layer: TraceLayer) -> None:
        """Write the next layer; without its queries and keys, of its terms mask and sinks alone."""
        graph, queries_keys, terms = layer.data.graph(), layer.data.queries_keys(), layer.terms
        norms = layer.data.value_norms()
        self._check(layer, graph)
        number = len(self._layers)
        self._wait()
        # Given in lists, out of which the thread takes them, so that each goes once it is written.
        tensors = [] if queries_keys is None else list(queries_keys)
        if terms is not None and queries_keys is None:
            terms = terms.of_edges()
        self._pending = self._thread.submit(self._write, number, [graph], tensors, terms, norms)
        received = {"last": graph.received_last is not None}
        self._layers.append(
            {
                "name": layer.name,
                "kind": layer.kind,
                "index": layer.index,
                "queries": layer.queries_from,
                "keys": layer.keys_from,
                "shape": list(graph.shape),
                "kept": min(graph.k, graph.length),
                "edges": int((graph.keys >= 0).sum()),
                "scale": layer.scale,
                "positions": layer.positions,
                "mask": layer.mask,
                "window": None if terms is None else terms.window,
                "softcap": layer.softcap,
                "deviation": finite(layer.deviation),
                "symmetric": graph.symmetric,
                "queries_keys": queries_keys is not None,
                "terms": None if terms is None else terms.said(),
                "value_norms": None if norms is None else norms.shape[0],
                **({} if graph.received is None else {"received": received}),
            }
        )

    def _wait(self) -> None:
        """Until the layer before is written; raises what went wrong."""
        if self._pending is not None:
            self._pending.result()

    def _write(
        self,
        number: int,
        graphs: list[AttentionGraph],
        queries_keys: list[Tensor],
        terms: Terms | None,
        value_norms: Tensor | None,
    ) -> None:
        self._write_tensors(number, queries_keys, terms)
        graph = graphs.pop()
        for table in edge_tables(number, graph):
            self._table(EDGES, table)
        self._table(ROWS, row_table(number, graph))
        if value_norms is not None:
            self._table(KEYS, key_table(number, value_norms))
        if graph.received is not None:
            self._table(RECEIVED, received_table(number, graph))

    def _table(self, name: str, table: pa.Table) -> None:
        if name not in self._tables:
            self._tables[name] = TableFile(self._folder / name, table.schema)
        self._tables[name].append(table)

    def _write_tensors(self, number: int, queries_keys: list[Tensor], terms: Terms | None) -> None:
        others = {} if terms is None else terms.tensors()
        if not queries_keys and not others:
            return
        if self._tensors is None:
            size = sum(tensor.nbytes for tensor in queries_keys)
            self._tensors = TensorFile(self._folder / QUERIES_KEYS, {"format": FORMAT}, size)
        for part in ("queries", "keys") if queries_keys else ():
            tensor = queries_keys.pop(0)
            dtype = self._dtype or tensor.dtype
            if dtype not in STORED_TYPES.values():
                dtype = torch.float32
            self._tensors.append(f"layers.{number}.{part}", _stored(tensor, dtype, part, number))
        for part, tensor in others.items():
            self._tensors.append(f"layers.{number}.{part}", tensor)

    def _check(self, layer: TraceLayer, graph: AttentionGraph) -> None:
        if graph.batched:
            raise InputError(
                f"trace layer {layer.name}: the graph holds a batch. A trace is of one input: "
                "graph[b]."
            )
        sides = (("queries", layer.queries_from, graph.shape[1]),
                 ("keys", layer.keys_from, graph.shape[2]))  # fmt: skip
        for what, sequence, size in sides:
            tokens = self._sequences.get(sequence)
            if tokens is None or len(tokens) != size:
                found = "is missing" if tokens is None else f"has {len(tokens)} tokens"
                raise InputError(
                    f"trace layer {layer.name}: {size} {what} of the sequence {sequence!r}, which "
                    f"{found}. Give every sequence with a token for each position."
                )

    def finish(self) -> None:
        """Close the tables and write the manifest: without it, a folder is no trace."""
        if not self._layers:
            raise InputError("a trace needs at least one layer; none was written.")
        self._wait()
        files: dict[str, JsonObject] = {}
        for name, table in self._tables.items():
            table.close()
            files[name] = {"rows": table.rows}
        if self._tensors is not None:
            self._tensors.finish()
            files[QUERIES_KEYS] = {}
        for name, entry in files.items():
            path = self._folder / name
            entry |= {"bytes": path.stat().st_size, "sha256": file_digest(path)}
        manifest = {
            "format": FORMAT,
            "version": VERSION,
            "headloom": __version__,
            "model": self._model,
            "sequences": self._sequences,
            "positions": self._positions,
            "layers": self._layers,
            "files": files,
        }
        if self.verification is not None:
            manifest["verification"] = dict(self.verification)
        if self.not_traced:
            manifest["not_traced"] = [dict(entry) for entry in self.not_traced]
        if self.images:
            manifest["images"] = [image.stored() for image in self.images]
        manifest["sha256"] = manifest_digest(manifest)
        # A lone surrogate, which UTF-8 lacks, becomes the same escape that JSON has for it.
        text = json.dumps(manifest, indent=1, ensure_ascii=False) + "\n"
        (self._folder / MANIFEST).write_bytes(text.encode("utf-8", "backslashreplace"))

    def close(self) -> None:
        """Close the files, whole or not."""
        self._thread.shutdown()
        # Each, though closing another fails, as on a full disk.
        with ExitStack() as stack:
            for file in (*self._tables.values(), self._tensors):
                if file is not None:
                    stack.callback(file.close)


def not_a_trace(path: Path) -> str | None:
    """Why what is at a path must not be replaced by a trace; None: it is one, whole or damaged."""
    if not path.is_dir():
        return "it is no trace but a file"
    try:
        content = (path / MANIFEST).read_bytes()
    except OSError:
        return f"it is no trace: it has no {MANIFEST} that can be read"
    try:
        manifest = json.loads(content)
        ours = isinstance(manifest, dict) and manifest.get("format") == FORMAT
    except ValueError:
        # Damaged; what headloom writes begins with its format.
        ours = content.startswith(f'{{\n "format": "{FORMAT}",'.encode())
    if not ours:
        return f"it is no trace: its {MANIFEST} does not say that it is a {FORMAT}"
    known = {MANIFEST, EDGES, ROWS, KEYS, RECEIVED, QUERIES_KEYS}
    others = sorted({file.name for file in path.iterdir()} - known)
    others = [name for name in others if not name.startswith(".")]
    return f"besides a trace it holds {others[0]!r}" if others else None


def _not_asked_for(path: Path) -> str:
    """Why what is at a path stays where nobody asked for it to be replaced."""
    remedy = "" if not_a_trace(path) else ", and overwrite=True was not given"
    return f"it exists already{remedy}"


@contextmanager
def writing_trace(
    path: Path | str,
    sequences: Mapping[str, Sequence[str]],
    model: JsonMapping | None = None,
    *,
    dtype: torch.dtype | None = None,
    overwrite: bool = False,
) -> Iterator[TraceWriter]:
    """Write a trace folder layer by layer: it is there when the block ends well, else nothing is.

    Args:
        path: the folder to be.
        sequences: the tokens: {"tokens": ...}, or {"source": ..., "target": ...}.
        model: what is known of the model; JSON.
        dtype: of stored queries and keys: float32, bfloat16 or float16; None: as they come.
        overwrite: replace a trace that is there, and nothing else.

    Raises: DataError: the folder exists, or cannot be written.
    """
    if dtype is not None and dtype not in STORED_TYPES.values():
        raise InputError(f"a trace keeps queries and keys as float32, bfloat16 or float16, not "
                         f"{dtype}.")  # fmt: skip
    with atomic_folder(path, not_a_trace if overwrite else _not_asked_for) as folder:
        writer = TraceWriter(folder, sequences, model or {}, dtype)
        try:
            yield writer
            writer.finish()
        except pa.ArrowException as error:
            reason = str(error).splitlines()[0]
            raise DataError(f"cannot write {path}: {reason}. Nothing was changed.") from error
        finally:
            writer.close()
