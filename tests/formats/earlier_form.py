"""A trace and a run as headloom wrote them in September 2026, byte by byte, without a line of
headloom.

The scores of the trace are logarithms of small numbers, so that every weight is a fraction of them.
"""

from __future__ import annotations

import hashlib
import json
import struct
from collections.abc import Mapping
from math import log
from pathlib import Path
from typing import Any

import numpy as np
import numpy.typing as npt
import pyarrow as pa
import pyarrow.parquet as pq

Arrays = Mapping[str, npt.NDArray[Any]]

TOKENS = ["a", "b", "c"]
#: Keys 0, 1, 2 have the scores log 1, log 2, log 4 for head 0, and 0 for head 1. Two are kept.
#: By head and query: (key, score, weight), strongest first.
EDGES = [
    [[(0, 0.0, 1.0)], [(1, log(2), 2 / 3), (0, 0.0, 1 / 3)],
     [(2, log(4), 4 / 7), (1, log(2), 2 / 7)]],
    [[(0, 0.0, 1.0)], [(0, 0.0, 1 / 2), (1, 0.0, 1 / 2)], [(0, 0.0, 1 / 3), (1, 0.0, 1 / 3)]],
]  # fmt: skip
#: By head and query: (lse, entropy, rest, count).
ROWS = [
    [(0.0, 0.0, 0.0, 1), (log(3), log(3) - 2 / 3 * log(2), 0.0, 2),
     (log(7), log(7) - 10 / 7 * log(2), 1 / 7, 3)],
    [(0.0, 0.0, 0.0, 1), (log(2), log(2), 0.0, 2), (log(3), log(3), 1 / 3, 3)],
]  # fmt: skip
QUERIES = np.array([[[1.0]] * 3, [[0.0]] * 3], np.float32)
KEYS = np.array([[[0.0], [log(2)], [log(4)]]], np.float32)
VALUE_NORMS = [0.5, 1.5, 2.5]
#: The vocabulary of the run; token i of it has the logit i, whatever the model reads.
WORDS = ["<pad>", "<unk>", "<start>", "<end>", "a", "b"]
MATRICES = {
    "W_Q": [[[1.0, 2.0], [3.0, 4.0]]], "W_K": [[[5.0, 6.0], [7.0, 8.0]]],
    "W_V": [[[1.0, 0.0], [0.0, 1.0]]], "W_O": [[[0.0, 1.0], [1.0, 0.0]]],
}  # fmt: skip
LOSSES = [2.5, 1.25]


def write_trace(folder: Path) -> None:
    """A trace of two layers; the second one lacks every field that a trace may lack."""
    folder.mkdir()
    edges = [
        (layer, head, query, *edge)
        for layer in (0, 1)
        for head, of_head in enumerate(EDGES)
        for query, of_query in enumerate(of_head)
        for edge in of_query
    ]
    rows = [
        (layer, head, query, *row)
        for layer in (0, 1)
        for head, of_head in enumerate(ROWS)
        for query, row in enumerate(of_head)
    ]
    keys = [(0, 0, key, norm) for key, norm in enumerate(VALUE_NORMS)]
    place = {"layer": pa.int16(), "head": pa.int16(), "query": pa.int32()}
    _table(folder / "edges.parquet", edges,
           {**place, "key": pa.int32(), "score": pa.float32(), "weight": pa.float32()})  # fmt: skip
    _table(folder / "rows.parquet", rows,
           {**place, "lse": pa.float32(), "entropy": pa.float32(), "rest": pa.float32(),
            "count": pa.int32()})  # fmt: skip
    _table(folder / "keys.parquet", keys,
           {"layer": pa.int16(), "kv_head": pa.int16(), "key": pa.int32(),
            "value_norm": pa.float32()})  # fmt: skip
    _safetensors(folder / "queries_keys.safetensors",
                 {"layers.0.queries": QUERIES, "layers.0.keys": KEYS},
                 {"format": "headloom-trace"})  # fmt: skip
    first: dict[str, Any] = {
        "name": "decoder.0.self_attention", "kind": "decoder", "index": 0, "queries": "tokens",
        "keys": "tokens", "shape": [2, 3, 3], "kept": 2, "edges": 10, "scale": 1.0,
        "positions": "none", "mask": "causal", "symmetric": False, "queries_keys": True,
    }  # fmt: skip
    optional = {
        "window": [None, 0, 0], "softcap": None, "deviation": 1e-7, "value_norms": 1,
        "terms": {"missing": None, "offset": 0, "tensors": []},
    }  # fmt: skip
    second = {**first, "name": "decoder.1.self_attention", "index": 1, "queries_keys": False}
    manifest = {
        "format": "headloom-trace", "version": 1, "headloom": "0.1.0", "model": {"name": "earlier"},
        "sequences": {"tokens": TOKENS}, "positions": {}, "layers": [{**first, **optional}, second],
        "files": {name: _entry(folder / name, count) for name, count in (
            ("edges.parquet", len(edges)), ("rows.parquet", len(rows)),
            ("keys.parquet", len(keys)), ("queries_keys.safetensors", None),
        )},
    }  # fmt: skip
    text = json.dumps(manifest, sort_keys=True, separators=(",", ":"))
    manifest["sha256"] = hashlib.sha256(text.encode()).hexdigest()
    (folder / "trace.json").write_text(json.dumps(manifest, indent=1) + "\n")


def write_run(folder: Path) -> None:
    """A run of a language model of one layer, whose logits are the numbers of the tokens."""
    (folder / "history").mkdir(parents=True)
    _json(folder / "run.json", {"format": "headloom run", "version": 1, "state": "finished"})
    _json(folder / "config.json", _config(str(folder / "text.txt")))
    _json(folder / "vocabulary.json", {
        "version": "1.0", "truncation": None, "padding": None, "added_tokens": [],
        "normalizer": {"type": "NFC"},
        "pre_tokenizer": {"type": "Split", "pattern": {"Regex": r"[\s\S]"}, "behavior": "Isolated",
                          "invert": False},
        "post_processor": None, "decoder": {"type": "Fuse"},
        "model": {"type": "WordLevel", "vocab": {word: i for i, word in enumerate(WORDS)},
                  "unk_token": "<unk>"},
    })  # fmt: skip
    (folder / "text.txt").write_text("ab" * 100)
    reports = [
        {"step": step, "epoch": 0, "validation_loss": loss} for step, loss in enumerate(LOSSES)
    ]
    (folder / "metrics.jsonl").write_text("".join(json.dumps(line) + "\n" for line in reports))
    weights = {
        f"decoder.0.{part}": np.zeros(shape, np.float32)
        for name, size in {
            "feed_forward.fall": (2, 2), "feed_forward.rise": (2, 2), "feed_forward_norm": (2,),
            "self_attention.w_k": (2, 2), "self_attention.w_o": (2, 2),
            "self_attention.w_q": (2, 2), "self_attention.w_v": (2, 2),
            "self_attention_norm": (2,),
        }.items()
        for part, shape in ((f"{name}.bias", (2,)), (f"{name}.weight", size))
    }  # fmt: skip
    numbers = np.arange(len(WORDS), dtype=np.float32)
    weights |= {
        "decoder_norm.bias": np.array([1, 0], np.float32),
        "decoder_norm.weight": np.zeros(2, np.float32),
        "embedding.tokens.weight": np.stack((numbers, np.zeros_like(numbers)), 1),
    }
    _checked(folder / "best.safetensors", weights, {"step": 1, "validation_loss": LOSSES[1]})
    for step, loss in enumerate(LOSSES):
        _snapshot(folder / "history" / f"step-{step:08d}.safetensors", step, loss)


def _snapshot(path: Path, step: int, loss: float) -> None:
    """A snapshot of the weight matrices, and of the weights of a probe of two tokens."""
    name = "decoder.0.self_attention"
    tensors = {f"{name}/{key}": np.array(value, np.float32) * (step + 1)
               for key, value in MATRICES.items()}  # fmt: skip
    probe = {
        "scores": [[[0.0, -np.inf], [log(3), 0.0]]], "weights": [[[1.0, 0.0], [0.75, 0.25]]],
        "lse": [[0.0, log(4)]], "entropy": [[0.0, log(4) - 0.75 * log(3)]], "rest": [[0.0, 0.0]],
    }  # fmt: skip
    tensors |= {f"{name}/probe/{key}": np.array(value, np.float32) for key, value in probe.items()}
    tensors[f"{name}/probe/keys"] = np.array([[[0, -1], [0, 1]]], np.int32)
    tensors[f"{name}/probe/count"] = np.array([[1, 2]], np.int32)
    measures = {
        **{f"norm_{key}": [float(np.linalg.norm(tensors[f"{name}/{key}"]))] for key in MATRICES},
        **{f"gradient_norm_{key}": [None] for key in MATRICES},
        "effective_rank": [1.5], "symmetry": [0.25], "directionality": [-0.5],
    }  # fmt: skip
    layer = {"name": name, "kind": "decoder", "measures": measures, "length": 2,
             "query_tokens": ["a", "b"], "key_tokens": ["a", "b"]}  # fmt: skip
    _checked(path, tensors, {"step": step, "loss": loss, "layers": [layer]})


def _config(file: str) -> dict[str, Any]:
    return {
        "task": {"kind": "language", "file": file, "valid_share": 0.1, "tokens": "characters",
                 "vocabulary": 4000, "block": 8},
        "model": {"width": 2, "heads": 1, "kv_heads": None, "feed_forward": 2, "encoder_layers": 3,
                  "decoder_layers": 1, "positions": "sinusoidal", "clip": 16, "norm": "pre",
                  "activation": "relu", "dropout": 0.0, "attention_dropout": 0.0, "tied": True,
                  "max_length": 1024},
        "training": {"seed": 1, "max_steps": 2, "max_epochs": None, "batch_tokens": 64,
                     "accumulate": 1, "peak_learning_rate": 0.001, "warmup": 1,
                     "schedule": "inverse-sqrt", "floor": 0.0, "betas": [0.9, 0.98],
                     "epsilon": 1e-9, "weight_decay": 0.0, "clip_norm": 1.0,
                     "label_smoothing": 0.1, "average": 0.0, "validate_every": 2, "patience": None,
                     "checkpoint_every": 2, "history": True, "history_growth": 1.5},
    }  # fmt: skip


def _json(path: Path, content: object) -> None:
    path.write_text(json.dumps(content, indent=1) + "\n")


def _table(path: Path, rows: list[tuple[Any, ...]], columns: dict[str, pa.DataType]) -> None:
    arrays = [
        pa.array(values, kind)
        for values, kind in zip(zip(*rows, strict=True), columns.values(), strict=True)
    ]
    table = pa.table(arrays, list(columns))
    with pq.ParquetWriter(path, table.schema, compression="lz4") as writer:
        for layer in sorted({row[0] for row in rows}):  # a row group holds one layer
            writer.write_table(table.filter(pa.compute.equal(table["layer"], layer)))


def _entry(path: Path, rows: int | None) -> dict[str, Any]:
    content = path.read_bytes()
    entry = {"bytes": len(content), "sha256": hashlib.sha256(content).hexdigest()}
    return entry if rows is None else {**entry, "rows": rows}


def _checked(path: Path, arrays: Arrays, notes: dict[str, Any]) -> None:
    """A file of tensors with notes, and the digests of both."""
    digest = hashlib.sha256()
    for name in sorted(arrays):
        array = arrays[name]
        digest.update(f"{name} torch.{array.dtype} {list(array.shape)}\n".encode())
        digest.update(array.tobytes())
    text = json.dumps(notes)
    text_digest = hashlib.sha256(text.encode()).hexdigest()
    _safetensors(path, arrays, {"notes": text, "notes_sha256": text_digest,
                                "sha256": digest.hexdigest()})  # fmt: skip


def _safetensors(path: Path, arrays: Arrays, metadata: dict[str, str]) -> None:
    """The format of safetensors: the length of a header, the header in JSON, and the bytes."""
    header: dict[str, Any] = {"__metadata__": metadata}
    content = b""
    for name, array in arrays.items():
        kind = {"float32": "F32", "int32": "I32"}[str(array.dtype)]
        end = len(content) + array.nbytes
        header[name] = {"dtype": kind, "shape": array.shape, "data_offsets": [len(content), end]}
        content += array.tobytes()
    text = json.dumps(header).encode()
    text += b" " * (-len(text) % 8)
    path.write_bytes(struct.pack("<Q", len(text)) + text + content)
