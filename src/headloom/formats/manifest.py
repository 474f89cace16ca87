"""Files of a trace's folder, and the checks of its manifest, which refuse a forged one."""

from __future__ import annotations

import hashlib
import json
import math
import stat
from collections.abc import Callable
from mimetypes import guess_type
from pathlib import Path

import torch

from headloom.errors import DataError
from headloom.formats.files import JsonMapping, JsonObject, cannot_read, is_there, read_json
from headloom.formats.folders import AGAIN, check_there
from headloom.formats.terms import TENSORS
from headloom.formats.traced_images import are_images
from headloom.formats.verification import is_verification

FORMAT = "headloom-trace"
#: Increased when an older headloom cannot read the new format.
VERSION = 1

MANIFEST = "trace.json"
EDGES = "edges.parquet"
ROWS = "rows.parquet"
KEYS = "keys.parquet"
RECEIVED = "received.parquet"
QUERIES_KEYS = "queries_keys.safetensors"

#: The columns of the tables.
COLUMNS = {
    EDGES: ("layer", "head", "query", "key", "score", "weight"),
    ROWS: ("layer", "head", "query", "lse", "entropy", "rest", "count"),
    KEYS: ("layer", "kv_head", "key", "value_norm"),
    RECEIVED: ("layer", "head", "key", "received", "received_most", "received_last"),
}
#: Columns of float32; the others hold integers.
FRACTIONS = (
    "score", "weight", "value_norm", "lse", "entropy", "rest",
    "received", "received_most", "received_last",
)  # fmt: skip
#: Types of stored queries and keys.
STORED_TYPES = (torch.float32, torch.bfloat16, torch.float16)

REMEDY = "Trace the model again."
#: The largest number of queries or keys, and of heads, that the tables can hold.
_MOST, _MOST_HEADS = 2**31 - 1, 2**15 - 1


def misfit(value: object, form: object, place: str) -> str | None:
    """Return the path of the first part of a JSON value that has the wrong form; None: no such.

    Args:
        value: result of json.loads.
        form: a type or a tuple of types; a predicate; a list with the form of all entries; or a
            dictionary of forms, where a key with "?" may be missing or null.
        place: name of the value.

    >>> misfit({"a": [1, "2"]}, {"a": [int], "b?": str}, "x")
    'x.a[1]'
    """
    if isinstance(form, dict):
        if not isinstance(value, dict):
            return place
        for key, part in form.items():
            name = key.removesuffix("?")
            if key != name and value.get(name) is None:
                continue
            wrong = misfit(value[name], part, f"{place}.{name}") if name in value else place
            if wrong is not None:
                return wrong
        return None
    if isinstance(form, list):
        if not isinstance(value, list):
            return place
        places = (misfit(part, form[0], f"{place}[{n}]") for n, part in enumerate(value))
        return next((wrong for wrong in places if wrong is not None), None)
    if isinstance(form, type | tuple):
        fits = isinstance(value, form) and (type(value) is bool) is (form is bool)
    else:
        assert callable(form)
        fits = form(value)
    return None if fits else place


def is_count(most: int = _MOST, least: int = 0) -> Callable[[object], bool]:
    """Return a check that a value is an integer (no bool) in bounds."""
    return lambda value: type(value) is int and least <= value <= most


def is_fraction(value: object) -> bool:
    """Whether a value is a finite number that a float can hold."""
    if isinstance(value, bool) or not isinstance(value, int | float):
        return False
    return abs(value) < 1e300 and math.isfinite(value)


def _is_window(value: object) -> bool:
    """Whether a value is [left, right, offset], null where a side is open."""
    side, offset = is_count(), is_count(least=-_MOST)
    return (
        isinstance(value, list)
        and len(value) == 3
        and all(bound is None or side(bound) for bound in value[:2])
        and offset(value[2])
    )


def _all_values(form: object) -> Callable[[object], bool]:
    """Return a check that a value is an object whose values all have a form."""
    return lambda value: (
        isinstance(value, dict) and all(misfit(part, form, "") is None for part in value.values())
    )


_LAYER: JsonObject = {
    "name": str,
    "kind": str,
    "index": is_count(),
    "queries": str,
    "keys": str,
    "shape": [is_count()],
    "kept": is_count(),
    "edges": is_count(2**62),
    "scale": is_fraction,
    "positions": str,
    "mask?": str,
    "symmetric": bool,
    "queries_keys": bool,
    "softcap?": lambda value: is_fraction(value) and value > 0,
    "deviation?": is_fraction,
    "window?": _is_window,
    "terms?": {
        "missing?": str,
        "offset": is_count(least=-_MOST),
        "tensors": [lambda name: isinstance(name, str) and name in TENSORS],
    },
    "value_norms?": is_count(_MOST_HEADS, 1),
    "received?": {"last": bool},
}
#: Lists of `positions`, one entry for each token.
_POSITIONS: JsonObject = {
    "offsets?": [lambda pair: misfit(pair, [is_count(2**53)], "") is None and len(pair) == 2],
    "texts?": [str],
    "special?": [bool],
    "seconds?": [is_fraction],
    "parts?": [is_count()],
    **{f"{name}?": [is_count(least=-1)] for name in ("rows", "columns", "images", "tiles")},
}
_FORM: JsonObject = {
    "version": lambda value: value == VERSION,
    "model": dict,
    "sequences": _all_values([str]),
    "positions?": _all_values(_POSITIONS),
    "verification?": is_verification,
    "not_traced?": [{"name": str, "class": str, "reason": str}],
    "layers": [_LAYER],
    "files": dict,
}


def manifest_digest(manifest: JsonMapping) -> str:
    """Return the SHA-256 of a manifest without its own digest, as JSON with sorted keys."""
    # Read back, so that keys are strings, as for readers of the file.
    content = json.loads(json.dumps({k: v for k, v in manifest.items() if k != "sha256"}))
    text = json.dumps(content, sort_keys=True, separators=(",", ":"))
    return hashlib.sha256(text.encode("ascii")).hexdigest()


def _check_manifest(folder: Path, manifest: JsonMapping) -> None:
    """Check a manifest and the sizes of its files. Raises: ValueError: something is wrong."""
    if manifest.get("sha256") != manifest_digest(manifest):
        raise ValueError(f"{MANIFEST} does not match its digest")
    wrong = misfit(manifest, _FORM, MANIFEST) or _inconsistent(manifest)
    if wrong is not None:
        raise ValueError(f"{wrong} is missing or invalid")
    layers, files = manifest["layers"], manifest["files"]
    needed = [EDGES, ROWS]
    if any(layer["queries_keys"] or (layer.get("terms") or {}).get("tensors") for layer in layers):
        needed.append(QUERIES_KEYS)
    if any(layer.get("value_norms") is not None for layer in layers):
        needed.append(KEYS)
    if any(layer.get("received") is not None for layer in layers):
        needed.append(RECEIVED)
    for name in needed:
        if misfit(files, {name: {"bytes": int, "sha256": str}}, "") is not None:
            raise ValueError(f"{MANIFEST} does not name {name}")
        _check_size(folder, name, files[name]["bytes"])


def _inconsistent(manifest: JsonMapping) -> str | None:
    """Return the first inconsistent part of a manifest whose parts are well-formed; or None."""
    sequences, positions = manifest["sequences"], manifest.get("positions") or {}
    for name, facts in positions.items():
        lengths = {len(entries) for entries in facts.values() if isinstance(entries, list)}
        if name not in sequences or lengths - {len(sequences[name])}:
            return f"{MANIFEST}.positions.{name}"
    if not are_images(manifest.get("images", []), positions):
        return f"{MANIFEST}.images"
    layers = manifest["layers"]
    if not 0 < len(layers) <= _MOST_HEADS:
        return f"{MANIFEST}.layers"
    fits = (_layer_fits(layer, sequences) for layer in layers)
    return next((f"{MANIFEST}.layers[{n}]" for n, fit in enumerate(fits) if not fit), None)


def _layer_fits(layer: JsonObject, sequences: dict[str, list[str]]) -> bool:
    """Whether the well-formed numbers of a layer are consistent."""
    if len(layer["shape"]) != 3:
        return False
    heads, queries, keys = layer["shape"]
    terms, norms = layer.get("terms") or {}, layer.get("value_norms")
    return (
        heads <= _MOST_HEADS
        and all(
            layer[side] in sequences and len(sequences[layer[side]]) == size
            for side, size in (("queries", queries), ("keys", keys))
        )
        and layer["kept"] <= keys
        and layer["edges"] <= heads * queries * layer["kept"]
        and not ("by_distance" in terms.get("tensors", ()) and terms["offset"])
        and (norms is None or heads % norms == 0)
    )


def _check_size(folder: Path, name: str, size: int) -> None:
    try:
        status = (folder / name).stat()
    except (FileNotFoundError, NotADirectoryError):
        raise ValueError(f"{name} is missing") from None
    except OSError as error:
        raise cannot_read(folder / name, "part of a trace", error) from error
    if not stat.S_ISREG(status.st_mode) or status.st_size != size:
        raise ValueError(f"{name} has {status.st_size} bytes, expected {size}")


def open_folder(path: Path | str) -> tuple[Path, JsonObject]:
    """Check a trace folder without reading its tables.

    Returns: the folder and its manifest.
    Raises: DataError: it is missing, half-written, damaged, or of a newer version.
    """
    folder = Path(path)
    check_there(folder, "trace")
    if not folder.is_dir():
        picture = (guess_type(folder.name)[0] or "").startswith("image/")
        what, model = ("an image", "MODEL") if picture else ("a text", "minilm")
        raise DataError(
            f"{folder}: not a trace: a trace is a folder with {MANIFEST} in it. To trace {what}: "
            f"headloom trace {model} --file {folder}"
        )
    if not is_there(folder / MANIFEST, "trace"):
        if any((folder / name).exists() for name in (EDGES, ROWS)):
            raise DataError(f"{folder}: a half-written trace: it has no {MANIFEST}. {AGAIN}")
        first = min(folder.glob(f"*/{MANIFEST}"), default=None)
        if first is not None:
            raise DataError(f"{folder}: a folder of traces. Give one of them, as {first.parent}.")
        raise DataError(
            f"{folder}: not a trace: it has no {MANIFEST}. Check the path, or make a trace: "
            "headloom trace."
        )
    manifest = read_json(folder / MANIFEST, "trace")
    if not isinstance(manifest, dict) or manifest.get("format") != FORMAT:
        raise DataError(f"{folder}: not a trace: {MANIFEST} has no format {FORMAT!r}.")
    version = manifest.get("version")
    if isinstance(version, int) and version > VERSION:
        raise DataError(
            f"{folder}: a trace of version {version}, made by headloom {manifest.get('headloom')}; "
            f"this headloom reads up to version {VERSION}. Upgrade headloom."
        )
    try:
        _check_manifest(folder, manifest)
    except DataError:
        raise
    except (ValueError, RecursionError) as error:
        raise DataError(f"{folder}: this trace is damaged: {error}. {REMEDY}") from None
    # Absolute: the program may change its working directory before the layers are read.
    return folder.absolute(), manifest
