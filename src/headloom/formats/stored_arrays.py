"""Arrays that lie in files of other programs: .npy, .npz and .safetensors; nothing is unpickled.

What a file says of its arrays is read at once, and held against its size; the numbers of an array
when it is asked for.
"""

from __future__ import annotations

import math
import tokenize
import warnings
import zipfile
import zlib
from collections.abc import Callable, Iterator
from contextlib import contextmanager
from dataclasses import dataclass
from pathlib import Path
from typing import Any

import numpy as np
from numpy.typing import NDArray
from safetensors import SafetensorError, safe_open
from torch import Tensor

from headloom.errors import DataError
from headloom.formats.files import cannot_read, check_file, in_brief, open_file

__all__ = [
    "SUFFIXES",
    "Arrays",
    "StoredArray",
    "array_files",
    "read_npz",
    "stored_arrays",
]

#: By their names.
Arrays = dict[str, NDArray[Any]]

#: The endings of files of arrays.
SUFFIXES = (".npy", ".npz", ".safetensors")
#: Files that are read by running what is in them.
_PICKLES = (".pt", ".pth", ".bin", ".pkl", ".pickle", ".joblib", ".ckpt")

_UNREADABLE = (
    OSError, ValueError, KeyError, EOFError, NotImplementedError, MemoryError, OverflowError,
    TypeError, SyntaxError, RecursionError, RuntimeError, AssertionError, tokenize.TokenError,
    zipfile.BadZipFile, zlib.error, SafetensorError,
)  # fmt: skip

_WHAT = "file of arrays"
#: How a .npy file begins.
_ONE_ARRAY = b"\x93NUMPY"


@dataclass(frozen=True)
class StoredArray:
    """An array in a file.

    name    of the file without its ending, where there are several, and of the array in it
    place   what errors call it: the path of the file, and its name there
    shape   as its file says
    read    gives its numbers
    """

    name: str
    place: str
    shape: tuple[int, ...]
    read: Callable[[], Tensor | NDArray[Any]]


def array_files(path: Path) -> list[tuple[str, Path]]:
    """The files of arrays at a path: itself, or those of a folder, each with a name.

    Raises: DataError: there is none, or one that would be unpickled.
    """
    if path.is_dir():
        found = sorted(
            file for file in path.rglob("*")
            if file.suffix.lower() in SUFFIXES and not file.name.startswith(".")
        )  # fmt: skip
        if not found:
            raise DataError(
                f"{path}: no arrays in this folder; expected files that end in "
                f"{', '.join(SUFFIXES)}."
            )
        return [(str(file.relative_to(path).with_suffix("")), file) for file in found]
    if path.suffix.lower() in _PICKLES:
        raise DataError(
            f"{path}: not opened: reading such a file runs what is in it. Save the arrays by "
            "safetensors.torch.save_file or numpy.savez."
        )
    if path.suffix.lower() not in SUFFIXES:
        raise DataError(
            f"{path}: expected a folder, or a file that ends in {', '.join(SUFFIXES)}; for edges "
            ".parquet or .csv."
        )
    return [(path.stem, path)]


def stored_arrays(path: Path, name: str) -> list[StoredArray]:
    """The arrays in a file.

    name: what stands before the names of its arrays; empty: nothing.

    Raises: DataError: missing, damaged, or not what its name says.
    """
    read = {".npy": _of_npy, ".npz": _of_npz}.get(path.suffix.lower(), _of_safetensors)
    return _arrays_of(path, name, read(path, _WHAT), _WHAT)


def archived_arrays(path: Path, what: str) -> list[StoredArray]:
    """The arrays in a .npz file, whatever its ending; see `stored_arrays`.

    what: what errors call it.
    """
    return _arrays_of(path, "", _of_npz(path, what), what)


def _arrays_of(path: Path, name: str, read: Iterator[_Entry], what: str) -> list[StoredArray]:
    check_file(path, what)
    with _reading(path, what):
        return [
            StoredArray(
                "/".join(part for part in (name, own) if part),
                f"{path}: {own}" if own else str(path),
                shape,
                numbers,
            )
            for own, shape, numbers in read
        ]


_Entry = tuple[str, tuple[int, ...], Callable[[], Tensor | NDArray[Any]]]


def _of_npy(path: Path, what: str) -> Iterator[_Entry]:
    with open_file(path, what) as file:
        shape = _header(file, path.stat().st_size)

    def numbers() -> NDArray[Any]:
        with _reading(path, what), open_file(path, what) as again:
            _header(again, path.stat().st_size)
            again.seek(0)
            return np.lib.format.read_array(again, allow_pickle=False)

    yield "" if path.stem else path.name, shape, numbers


def _of_npz(path: Path, what: str) -> Iterator[_Entry]:
    with open_file(path, what) as file:
        if file.read(len(_ONE_ARRAY)) == _ONE_ARRAY:
            raise ValueError("it holds one array without a name, not an archive")
        with zipfile.ZipFile(file) as archive:
            members = archive.infolist()
            if len({member.filename for member in members}) < len(members):
                raise ValueError("two of its arrays have one name")
            for member in members:
                if not member.filename.endswith(".npy"):
                    raise ValueError(f"{member.filename[:80]!r} in it is no array")
                with archive.open(member) as content:
                    shape = _header(content, member.file_size)
                own = member.filename.removesuffix(".npy")
                yield own, shape, _member_of(path, member.filename, what)


def _member_of(path: Path, name: str, what: str) -> Callable[[], NDArray[Any]]:
    def numbers() -> NDArray[Any]:
        with (
            _reading(path, what, name), open_file(path, what) as file,
            zipfile.ZipFile(file) as archive,
        ):  # fmt: skip
            member = archive.getinfo(name)
            with archive.open(member) as content:
                _header(content, member.file_size)
            with archive.open(member) as content:
                array = np.lib.format.read_array(content, allow_pickle=False)
                # The end of the member, where its checksum is compared.
                if content.read(1):
                    raise ValueError("it is longer than its header says")
                return array

    return numbers


def _header(file: Any, size: int) -> tuple[int, ...]:
    """The shape of an array, from its header, which the size of its file bears out."""
    with warnings.catch_warnings():
        warnings.simplefilter("ignore")  # of a header that an old Python wrote
        version = np.lib.format.read_magic(file)
        if version == (1, 0):
            shape, _, dtype = np.lib.format.read_array_header_1_0(file)
        elif version == (2, 0):
            shape, _, dtype = np.lib.format.read_array_header_2_0(file)
        else:
            raise ValueError(f"a .npy of version {version}, which is not read")
    if dtype.hasobject:
        raise ValueError("it holds Python objects, which are not unpickled")
    if any(not isinstance(length, int) or length < 0 for length in shape):
        raise ValueError(f"its shape is {shape}")
    expected = file.tell() + math.prod(shape) * dtype.itemsize
    if expected != size:
        raise ValueError(f"{shape} of {dtype} takes {expected} bytes, and it has {size}")
    return shape


def _of_safetensors(path: Path, what: str) -> Iterator[_Entry]:
    with safe_open(path, framework="pt") as file:
        for name in file.keys():  # noqa: SIM118 - no dict
            yield name, tuple(file.get_slice(name).get_shape()), _tensor_of(path, name, what)


def _tensor_of(path: Path, name: str, what: str) -> Callable[[], Tensor]:
    def numbers() -> Tensor:
        check_file(path, what)
        with _reading(path, what, name), safe_open(path, framework="pt") as file:
            tensor: Tensor = file.get_tensor(name)
            return tensor

    return numbers


@contextmanager
def _reading(path: Path, what: str, name: str = "") -> Iterator[None]:
    """Errors of the libraries that read a file, as one line that says which."""
    try:
        yield
    except DataError:
        raise
    except _UNREADABLE as error:
        if isinstance(error, OSError) and error.errno is not None:
            raise cannot_read(path, what, error) from error
        where = f"{path}: {name}" if name else str(path)
        raise DataError(
            f"{where}: cannot be read as arrays of numbers: {in_brief(error)}. It is damaged, or "
            f"no {what}. Write it again, or restore it from a copy."
        ) from error


def read_npz(path: Path, what: str = "file of arrays") -> Arrays:
    """The arrays of a .npz file, by their names.

    Args: what: what errors call the file.
    Raises: DataError: no such file, damaged, or an array of objects, which would be unpickled.
    """
    return {array.name: np.asarray(array.read()) for array in archived_arrays(path, what)}
