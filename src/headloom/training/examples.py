"""Columns of examples, from a file or an object in memory.

Columns are found by the configured names (task.text, task.label, task.source, task.target), else
by usual names, else by their order.
"""

from __future__ import annotations

import csv
import difflib
import io
import json
from collections.abc import Iterable, Iterator, Mapping, Sequence
from itertools import islice
from pathlib import Path
from typing import Any

import numpy as np

from headloom.errors import InputError
from headloom.formats.files import check_file, read_text, reading, text_lines

#: Values of each column, by its name.
Columns = dict[str, list[object]]
#: Given column of each role; None: find one.
Roles = Mapping[str, str | None]

#: Usual names of columns, the most likely first.
NAMES = {
    "source": ("source", "src", "input", "question", "prompt"),
    "target": ("target", "tgt", "output", "answer", "translation", "response"),
    "text": ("text", "texts", "sentence", "review", "content", "document", "tweet", "x", "ids"),
    "label": ("label", "labels", "class", "category", "sentiment", "target", "y"),
    "image": ("image", "images", "img", "pixels", "x"),
}
#: Extensions of files whose columns have names, without .gz.
NAMED_ENDS = (".csv", ".parquet", ".jsonl", ".ndjson", ".json")


def extension_of(path: Path) -> str:
    """Return a file name's extension in lower case, without .gz: .csv of a.CSV.gz."""
    return Path(path.name.lower().removesuffix(".gz")).suffix


def read_columns(path: Path, roles: Roles, what: str) -> list[list[str]] | None:
    """Read the texts of a file of CSV, TSV, Parquet or JSON lines, a list for each role.

    None: another format, or a TSV whose first line does not name all roles. what: the name of the
    file in errors; roles: see `match_columns`.
    """
    if extension_of(path) == ".tsv":
        first = [name.strip() for name in read_text(path, what).partition("\n")[0].split("\t")]
        names = {name.lower() for name in first}
        if not all(
            name in first if name else names & set(NAMES[role]) for role, name in roles.items()
        ):
            return None
    elif extension_of(path) not in NAMED_ENDS:
        return None
    return role_texts(file_columns(path, what), roles, path)


def file_columns(path: Path, what: str = "table") -> Columns:
    """Read all columns of a file of CSV, TSV, Parquet or JSON lines."""
    end = extension_of(path)
    if end == ".parquet":
        import pyarrow.parquet

        check_file(path, what)
        with reading(path, what, f"{path}: cannot be read as Parquet", "Write it again."):
            return dict(pyarrow.parquet.read_table(path).to_pydict())
    text = read_text(path, what)
    try:
        if end in (".csv", ".tsv"):
            return _parse_table(text, tabs=end == ".tsv")
        if text.lstrip().startswith("["):
            return _parse_rows(json.loads(text), path)
        return _parse_rows([json.loads(line) for line in text_lines(text) if line.strip()], path)
    except (ValueError, RecursionError) as error:
        if isinstance(error, InputError):
            raise
        raise InputError(f"{path}: cannot be read as {end[1:]}: {error}. Correct it.") from None


def _parse_table(text: str, *, tabs: bool) -> Columns:
    """Parse CSV, or TSV without quotes; column names are in the first line."""
    import pandas

    table = pandas.read_csv(
        io.StringIO(text), header=None, dtype=str, keep_default_na=False, lineterminator="\n",
        sep="\t" if tabs else ",", quoting=csv.QUOTE_NONE if tabs else csv.QUOTE_MINIMAL,
    )  # fmt: skip
    table = table[table.fillna("").map(str.strip).astype(bool).any(axis=1)]  # no empty lines
    names = [str(name).strip() for name in table.iloc[0]]
    if len(set(names)) < len(names):
        raise ValueError("two columns have one name")
    return {name: table[place].iloc[1:].tolist() for place, name in enumerate(names)}


def _parse_rows(rows: Sequence[object], source: object) -> Columns:
    columns: Columns = {}
    for number, row in enumerate(rows):
        if not isinstance(row, Mapping) or (columns and row.keys() != columns.keys()):
            raise InputError(
                f"{source}: row {number + 1} is {str(row)[:60]!r}; expected the keys "
                f"{', '.join(map(str, columns)) or 'of its columns'}, as in the first row."
            )
        for name, value in row.items():
            columns.setdefault(str(name), []).append(value)
    return columns


def as_columns(data: object) -> Columns:
    """Convert an object in memory to columns.

    A list of texts gives "text"; a list of pairs, or two lists in a tuple, "0" and "1"; a list of
    dicts, a dict of lists, a DataFrame, an Arrow table or a Hugging Face Dataset their columns.

    >>> as_columns([("a", "b"), ("c", "d")])
    {'0': ['a', 'c'], '1': ['b', 'd']}
    >>> as_columns((["a", "c"], ["b", "d"])) == as_columns([("a", "b"), ("c", "d")])
    True
    """
    names = getattr(data, "column_names", None)
    if names is None and not isinstance(data, Mapping):
        names = getattr(data, "columns", None)
    table: Any = data
    if names is not None or isinstance(data, Mapping):
        keys = table if names is None else names
        return _languages({str(name): _named(table, name) for name in keys})
    if isinstance(data, tuple) and len(data) == 2 and all(map(_is_column, data)):
        return {str(place): values_of(column) for place, column in enumerate(data)}
    if isinstance(data, Iterator):
        table = list(data)
    elif isinstance(data, str | bytes) or not hasattr(data, "__len__"):
        raise _not_data(data)
    rows = values_of(table)
    first = rows[0] if rows else None
    if isinstance(first, Mapping):
        return _languages(_parse_rows(rows, "data"))
    if isinstance(first, tuple | list) and len(first) == 2 and not _are_ids(rows):
        for number, row in enumerate(rows):
            if not isinstance(row, tuple | list) or len(row) != 2:
                raise InputError(f"data: row {number} is {str(row)[:60]!r}; expected a pair.")
        return {str(side): [row[side] for row in rows] for side in (0, 1)}  # type: ignore[index]
    if rows and (isinstance(first, str | int) or _are_ids(rows)):
        return {"text": rows}
    raise _not_data(data)


def _not_data(data: object) -> InputError:
    return InputError(
        f"data: a {type(data).__name__}, {str(data)[:60]!r}, is not a data set. Give a list "
        "of pairs, two lists, a list of texts, a DataFrame, a Dataset, arrays (X, y) or files."
    )


def _named(table: Any, name: object) -> list[object]:
    """Return a column; classes of a Hugging Face Dataset by their names."""
    values = values_of(table[name])
    features = getattr(table, "features", None)
    names = getattr(features[name] if isinstance(features, Mapping) else None, "names", None)
    return values if names is None else [names[number] for number in values]


def _languages(columns: Columns) -> Columns:
    """Split a Hugging Face column "translation" of dicts into a column for each language."""
    pairs = columns.get("translation", [])
    if not pairs or not isinstance(pairs[0], Mapping):
        return columns
    return _parse_rows(pairs, "data: the column translation")


def _is_column(value: object) -> bool:
    ends = isinstance(value, str | bytes | Mapping) or not hasattr(value, "__len__")
    return not ends and not (isinstance(value, tuple) and len(value) == 2)


def values_of(column: Any) -> list[object]:
    """Return the values of a list, an array, a Series or a column; images stay arrays."""
    if getattr(column, "ndim", 0) >= 3:
        return column  # type: ignore[no-any-return]
    for name in ("to_list", "to_pylist", "tolist"):
        if hasattr(column, name):
            return list(getattr(column, name)())
    return [column[place] for place in range(len(column))]


def _are_ids(rows: Sequence[object]) -> bool:
    """Return whether the first rows are sequences of integers."""
    return all(
        isinstance(row, list | tuple)
        and bool(row)
        and all(isinstance(i, int | np.integer) for i in row)
        for row in islice(rows, 10)
    )


def match_columns(columns: Columns, roles: Roles, source: object) -> dict[str, str]:
    """Find the column of each role, "text", "label", ...: by name, by a usual name, or by order."""
    places: dict[str, str] = {}
    known = ", ".join(map(repr, columns)) or "none"
    lower = {name.lower(): name for name in reversed(columns)}
    for role, name in roles.items():
        if name is not None and name not in columns:
            near = difflib.get_close_matches(name, list(columns), 1, 0.5)
            raise InputError(
                f"{source}: no column {name!r} (task.{role}); "
                + (f"did you mean {near[0]!r}?" if near else f"there are {known}.")
            )
        if name is None:
            usual = (lower[word] for word in NAMES[role] if word in lower)
            taken = {*places.values(), *roles.values()}
            name = next((column for column in usual if column not in taken), None)
        if name is not None:
            places[role] = name
    for role in roles:
        left = [name for name in columns if name not in {*places.values(), *roles.values()}]
        if role not in places:
            if not left:
                raise InputError(
                    f"{source}: its columns are {known}; expected one for each of "
                    f"{' and '.join(roles)}."
                )
            places[role] = left[0]
    return places


def role_texts(columns: Columns, roles: Roles, source: object) -> list[list[str]]:
    """Return the columns of the roles as texts, stripped of spaces; see `match_columns`."""
    places = match_columns(columns, roles, source)
    return [[*_texts(columns[places[role]], f"{source}: {places[role]}")] for role in roles]


def _texts(values: Iterable[object], source: str) -> Iterable[str]:
    for number, value in enumerate(values, 1):
        text = as_text(value)
        if not text:
            raise InputError(
                f"{source}, row {number}: {str(value)[:60]!r} is no text. Fill it in, or leave the "
                "row out."
            )
        yield text


def as_text(value: object) -> str:
    """Convert a text, a class number, or a sequence of ids (joined by spaces) to text; "": none.

    >>> as_text(" a "), as_text(np.int64(3)), as_text(2.0), as_text([5, 6]), as_text(None)
    ('a', '3', '2', '5 6', '')
    """
    if isinstance(value, str):
        return value.strip()
    if isinstance(value, list | tuple | np.ndarray):
        return " ".join(map(str, value)) if _are_ids([list(value)]) else ""
    if isinstance(value, float) and value.is_integer():
        return str(int(value))
    return str(value) if isinstance(value, bool | int | np.integer | np.bool_) else ""
