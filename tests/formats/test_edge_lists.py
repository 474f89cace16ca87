"""Tables of edges, as Parquet and as CSV; what is none of these is one line."""

from __future__ import annotations

from pathlib import Path

import numpy as np
import pyarrow as pa
import pyarrow.parquet as pq
import pytest

from headloom.errors import DataError
from headloom.formats.stored_arrays import read_edges

TABLE = "layer,head,query,key,weight\n0,0,0,0,1.0\n0,0,1,0,0.25\n0,0,1,1,0.75\n"


def refused(path: Path) -> str:
    with pytest.raises(DataError) as raised:
        read_edges(path)
    line = str(raised.value)
    assert "\n" not in line
    assert "Expected the columns layer, head, query, key, weight" in line
    return line


def test_both_forms_give_the_same_columns(tmp_path: Path) -> None:
    (tmp_path / "a.csv").write_text("\ufeff" + TABLE.replace("\n", "\r\n"), "utf-8")
    columns = {
        "weight": pa.array([1, 0.25, 0.75], pa.float32()), "key": pa.array([0, 0, 1], pa.int16()),
        "layer": [0, 0, 0], "head": pa.array([0, 0, 0], pa.uint8()), "query": [0, 1, 1],
        "other": ["a", "b", "c"],
    }  # fmt: skip
    pq.write_table(pa.table(columns), tmp_path / "a.parquet")
    one, other = read_edges(tmp_path / "a.csv"), read_edges(tmp_path / "a.parquet")
    assert list(one) == list(other) == ["layer", "head", "query", "key", "weight"]
    for name, column in one.items():
        assert np.array_equal(column, other[name])
        assert column.dtype == other[name].dtype
    assert one["weight"].tolist() == [1.0, 0.25, 0.75]


@pytest.mark.parametrize(
    ("text", "line"),
    [
        (TABLE.replace("0.25", "a"), "CSV conversion error"),
        (TABLE.replace("0.25", ""), "its column weight has missing values"),
        (TABLE.replace("0,0,1,0,", "0,0,1.5,0,"), "CSV conversion error"),
        (TABLE + "0,0\n", "Expected 5 columns, got 2"),
        ("", "Empty CSV file"),
    ],
)
def test_a_text_that_is_no_such_table(tmp_path: Path, text: str, line: str) -> None:
    (tmp_path / "a.csv").write_text(text, "utf-8")
    assert line in refused(tmp_path / "a.csv")


def test_columns_of_other_types_are_refused(tmp_path: Path) -> None:
    whole = {name: [0] for name in ("layer", "head", "query", "key")} | {"weight": [1.0]}
    for name, column in (("weight", ["a"]), ("layer", [0.5]), ("key", [None])):
        pq.write_table(pa.table(whole | {name: column}), tmp_path / "a.parquet")
        refused(tmp_path / "a.parquet")
