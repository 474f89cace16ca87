"""`Answer`: what a question in SQL gives, as a table, a file, or the texts of its cells."""

from __future__ import annotations

import json
from collections.abc import Iterator
from dataclasses import dataclass
from pathlib import Path
from typing import TYPE_CHECKING

import pyarrow as pa
import pyarrow.parquet as pq

from headloom.analysis.sql.database import one_line
from headloom.errors import InputError
from headloom.formats.files import atomic_file, finite
from headloom.formats.tokens import visible

if TYPE_CHECKING:
    from duckdb import DuckDBPyConnection as Connection

__all__ = [
    "WRITERS",
    "Answer",
    "cells",
    "rows_of_csv",
]


@dataclass(frozen=True, eq=False)
class Answer:
    """The answer to a query: read it once, by one of its methods.

    note: of what the traces hold nothing, in a sentence; "": of nothing that was asked for.
    """

    reader: pa.RecordBatchReader
    connection: Connection
    note: str = ""

    @property
    def columns(self) -> list[str]:
        """Their names; of ``select a.layer, b.layer`` layer and layer_2."""
        seen: dict[str, int] = {}
        names = []
        for name in self.reader.schema.names:
            seen[name] = seen.get(name, 0) + 1
            names.append(name if seen[name] == 1 else f"{name}_{seen[name]}")
        return names

    @property
    def schema(self) -> pa.Schema:
        """Names and types."""
        fields = zip(self.reader.schema, self.columns, strict=True)
        return pa.schema([field.with_name(name) for field, name in fields])

    def batches(self) -> Iterator[pa.RecordBatch]:
        """Some rows at a time."""
        schema = self.schema
        with one_line():
            for batch in self.reader:
                yield pa.RecordBatch.from_arrays(batch.columns, schema=schema)

    def table(self) -> pa.Table:
        """The whole of it."""
        return pa.Table.from_batches(self.batches(), self.schema)

    def write(self, path: Path | str) -> int:
        """Write it to a file whose suffix chooses the format: .csv, .parquet or .json.

        Returns: how many rows.

        Raises: InputError: another suffix; DataError: the file cannot be written.
        """
        path = Path(path)
        writer = WRITERS.get(path.suffix.lower())
        if writer is None:
            raise InputError(f"{path}: expected a file name that ends in {', '.join(WRITERS)}.")
        with atomic_file(path) as temporary:
            return writer(self, temporary)


def _write_csv(answer: Answer, path: Path) -> int:
    import pyarrow.csv
    import pyarrow.types as types

    # Lists and the like, and bytes, have no form of their own in CSV.
    formless = [
        types.is_nested(field.type) or types.is_binary(field.type) for field in answer.schema
    ]
    schema = pa.schema(
        [
            pa.field(field.name, pa.string()) if has_none else field
            for field, has_none in zip(answer.schema, formless, strict=True)
        ]
    )
    count = 0
    with one_line(), pyarrow.csv.CSVWriter(path, schema) as writer:
        for batch in answer.batches():
            columns = [
                pa.array(map(_cell_of_csv, column.to_pylist()), pa.string()) if has_none else column
                for column, has_none in zip(batch.columns, formless, strict=True)
            ]
            writer.write_batch(pa.RecordBatch.from_arrays(columns, schema=schema))
            count += batch.num_rows
    return count


def _write_parquet(answer: Answer, path: Path) -> int:
    count = 0
    with pq.ParquetWriter(path, answer.schema, compression="zstd") as writer:
        for batch in answer.batches():
            writer.write_batch(batch)
            count += batch.num_rows
    return count


def _write_json(answer: Answer, path: Path) -> int:
    rows = answer.table().to_pylist()
    path.write_text(_json(rows, indent=1) + "\n", encoding="utf-8")
    return len(rows)


def rows_of_csv(table: pa.Table) -> Iterator[tuple[object, ...]]:
    """Its rows as CSV has them: lists and structures as JSON, bytes as hexadecimal."""
    for row in zip(*table.to_pydict().values(), strict=True):
        yield tuple(_cell_of_csv(cell) for cell in row)


def _cell_of_csv(cell: object) -> object:
    if isinstance(cell, bytes):
        return cell.hex()
    return _json(cell) if isinstance(cell, list | dict | tuple) else cell


def _json(value: object, indent: int | None = None) -> str:
    """A value as JSON, which has no number that is none."""
    return json.dumps(
        finite(value), ensure_ascii=False, default=_text, indent=indent, allow_nan=False
    )


def _text(value: object) -> str:
    return value.hex() if isinstance(value, bytes) else str(value)


#: How an answer is written, by the suffix of the file.
WRITERS = {".csv": _write_csv, ".parquet": _write_parquet, ".json": _write_json}


def cells(table: pa.Table, limit: int) -> tuple[list[str], list[list[str]], list[str]]:
    """The headings, the first rows as texts, and the headings of columns that are no numbers.

    >>> cells(pa.table({"token": ["dog", " cat"], "weight": [0.25, 1e-9]}), 10)
    (['token', 'weight'], [['dog', '0.25'], ['␣cat', '1e-09']], ['token'])
    """
    import pyarrow.types as types

    header = [visible(name) for name in table.column_names]
    words = [
        name
        for name, column in zip(header, table.columns, strict=True)
        if not (types.is_integer(column.type) or types.is_floating(column.type))
    ]
    columns = (column.to_pylist() for column in table.slice(0, limit).columns)
    rows = [[_cell(value) for value in row] for row in zip(*columns, strict=True)]
    return header, rows, words


def _cell(value: object) -> str:
    if value is None:
        return "null"
    if isinstance(value, float):
        return f"{value:.6g}"
    return visible(value, 60) if isinstance(value, str) else str(value)
