"""What the manifest of a trace must say: a damaged or forged one is refused before it is used."""

from __future__ import annotations

import math
import stat
from pathlib import Path
from typing import Any

from headloom.formats.files import JsonObject, cannot_read
from headloom.formats.terms import TENSORS
from headloom.formats.trace_writer import (
    EDGES,
    KEYS,
    MANIFEST,
    QUERIES_KEYS,
    RECEIVED,
    ROWS,
    VERSION,
    manifest_digest,
)
from headloom.formats.traced_images import are_images
from headloom.formats.verification import is_verification

__all__ = ["manifest_problem"]

#: What every layer of the manifest must say, and how.
_LAYER: dict[str, type | tuple[type, ...]] = {
    "name": str,
    "kind": str,
    "index": int,
    "queries": str,
    "keys": str,
    "shape": list,
    "kept": int,
    "edges": int,
    "scale": (int, float),
    "positions": str,
    "mask": (str, type(None)),
    "symmetric": bool,
    "queries_keys": bool,
}
#: What it says of a module that was not traced.
_NOT_TRACED = ("name", "class", "reason")
#: The largest number that tables have room for, of queries and keys; and of heads.
_MOST, _MOST_HEADS = 2**31 - 1, 2**15 - 1


def manifest_problem(folder: Path, manifest: JsonObject) -> str | None:
    """What is wrong with a manifest or with the files it names; None: nothing.

    Raises: DataError: a file is there and cannot be read.
    """
    if manifest.get("version") != VERSION:
        return f"{MANIFEST} names no version"
    sequences, layers, files = (manifest.get(name) for name in ("sequences", "layers", "files"))
    if not isinstance(manifest.get("model"), dict):
        return f"{MANIFEST} says nothing of the model"
    if not isinstance(sequences, dict) or not all(
        isinstance(tokens, list) and all(isinstance(token, str) for token in tokens)
        for tokens in sequences.values()
    ):
        return f"{MANIFEST} has no sequences of tokens"
    if not _positions_fit(manifest.get("positions", {}), sequences):
        return f"{MANIFEST} describes positions that do not fit its sequences"
    if not are_images(manifest.get("images", []), manifest.get("positions", {})):
        return f"{MANIFEST} describes images that do not fit its positions"
    if not is_verification(manifest.get("verification")):
        return f"{MANIFEST} says nothing clear of how it was verified"
    without = manifest.get("not_traced", [])
    if not isinstance(without, list) or not all(
        isinstance(entry, dict) and all(isinstance(entry.get(name), str) for name in _NOT_TRACED)
        for entry in without
    ):
        return f"{MANIFEST} names modules that were not traced, not all with {_NOT_TRACED}"
    if not isinstance(layers, list) or not layers:
        return f"{MANIFEST} has no layers"
    if len(layers) > _MOST_HEADS:
        return f"{MANIFEST} has {len(layers)} layers"
    for number, layer in enumerate(layers):
        problem = _layer_problem(layer, sequences)
        if problem:
            return f"{MANIFEST}, layer {number}: {problem}"
    if not isinstance(files, dict):
        return f"{MANIFEST} names no files"
    needed = [EDGES, ROWS]
    if any(layer["queries_keys"] or (layer.get("terms") or {}).get("tensors") for layer in layers):
        needed.append(QUERIES_KEYS)
    if any(layer.get("value_norms") is not None for layer in layers):
        needed.append(KEYS)
    if any(layer.get("received") is not None for layer in layers):
        needed.append(RECEIVED)
    for name in needed:
        problem = _file_problem(folder, name, files.get(name))
        if problem:
            return problem
    if manifest.get("sha256") != manifest_digest(manifest):
        return f"{MANIFEST} does not match its digest"
    for name in needed:
        if not isinstance(files[name].get("sha256"), str):
            return f"{MANIFEST} has no digest of {name}"
    return None


def _is_count(value: Any, most: int = _MOST, least: int = 0) -> bool:
    """Whether a value of JSON is a whole number in bounds; true and false are none."""
    return type(value) is int and least <= value <= most


def _is_number(value: Any) -> bool:
    """Whether a value of JSON is a finite number that a float can hold."""
    return type(value) in (int, float) and abs(value) < 1e300 and math.isfinite(value)


def _positions_fit(positions: Any, sequences: dict[str, list[str]]) -> bool:
    """Whether what is known of the tokens has an entry for each of them, of its kind."""
    return isinstance(positions, dict) and all(
        name in sequences
        and isinstance(known, dict)
        and all(
            isinstance(entries, list)
            and len(entries) == len(sequences[name])
            and all(map(_POSITIONS.get(what, lambda entry: True), entries))
            for what, entries in known.items()
        )
        for name, known in positions.items()
    )


#: What is known of a token, and whether an entry is of its kind.
_POSITIONS: JsonObject = {
    "offsets": lambda entry: (
        isinstance(entry, list)
        and len(entry) == 2
        and all(_is_count(place, 2**53) for place in entry)
    ),
    "texts": lambda entry: isinstance(entry, str),
    "special": lambda entry: type(entry) is bool,
    "rows": lambda entry: _is_count(entry, least=-1),
    "columns": lambda entry: _is_count(entry, least=-1),
    "seconds": _is_number,
    "parts": _is_count,
    "images": lambda entry: _is_count(entry, least=-1),
    "tiles": lambda entry: _is_count(entry, least=-1),
}


def _file_problem(folder: Path, name: str, entry: Any) -> str | None:
    if not isinstance(entry, dict):
        return f"{MANIFEST} does not name {name}"
    try:
        found = (folder / name).stat()
    except (FileNotFoundError, NotADirectoryError):
        return f"{name} is missing"
    except OSError as error:
        raise cannot_read(folder / name, "part of a trace", error) from error
    if not stat.S_ISREG(found.st_mode):
        return f"{name} is no file"
    if found.st_size != entry.get("bytes"):
        return f"{name} has {found.st_size} bytes, expected {entry.get('bytes')}"
    return None


def _layer_problem(layer: Any, sequences: dict[str, list[str]]) -> str | None:
    if not isinstance(layer, dict):
        return "not an object"
    for name, kind in _LAYER.items():
        if name not in layer or not isinstance(layer[name], kind):
            return f"{name} is missing or of the wrong type"
    for name in ("softcap", "deviation"):
        value = layer.get(name)
        if not (value is None or _is_number(value)):
            return f"{name} is of the wrong type"
    if layer.get("softcap") is not None and layer["softcap"] <= 0:
        return "softcap is not positive"
    if not _is_number(layer["scale"]):
        return "scale is no finite number"
    for name in ("index", "kept"):
        if not _is_count(layer[name]):
            return f"{name} is out of bounds"
    shape = layer["shape"]
    if (
        len(shape) != 3
        or not all(_is_count(size) for size in shape)
        or not _is_count(shape[0], _MOST_HEADS)
    ):
        return "shape is not (heads, queries, keys)"
    for name, size in (("queries", shape[1]), ("keys", shape[2])):
        if layer[name] not in sequences or len(sequences[layer[name]]) != size:
            return f"its {name} do not fit the tokens of {layer[name]!r}"
    if layer["kept"] > shape[2]:
        return f"{layer['kept']} edges a row of {shape[2]} keys"
    if not _is_count(layer["edges"], shape[0] * shape[1] * layer["kept"]):
        return "edges is out of bounds"
    return _terms_problem(layer, shape[0])


def _terms_problem(layer: JsonObject, heads: int) -> str | None:
    """What is wrong with what a layer says of its mask, terms and values, if it says anything."""
    window, terms = layer.get("window"), layer.get("terms")
    if window is not None and not (
        isinstance(window, list)
        and len(window) == 3
        and all(side is None or _is_count(side) for side in window[:2])
        and _is_count(window[2], least=-_MOST)
    ):
        return "window is not [left, right, offset]"
    if terms is not None and not (
        isinstance(terms, dict)
        and isinstance(terms.get("missing"), str | None)
        and _is_count(terms.get("offset"), least=-_MOST)
        and isinstance(terms.get("tensors"), list)
        and all(isinstance(name, str) for name in terms["tensors"])
        and set(terms["tensors"]) <= set(TENSORS)
        and ("by_distance" not in terms["tensors"] or terms["offset"] == 0)
    ):
        return "terms are of the wrong type"
    norms = layer.get("value_norms")
    if norms is not None and (not _is_count(norms, least=1) or heads % norms):
        return "value_norms are of the wrong type"
    received = layer.get("received")
    if received is not None and not (
        isinstance(received, dict) and type(received.get("last")) is bool
    ):
        return "received is of the wrong type"
    return None
