"""Tensors on disk: safetensors with a digest, so that a damaged file is refused.

Equal tensors and notes give identical files. The safetensors library's own writer does not: the
order of its header differs between processes.
"""

from __future__ import annotations

import hashlib
import json
import shutil
from pathlib import Path
from typing import BinaryIO

import torch
from safetensors import safe_open
from torch import Tensor

from headloom.formats.files import JsonObject, atomic_file, check_file, parse_json, reading

#: Types by their safetensors names.
DTYPES = {
    torch.float64: "F64",
    torch.float32: "F32",
    torch.bfloat16: "BF16",
    torch.float16: "F16",
    torch.int64: "I64",
    torch.int32: "I32",
    torch.int16: "I16",
    torch.int8: "I8",
    torch.uint8: "U8",
    torch.bool: "BOOL",
}


def _header(contents: JsonObject) -> bytes:
    """Return a safetensors header without its length: JSON, padded to a multiple of 8 bytes."""
    header = json.dumps(contents, separators=(",", ":")).encode()
    return header + b" " * (-len(header) % 8)


def _bytes(tensor: Tensor) -> memoryview:
    return tensor.reshape(-1).view(torch.uint8).numpy().data


def _digest(tensors: dict[str, Tensor]) -> str:
    """Return the SHA-256 of names, types, shapes and bytes of all tensors, sorted by name."""
    digest = hashlib.sha256()
    for name in sorted(tensors):
        tensor = tensors[name]
        digest.update(f"{name} {tensor.dtype} {list(tensor.shape)}\n".encode())
        digest.update(_bytes(tensor))
    return digest.hexdigest()


def _text_digest(text: str) -> str:
    return hashlib.sha256(text.encode()).hexdigest()


def save_tensors(
    path: Path, tensors: dict[str, Tensor], notes: JsonObject, remedy: str = ""
) -> None:
    """Write tensors and notes (any JSON) atomically.

    remedy: see `disk_errors`.
    """
    tensors = {name: tensor.detach().cpu().contiguous() for name, tensor in tensors.items()}
    text = json.dumps(notes, ensure_ascii=False)
    metadata = {"notes": text, "notes_sha256": _text_digest(text), "sha256": _digest(tensors)}
    # Wide types first, so that each tensor starts at a multiple of its element size; then by name.
    names = sorted(tensors, key=lambda name: (-tensors[name].element_size(), name))
    contents: JsonObject = {"__metadata__": metadata}
    end = 0
    for name in names:
        start, end = end, end + tensors[name].nbytes
        contents[name] = {
            "dtype": DTYPES[tensors[name].dtype],
            "shape": list(tensors[name].shape),
            "data_offsets": [start, end],
        }
    header = _header(contents)
    with atomic_file(path, remedy) as temporary, temporary.open("wb") as file:
        file.write(len(header).to_bytes(8, "little") + header)
        for name in names:
            file.write(_bytes(tensors[name]))


def read_notes(path: Path, what: str) -> JsonObject:
    """Read the notes without the tensors."""
    _, notes = _read(path, what, whole=False)
    return notes


def load_tensors(path: Path, what: str) -> tuple[dict[str, Tensor], JsonObject]:
    """Read all tensors and the notes.

    Args:
        path: of the file.
        what: name of such a file in errors.

    Raises: DataError: missing, half-written, or changed since it was written.
    """
    return _read(path, what, whole=True)


def _read(path: Path, what: str, *, whole: bool) -> tuple[dict[str, Tensor], JsonObject]:
    check_file(path, what)
    remedy = "Remove it, or restore it from a copy."
    with reading(path, what, f"{path}: this {what} is damaged or half-written", remedy):
        with safe_open(path, framework="pt") as file:
            metadata = file.metadata() or {}
            tensors = {name: file.get_tensor(name) for name in (file.keys() if whole else ())}
        notes = parse_json(metadata["notes"], path, what)
        if metadata.get("notes_sha256") != _text_digest(metadata["notes"]):
            raise ValueError("its notes do not match their digest")
        if not isinstance(notes, dict):
            raise ValueError("its notes are no object")
        if whole and _digest(tensors) != metadata.get("sha256"):
            raise ValueError("its content does not match its digest")
    return tensors, notes


class TensorFile:
    """Safetensors file written one tensor at a time.

    The header comes first in the format. Space is reserved for it, in proportion to the bytes of
    the first layer; only if that is too small are the data copied behind a larger one.
    """

    def __init__(self, path: Path, metadata: dict[str, str], first: int) -> None:
        self._path, self._room = path, min(2**18, first // 128 * 8)
        self._contents: JsonObject = {"__metadata__": metadata}
        self._file: BinaryIO = path.open("wb")
        self._file.seek(self._room)

    def append(self, name: str, tensor: Tensor) -> None:
        """Add a tensor."""
        start = self._file.tell() - self._room
        self._file.write(_bytes(tensor.detach().cpu().contiguous()))
        self._contents[name] = {
            "dtype": DTYPES[tensor.dtype],
            "shape": list(tensor.shape),
            "data_offsets": [start, self._file.tell() - self._room],
        }

    def close(self) -> None:
        """Close the file, complete or not."""
        self._file.close()

    def finish(self) -> None:
        """Write the header and close the file."""
        self.close()
        header = _header(self._contents)
        if 8 + len(header) <= self._room:
            header += b" " * (self._room - 8 - len(header))
            with self._path.open("r+b") as file:
                file.write(len(header).to_bytes(8, "little") + header)
            return
        part = self._path.with_suffix(".part")
        with part.open("wb") as whole, self._path.open("rb") as numbers:
            whole.write(len(header).to_bytes(8, "little") + header)
            numbers.seek(self._room)
            shutil.copyfileobj(numbers, whole)
        part.replace(self._path)
