"""Arrays and edge tables from other programs' files; nothing is unpickled."""

from __future__ import annotations

import zipfile
from contextlib import AbstractContextManager
from pathlib import Path

import numpy as np
import pyarrow as pa
import pyarrow.csv
import pyarrow.parquet as pq
from numpy.typing import NDArray
from torch import Tensor

from headloom.errors import DataError
from headloom.formats.files import check_file, open_file, reading

#: Arrays by name.
Arrays = dict[str, NDArray[np.generic]]

#: Suffixes of array files.
SUFFIXES = (".npy", ".npz", ".safetensors")
#: Suffixes of edge files.
EDGE_SUFFIXES = (".parquet", ".csv")

_EDGE_TYPES = {
    "layer": pa.int64(), "head": pa.int64(), "query": pa.int64(), "key": pa.int64(),
    "weight": pa.float64(), "name": pa.string(), "kind": pa.string(),
    "query_token": pa.string(), "key_token": pa.string(),
}  # fmt: skip


def read_arrays(path: Path) -> dict[str, NDArray[np.generic] | Tensor]:
    """Return the arrays of a file, or of a folder's files, by name.

    In a folder, and for a .npy file, names begin with the file's name without its suffix.

    Raises: DataError: no arrays, a damaged file, or a file that would have to be unpickled.
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
            ".parquet or .csv. Reading other files, as .pt, would run code that is in them."
        )
    arrays: dict[str, NDArray[np.generic] | Tensor]
    if suffix == ".npz":
        arrays = {**read_npz(path, what)}
    else:
        with _reading(path, what):
            if suffix == ".safetensors":
                from safetensors.torch import load_file

                arrays = {**load_file(path)}
            else:
                # Memory-mapped: read on use, and checked against the file's size.
                return {prefix: np.load(path, mmap_mode="r", allow_pickle=False)}
    return {f"{prefix}/{name}" if prefix else name: array for name, array in arrays.items()}


def read_npz(path: Path, what: str = "file of arrays") -> Arrays:
    """Return the arrays of a .npz file, with any suffix, by name.

    Args:
        path: of the file.
        what: name of such a file in errors.

    Raises: DataError: no such file, damaged, or an array of objects, which would be unpickled.
    """
    arrays: Arrays = {}
    with _reading(path, what), open_file(path, what) as file, zipfile.ZipFile(file) as archive:
        for member in archive.infolist():
            name = member.filename.removesuffix(".npy")
            if name == member.filename or name in arrays:
                raise ValueError(f"{member.filename[:80]!r} in it is no array, or there twice")
            with archive.open(member) as content:
                arrays[name] = np.lib.format.read_array(content, allow_pickle=False)
                # Reading to the end of the member compares its checksum.
                if content.read(1):
                    raise ValueError(f"{name} is longer than its header says")
    return arrays


def _reading(path: Path, what: str) -> AbstractContextManager[None]:
    check_file(path, what)
    remedy = f"It is damaged, or no {what}. Write it again, or restore it from a copy."
    return reading(path, what, f"{path}: cannot be read as arrays of numbers", remedy)


def read_edges(path: Path) -> dict[str, NDArray[np.generic]]:
    """Return the columns that `headloom.from_edges` accepts.

    Raises: DataError: no such file, damaged, columns missing or of other types, or missing values.
    """
    check_file(path, "table of edges")
    remedy = "Expected the columns layer, head, query, key, weight, a row for each edge."
    damage = f"{path}: cannot be read as a table of edges"
    with reading(path, "table of edges", damage, remedy):
        if path.suffix.lower() == ".csv":
            multiline = pyarrow.csv.ParseOptions(newlines_in_values=True)
            types = pyarrow.csv.ConvertOptions(column_types=_EDGE_TYPES)
            table = pyarrow.csv.read_csv(path, parse_options=multiline, convert_options=types)
        else:
            with pq.ParquetFile(path, page_checksum_verification=True) as file:
                table = file.read([x for x in file.schema_arrow.names if x in _EDGE_TYPES])
        names = [name for name in _EDGE_TYPES if name in table.column_names]
        table = table.select(names).cast(pa.schema({name: _EDGE_TYPES[name] for name in names}))
        if empty := [name for name in names if table[name].null_count]:
            raise ValueError(f"its column {empty[0]} has missing values")
        return {name: np.asarray(table[name].to_numpy()) for name in names}
