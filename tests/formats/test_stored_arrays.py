"""Arrays of other programs: read as NumPy reads them, or refused in one line; never unpickled."""

from __future__ import annotations

import os
import zipfile
from pathlib import Path

import numpy as np
import pyarrow as pa
import pyarrow.parquet as pq
import pytest
import torch
from safetensors.torch import save_file

from headloom.errors import DataError
from headloom.formats.stored_arrays import read_arrays, read_edges, read_npz


class Payload:
    """What makes a folder where it is unpickled."""

    def __init__(self, place: Path) -> None:
        self.place = place

    def __reduce__(self):
        return os.mkdir, (str(self.place),)


def refused(path: Path) -> str:
    with pytest.raises(DataError) as raised:
        read_arrays(path)
    line = str(raised.value)
    assert str(path) in line
    assert "\n" not in line
    return line


@pytest.mark.parametrize("dtype", ["<f4", ">f8", "<f2", "<i8", "<U3"])
def test_arrays_come_as_they_were_written(tmp_path: Path, dtype: str) -> None:
    array = np.asarray(np.arange(24).reshape(2, 3, 4), dtype=dtype, order="F")
    np.save(tmp_path / "a.npy", array)
    np.savez(tmp_path / "b.npz", one=array, two=array[0])
    np.savez_compressed(tmp_path / "c.npz", one=array)
    (tmp_path / ".hidden.npy").write_bytes(b"")
    arrays = read_arrays(tmp_path)
    assert list(arrays) == ["a", "b/one", "b/two", "c/one"]
    assert all(np.array_equal(arrays[name], array) for name in ("a", "b/one", "c/one"))
    assert list(read_arrays(tmp_path / "b.npz")) == ["one", "two"]


def test_tensors_come_in_their_types(tmp_path: Path) -> None:
    tensors = {"q": torch.randn(2, 3).bfloat16(), "k": torch.randn(2).half()}
    save_file(tensors, tmp_path / "a.safetensors")
    arrays = read_arrays(tmp_path / "a.safetensors")
    assert all(torch.equal(arrays[name], tensor) for name, tensor in tensors.items())


def test_nothing_is_unpickled(tmp_path: Path) -> None:
    objects = np.array([Payload(tmp_path / "made")], object)
    np.save(tmp_path / "a.npy", objects, allow_pickle=True)
    np.savez(tmp_path / "b.npz", a=objects)
    torch.save({}, tmp_path / "a.pt")
    for name in ("a.npy", "b.npz", "a.pt"):
        refused(tmp_path / name)
    assert not (tmp_path / "made").exists()
    np.load(tmp_path / "a.npy", allow_pickle=True)
    assert (tmp_path / "made").exists()  # so the file was what it was meant to be


def test_a_damaged_file_is_one_line(tmp_path: Path) -> None:
    np.save(tmp_path / "a.npy", np.zeros((2, 3), np.float32))
    content = (tmp_path / "a.npy").read_bytes()
    forged = content.replace(b"(2, 3), }         ", b"(2, 3999999999), }")
    assert len(forged) == len(content) and forged != content
    for damaged in (forged, content[:-1], b"", b"anything"):
        (tmp_path / "a.npy").write_bytes(damaged)
        refused(tmp_path / "a.npy")
    np.savez(tmp_path / "b.npz", one=np.arange(1000, dtype=np.float32))
    content = bytearray((tmp_path / "b.npz").read_bytes())
    content[2000] ^= 1
    (tmp_path / "b.npz").write_bytes(content)
    assert "Bad CRC-32" in refused(tmp_path / "b.npz")
    with (tmp_path / "c.npz").open("wb") as file:
        np.save(file, np.eye(2))
    assert "not a zip file" in refused(tmp_path / "c.npz")
    with zipfile.ZipFile(tmp_path / "d.npz", "w") as archive:
        archive.writestr("two.npy", forged)
    refused(tmp_path / "d.npz")
    with pytest.raises(DataError, match=r"d\.npz: cannot be read .*, or no graph\. Write it"):
        read_npz(tmp_path / "d.npz", "graph")
    (tmp_path / "empty").mkdir()
    assert "no arrays in this folder" in refused(tmp_path / "empty")


TABLE = "layer,head,query,key,weight\n0,0,0,0,1.0\n0,0,1,0,0.25\n0,0,1,1,0.75\n"


def refused_table(path: Path) -> str:
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
    assert line in refused_table(tmp_path / "a.csv")


def test_columns_of_other_types_are_refused(tmp_path: Path) -> None:
    whole = {name: [0] for name in ("layer", "head", "query", "key")} | {"weight": [1.0]}
    for name, column in (("weight", ["a"]), ("layer", [0.5]), ("key", [None])):
        pq.write_table(pa.table(whole | {name: column}), tmp_path / "a.parquet")
        refused_table(tmp_path / "a.parquet")
