"""Edge lists of other programs: a Parquet or CSV table with a row for each edge."""

from __future__ import annotations

from pathlib import Path
from typing import Any

import numpy as np
import pyarrow as pa
import pyarrow.csv
import pyarrow.parquet as pq
from numpy.typing import NDArray

from headloom.errors import DataError
from headloom.formats.files import cannot_read, check_file, in_brief, open_file
from headloom.formats.trace_reader import check_stored_types

__all__ = ["COLUMNS", "SUFFIXES", "read_edges"]

#: The endings of files of edges.
SUFFIXES = (".parquet", ".csv")
#: What every edge says; and what it may say.
COLUMNS = ("layer", "head", "query", "key", "weight")
_MORE = ("score",)
_TEXTS = ("name", "kind", "query_token", "key_token")

#: What the library raises for a table that it cannot read.
_UNREADABLE = (
    pa.ArrowException, OSError, ValueError, KeyError, TypeError, RuntimeError, OverflowError,
    MemoryError,
)  # fmt: skip

Columns = dict[str, NDArray[Any]]


def read_edges(path: Path) -> Columns:
    """The columns of a table of edges: whole numbers, float64, and texts where there are some.

    Raises: DataError: no such file, damaged, columns that are missing or of other types, or
        missing values.
    """
    what = "table of edges"
    check_file(path, what)
    try:
        table = _of_csv(path) if path.suffix.lower() == ".csv" else _of_parquet(path)
        return {name: _column(table, name) for name in table.column_names}
    except DataError:
        raise
    except _UNREADABLE as error:
        if isinstance(error, OSError) and error.errno is not None:
            raise cannot_read(path, what, error) from error
        raise DataError(
            f"{path}: cannot be read as a table of edges: {in_brief(error)}. Expected the columns "
            f"{', '.join(COLUMNS)}, a row for each edge."
        ) from error


def _wanted(names: list[str]) -> list[str]:
    """The columns that are read."""
    missing = [name for name in COLUMNS if name not in names]
    if missing:
        raise ValueError(f"it has no column {', '.join(missing)}, but {', '.join(names)[:80]}")
    if len(set(names)) < len(names):
        raise ValueError("two of its columns have one name")
    return [name for name in (*COLUMNS, *_MORE, *_TEXTS) if name in names]


def _of_parquet(path: Path) -> pa.Table:
    with pq.ParquetFile(path, page_checksum_verification=True) as file:
        wanted = _wanted(file.schema_arrow.names)
        for number in range(file.num_row_groups):
            check_stored_types(file.metadata.row_group(number), file.schema)
        table = file.read(wanted)
    table.validate(full=True)
    return table


def _of_csv(path: Path) -> pa.Table:
    with open_file(path, "table of edges") as file:
        content = file.read()
    if not content.endswith((b"\n", b"\r")):
        raise ValueError(
            "its last line has no end, as in a file that was cut off; if it is whole, end the line"
        )
    header = content.split(b"\n", 1)[0].decode("utf-8").lstrip("\ufeff")
    names = [name.strip().strip('"') for name in header.strip("\r").split(",")]
    wanted = _wanted(names)
    types = {name: pa.float64() for name in ("weight", "score")}
    types |= {name: pa.int64() for name in COLUMNS if name != "weight"}
    types |= dict.fromkeys(_TEXTS, pa.string())
    return pyarrow.csv.read_csv(
        pa.BufferReader(content),
        read_options=pyarrow.csv.ReadOptions(use_threads=False, column_names=names, skip_rows=1),
        parse_options=pyarrow.csv.ParseOptions(newlines_in_values=True),
        convert_options=pyarrow.csv.ConvertOptions(include_columns=wanted, column_types=types),
    )


def _column(table: pa.Table, name: str) -> NDArray[Any]:
    """A column as an array of NumPy, of its kind."""
    column = table.column(name)
    if column.null_count:
        raise ValueError(f"its column {name} has {column.null_count} missing values")
    kind = column.type
    if pa.types.is_dictionary(kind):
        column = column.cast(kind.value_type)
        kind = column.type
    if name in _TEXTS:
        if not (pa.types.is_string(kind) or pa.types.is_large_string(kind)):
            raise ValueError(f"its column {name} is of {kind}; expected texts")
        return np.array(column.to_pylist(), dtype=object)
    whole = name in COLUMNS and name != "weight"
    fits = pa.types.is_integer(kind) if whole else pa.types.is_floating(kind)
    if not fits:
        expected = "whole numbers" if whole else "fractions"
        raise ValueError(f"its column {name} is of {kind}; expected {expected}")
    return np.asarray(column.to_numpy()).astype(np.int64 if whole else np.float64)
