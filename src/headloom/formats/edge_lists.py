"""Edge lists of other programs: a Parquet or CSV table with a row for each edge."""

from __future__ import annotations

from pathlib import Path

import numpy as np
import pyarrow as pa
import pyarrow.csv
import pyarrow.parquet as pq
from numpy.typing import NDArray

from headloom.errors import DataError
from headloom.formats.files import cannot_read, check_file, in_brief
from headloom.formats.layer_data import check_stored_types

#: The endings of files of edges.
SUFFIXES = (".parquet", ".csv")

_TYPES = {
    "layer": pa.int64(), "head": pa.int64(), "query": pa.int64(), "key": pa.int64(),
    "weight": pa.float64(), "name": pa.string(), "kind": pa.string(),
    "query_token": pa.string(), "key_token": pa.string(),
}  # fmt: skip


def read_edges(path: Path) -> dict[str, NDArray[np.generic]]:
    """Return the columns that `headloom.from_edges` knows.

    Raises: DataError: no such file, damaged, columns that are missing or of other types, or
        missing values.
    """
    what = "table of edges"
    check_file(path, what)
    try:
        table = _of_csv(path) if path.suffix.lower() == ".csv" else _of_parquet(path)
        names = [name for name in _TYPES if name in table.column_names]
        table = table.select(names).cast(pa.schema({name: _TYPES[name] for name in names}))
        if empty := [name for name in names if table[name].null_count]:
            raise ValueError(f"its column {empty[0]} has missing values")
        return {name: np.asarray(table[name].to_numpy()) for name in names}
    except (pa.ArrowException, OSError, ValueError, KeyError, TypeError, RuntimeError) as error:
        if isinstance(error, OSError) and error.errno is not None:
            raise cannot_read(path, what, error) from error
        raise DataError(
            f"{path}: cannot be read as a table of edges: {in_brief(error)}. Expected the columns "
            "layer, head, query, key, weight, a row for each edge."
        ) from error


def _of_csv(path: Path) -> pa.Table:
    return pyarrow.csv.read_csv(
        path,
        parse_options=pyarrow.csv.ParseOptions(newlines_in_values=True),
        convert_options=pyarrow.csv.ConvertOptions(column_types=_TYPES),
    )


def _of_parquet(path: Path) -> pa.Table:
    with pq.ParquetFile(path, page_checksum_verification=True) as file:
        for number in range(file.num_row_groups):
            check_stored_types(file.metadata.row_group(number), file.schema)
        return file.read([name for name in file.schema_arrow.names if name in _TYPES])
