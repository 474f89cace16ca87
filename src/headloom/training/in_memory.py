"""Data in memory or in files, converted to the files that a task reads.

Data of memory are written once, as JSON lines, text or .npz, and the configuration refers to them.
"""

from __future__ import annotations

import io
import json
from collections.abc import Mapping, Sequence
from dataclasses import dataclass, field
from pathlib import Path

import numpy as np

from headloom.errors import InputError
from headloom.formats.files import JsonObject, is_there, read_text, text_lines
from headloom.formats.stored_arrays import read_npz
from headloom.training.examples import (
    NAMED_ENDS,
    NAMES,
    Columns,
    Roles,
    as_columns,
    as_text,
    extension_of,
    file_columns,
    match_columns,
    read_columns,
    role_texts,
)

#: Names of the parts of data.
PARTS = {"train": "train", "valid": "valid", "validation": "valid", "val": "valid", "dev": "valid",
         "test": "test"}  # fmt: skip
#: The columns that tasks read.
ROLES = {"translation": ("source", "target"), "labels": ("text", "label"), "language": ("text",),
         "images": ("image", "label")}  # fmt: skip
#: Extensions of data files, without .gz.
ENDS = (*NAMED_ENDS, ".tsv", ".txt", ".npz")


@dataclass(frozen=True)
class Gathered:
    """Data ready for a task: keys of [task] with their paths, and suitable settings.

    files: contents to write to the folder; empty: the data are files already.
    """

    kind: str
    settings: JsonObject
    usual: JsonObject = field(default_factory=dict)
    files: dict[str, bytes] = field(default_factory=dict)

    def task(self, folder: Path) -> JsonObject:
        """Return the keys of [task], for data written in this folder."""
        if not self.files:
            return self.settings
        place = next(key for key in ("folder", "file", "graph") if key in self.settings)
        return {**self.settings, place: str(folder / self.settings[place])}

    def write(self, folder: Path) -> None:
        """Write the data of memory to a folder."""
        folder.mkdir(parents=True, exist_ok=True)
        for name, content in self.files.items():
            (folder / name).write_bytes(content)

    def is_in(self, folder: Path) -> bool:
        """Return whether a folder holds these data."""
        return all(
            (folder / name).is_file() and (folder / name).read_bytes() == content
            for name, content in self.files.items()
        )


def is_path(value: object) -> bool:
    """Return whether a value is a path: a Path, or a text that exists or has a data extension."""
    if isinstance(value, str) and len(value) < 1_000 and "\n" not in value:
        return extension_of(Path(value)) in ENDS or is_there(value)
    return isinstance(value, Path)


def gather(data: object, kind: str | None, roles: Roles) -> Gathered:
    """Gather data of any form, see `headloom.train`; kind: of the task, None: detect it.

    roles: the given columns of "text", "label", "source", "target".
    """
    parts = {"train": data}
    if isinstance(data, Mapping) and data and all(str(name) in PARTS for name in data):
        parts = {PARTS[str(name)]: part for name, part in data.items()}
        if "train" not in parts:
            raise InputError(f"data: a dict of the parts {', '.join(parts)}; 'train' is missing.")
    files = {name: _files(part) for name, part in parts.items()}
    if all(files.values()):
        return _of_files(files, kind, roles)
    if isinstance(data, str):
        if kind not in (None, "language"):
            raise InputError(f"data: {data[:60]!r}: no such file. Check the path.")
        return _of_texts({"train": [data]}, [])
    if hasattr(data, "edge_index"):
        return _of_graph(data)
    columns = {name: as_columns(part) for name, part in parts.items()}
    for name, values in columns["train"].items():
        if len(values) and (hasattr(values[0], "getbands") or getattr(values[0], "ndim", 0) >= 2):
            return _of_images(columns, {"image": name, "label": roles.get("label")})
    kind = kind or _kind_of(columns["train"], roles)
    if kind not in ("translation", "labels", "language"):
        raise InputError(f"task {kind!r}: not learned from columns of texts. Leave data out.")
    wanted = {role: roles.get(role) for role in ROLES[kind]}
    if kind == "labels" and not any(wanted.values()):
        wanted = _text_and_label(columns["train"])
    texts = {name: role_texts(part, wanted, f"data, {name}") for name, part in columns.items()}
    first = columns["train"][match_columns(columns["train"], wanted, "data")[ROLES[kind][0]]]
    are_ids = bool(first) and not isinstance(first[0], str)
    ids = [part[0] for part in texts.values()] if are_ids else []
    if kind == "language":
        return _of_texts({name: part[0] for name, part in texts.items()}, ids)
    names = {name: f"{name}.jsonl" for name in texts}
    keys = [roles.get(role) or role for role in wanted]
    written = {names[name]: _json_lines(keys, part) for name, part in texts.items()}
    if kind == "labels":
        return Gathered(kind, {"folder": "", **names}, _of_ids(ids), written)
    return Gathered(kind, {"folder": "", **{n: [f] for n, f in names.items()}}, {}, written)


def _json_lines(keys: Sequence[str], columns: Sequence[Sequence[str]]) -> bytes:
    rows = (dict(zip(keys, row, strict=True)) for row in zip(*columns, strict=True))
    return "".join(json.dumps(row, ensure_ascii=False) + "\n" for row in rows).encode()


def _of_ids(texts: Sequence[Sequence[str]]) -> JsonObject:
    """Return settings of ids, which are words of one token each."""
    if not texts:
        return {}
    words = {word for part in texts for text in part for word in text.split()}
    return {"tokens": "words", "vocabulary": max(300, len(words) + 4)}


def _of_texts(parts: Mapping[str, Sequence[str]], ids: Sequence[Sequence[str]]) -> Gathered:
    """Join texts for a language model; the validation data are the end."""
    joined = {name: "\n".join(texts) + "\n" for name, texts in parts.items()}
    text, held_out = joined["train"], joined.get("valid", "")
    # Half a character less, so that rounding does not move the border.
    share = (len(held_out) - 0.5) / (len(text) + len(held_out))
    settings = {"file": "text.txt", **({"valid_share": share} if held_out else {})}
    return Gathered("language", settings, _of_ids(ids), {"text.txt": (text + held_out).encode()})


def _npz(**arrays: np.ndarray) -> bytes:
    buffer = io.BytesIO()
    np.savez(buffer, **arrays)  # type: ignore[arg-type]  # one of them is no "allow_pickle"
    return buffer.getvalue()


def _of_graph(data: object) -> Gathered:
    """Convert a PyTorch Geometric `Data`."""
    names = ("edge_index", "x", "y", "train_mask", "val_mask", "test_mask")
    arrays = {n: np.asarray(array) for n in names if (array := getattr(data, n, None)) is not None}
    return Gathered("nodes", {"graph": "graph.npz"}, {}, {"graph.npz": _npz(**arrays)})


def _of_images(parts: Mapping[str, Columns], roles: Roles) -> Gathered:
    written = {}
    for name, columns in parts.items():
        image, label = match_columns(columns, roles, f"data, {name}").values()
        pictures = [np.asarray(value) for value in columns[image]]
        if len({picture.shape for picture in pictures}) != 1:
            raise InputError(f"data, {name}: images of different sizes; a model reads one size.")
        pixels, labels = np.stack(pictures), np.array([*map(as_text, columns[label])])
        if pixels.ndim == 4 and pixels.shape[1] in (1, 3) and pixels.shape[3] not in (1, 3):
            pixels = np.moveaxis(pixels, 1, -1)  # as torch has them
        low, high = float(pixels.min()), float(pixels.max())
        if low >= 0 and 1 < high < 256 and (pixels == np.rint(pixels)).all():
            pixels = pixels.astype(np.uint8)
        elif pixels.dtype.kind != "f" or not 0 <= low <= high <= 1:
            raise InputError(
                f"data, {name}: images are {pixels.dtype} from {low:g} to {high:g}; expected whole "
                "numbers below 256, or floats from 0 to 1. Divide by the largest possible value."
            )
        written[f"{name}.npz"] = _npz(images=pixels, labels=labels)
    return Gathered("images", {"folder": "", **{n: f"{n}.npz" for n in parts}}, {}, written)


def _are_classes(values: Sequence[object]) -> bool:
    """Return whether values are classes: integers, or few texts that repeat."""
    numbers = all(isinstance(value, int | np.integer) for value in values)
    different = len(set(map(as_text, values)))
    return numbers or (different < len(values) and different <= max(2, len(values) // 10))


def _kind_of(columns: Columns, roles: Roles) -> str:
    """Detect the task of columns."""
    names = {name.lower() for name in columns}
    if roles.get("label") or roles.get("source"):
        return "labels" if roles.get("label") else "translation"
    for kind in ("translation", "labels"):
        if all(names & set(NAMES[role]) for role in ROLES[kind]):
            return kind
    if len(columns) == 1:
        return "language"
    if len(columns) != 2:
        raise InputError(
            f"data: the task of the columns {', '.join(map(repr, columns))} is not clear. Pass "
            'task="labels", text="...", label="..."; or task="translation", source="...", '
            'target="..."; or task="language", text="...".'
        )
    return "labels" if any(map(_are_classes, columns.values())) else "translation"


def _text_and_label(columns: Columns) -> dict[str, str | None]:
    """Assign text and label columns; without usual names, the one with few values is the label."""
    names = {name.lower() for name in columns}
    if len(columns) != 2 or names & {*NAMES["text"], *NAMES["label"]}:
        return {"text": None, "label": None}
    text, label = columns
    if _are_classes(columns[text]) and not _are_classes(columns[label]):
        text, label = label, text
    return {"text": text, "label": label}


def _files(part: object) -> list[Path]:
    """Return the paths of a part; none: it is in memory."""
    if isinstance(part, str | Path):
        return [Path(part)] if is_path(part) else []
    if isinstance(part, list | tuple) and 0 < len(part) <= 2:
        return [Path(path) for path in part] if all(map(is_path, part)) else []
    return []


def _of_files(parts: Mapping[str, list[Path]], kind: str | None, roles: Roles) -> Gathered:
    """Refer to files that a task reads in place."""
    train = parts["train"]
    kind = kind or _kind_of_files(train, roles)
    if kind in ("language", "nodes"):
        if len(parts) > 1 or len(train) > 1:
            raise InputError(f"data: task {kind!r} reads one file. Give one; it is split.")
        return Gathered(kind, {"file" if kind == "language" else "graph": str(train[0])})
    folder = train[0].parent
    names = {
        part: [f.name if f.parent == folder else str(f.resolve()) for f in files]
        for part, files in parts.items()
    }
    settings = names if kind == "translation" else {part: files[0] for part, files in names.items()}
    return Gathered(kind, {"folder": str(folder), **settings})


def _kind_of_files(files: list[Path], roles: Roles) -> str:
    path, end = files[0], extension_of(files[0])
    if len(files) == 2:
        return "translation"
    if path.is_dir():
        return "labels" if any(path.glob("*/*.txt")) else "images"
    if end == ".npz":
        return "nodes" if "edge_index" in read_npz(path, "data") else "images"
    if end in NAMED_ENDS:
        return _kind_of(file_columns(path), roles)
    if end == ".tsv":
        for kind in ("translation", "labels"):
            if read_columns(path, {role: roles.get(role) for role in ROLES[kind]}, "data"):
                return kind
        rows = [line.split("\t") for line in text_lines(read_text(path, "data")) if line.strip()]
        if any(len(row) == 3 for row in rows):  # label TAB id TAB text
            return "labels"
        first = {"0": [row[0] for row in rows], "1": [row[-1] for row in rows]}
        return _kind_of(first, roles)  # type: ignore[arg-type]
    return "language"
