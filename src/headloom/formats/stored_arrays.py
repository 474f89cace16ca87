"""Arrays that lie in files of other programs: .npy, .npz and .safetensors; nothing is unpickled."""

from __future__ import annotations

import tokenize
import zipfile
import zlib
from collections.abc import Iterator
from contextlib import contextmanager
from pathlib import Path

import numpy as np
from numpy.typing import NDArray
from safetensors import SafetensorError
from torch import Tensor

from headloom.errors import DataError
from headloom.formats.files import cannot_read, check_file, in_brief, open_file

#: By their names.
Arrays = dict[str, NDArray[np.generic]]

#: The endings of files of arrays.
SUFFIXES = (".npy", ".npz", ".safetensors")

_UNREADABLE = (
    OSError, ValueError, KeyError, EOFError, NotImplementedError, MemoryError, OverflowError,
    TypeError, SyntaxError, RuntimeError, tokenize.TokenError, zipfile.BadZipFile, zlib.error,
    SafetensorError,
)  # fmt: skip


def read_arrays(path: Path) -> dict[str, NDArray[np.generic] | Tensor]:
    """Return the arrays of a file, or of a folder's files, by their names.

    In a folder, and of a .npy file, a name begins with that of the file, without its ending.

    Raises: DataError: none are there, or a file is damaged or would be unpickled.
    """
    if not path.is_dir():
        return _read(path, path.stem if path.suffix.lower() == ".npy" else "")
    files = sorted(
        file for file in path.rglob("*")
        if file.suffix.lower() in SUFFIXES and not file.name.startswith(".")
    )  # fmt: skip
    if not files:
        raise DataError(f"{path}: no arrays in this folder; expected {', '.join(SUFFIXES)}.")
    arrays: dict[str, NDArray[np.generic] | Tensor] = {}
    for file in files:
        arrays |= _read(file, str(file.relative_to(path).with_suffix("")))
    return arrays


def _read(path: Path, prefix: str) -> dict[str, NDArray[np.generic] | Tensor]:
    what, suffix = "file of arrays", path.suffix.lower()
    if suffix not in SUFFIXES:
        raise DataError(
            f"{path}: expected a folder, or a file that ends in {', '.join(SUFFIXES)}; for edges "
            ".parquet or .csv. Other files, as .pt, are read by running what is in them."
        )
    arrays: dict[str, NDArray[np.generic] | Tensor]
    if suffix == ".npz":
        arrays = {**read_npz(path, what)}
    else:
        check_file(path, what)
        with _reading(path, what):
            if suffix == ".safetensors":
                from safetensors.torch import load_file

                arrays = {**load_file(path)}
            else:
                # Mapped into memory: read where it is used, and held against the file's size.
                return {prefix: np.load(path, mmap_mode="r", allow_pickle=False)}
    return {f"{prefix}/{name}" if prefix else name: array for name, array in arrays.items()}


def read_npz(path: Path, what: str = "file of arrays") -> Arrays:
    """Return the arrays of a .npz file, whatever its ending, by their names.

    Args: what: what errors call the file.
    Raises: DataError: no such file, damaged, or an array of objects, which would be unpickled.
    """
    check_file(path, what)
    arrays: Arrays = {}
    with _reading(path, what), open_file(path, what) as file, zipfile.ZipFile(file) as archive:
        for member in archive.infolist():
            name = member.filename.removesuffix(".npy")
            if name == member.filename or name in arrays:
                raise ValueError(f"{member.filename[:80]!r} in it is no array, or there twice")
            with archive.open(member) as content:
                arrays[name] = np.lib.format.read_array(content, allow_pickle=False)
                # The end of the member, where its checksum is compared.
                if content.read(1):
                    raise ValueError(f"{name} is longer than its header says")
    return arrays


@contextmanager
def _reading(path: Path, what: str) -> Iterator[None]:
    """Errors of the libraries that read a file, as one line that says which."""
    try:
        yield
    except DataError:
        raise
    except _UNREADABLE as error:
        if isinstance(error, OSError) and error.errno is not None:
            raise cannot_read(path, what, error) from error
        raise DataError(
            f"{path}: cannot be read as arrays of numbers: {in_brief(error)}. It is damaged, or "
            f"no {what}. Write it again, or restore it from a copy."
        ) from error
