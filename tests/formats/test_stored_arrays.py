"""Arrays of other programs: read as NumPy reads them, or refused in one line; never unpickled."""

from __future__ import annotations

import os
import zipfile
from collections.abc import Callable
from pathlib import Path

import numpy as np
import pytest
import torch
from safetensors.torch import save_file

from headloom.errors import DataError
from headloom.formats.stored_arrays import array_files, read_npz, stored_arrays


class Payload:
    """What makes a folder where it is unpickled."""

    def __init__(self, place: Path) -> None:
        self.place = place

    def __reduce__(self):
        return os.mkdir, (str(self.place),)


def refused(path: Path) -> str:
    """The one line that refuses the arrays of a file, when they are looked at or read."""
    with pytest.raises(DataError) as raised:
        for array in stored_arrays(path, ""):
            array.read()
    line = str(raised.value)
    assert str(path) in line
    assert "\n" not in line
    return line


@pytest.mark.parametrize("dtype", ["<f4", ">f8", "<f2", "<i8", "<U3"])
@pytest.mark.parametrize("order", ["C", "F"])
def test_arrays_come_as_they_were_written(tmp_path: Path, dtype: str, order: str) -> None:
    array = np.asarray(np.arange(24).reshape(2, 3, 4), dtype=dtype, order=order)
    np.save(tmp_path / "a.npy", array)
    np.savez(tmp_path / "b.npz", one=array, two=array[0])
    np.savez_compressed(tmp_path / "c.npz", one=array)
    for name, count in (("a.npy", 1), ("b.npz", 2), ("c.npz", 1)):
        found = stored_arrays(tmp_path / name, "n")
        assert len(found) == count
        assert found[0].shape == (2, 3, 4)
        assert np.array_equal(found[0].read(), array)
    assert [one.name for one in stored_arrays(tmp_path / "b.npz", "n")] == ["n/one", "n/two"]


def test_tensors_come_in_their_types(tmp_path: Path) -> None:
    tensors = {"q": torch.randn(2, 3).bfloat16(), "k": torch.randn(2).half()}
    save_file(tensors, tmp_path / "a.safetensors")
    found = {one.name: one for one in stored_arrays(tmp_path / "a.safetensors", "")}
    assert found["q"].shape == (2, 3)
    assert all(torch.equal(found[name].read(), tensor) for name, tensor in tensors.items())


def test_nothing_is_unpickled(tmp_path: Path) -> None:
    objects = np.array([Payload(tmp_path / "made")], object)
    np.save(tmp_path / "a.npy", objects, allow_pickle=True)
    np.savez(tmp_path / "b.npz", a=objects)
    for name in ("a.npy", "b.npz"):
        assert "Python objects, which are not unpickled" in refused(tmp_path / name)
    assert not (tmp_path / "made").exists()
    np.load(tmp_path / "a.npy", allow_pickle=True)
    assert (tmp_path / "made").exists()  # so the file was what it was meant to be
    torch.save({}, tmp_path / "a.pt")
    with pytest.raises(DataError, match="reading such a file runs what is in it"):
        array_files(tmp_path / "a.pt")


def test_a_header_that_the_file_does_not_bear_out_takes_no_memory(tmp_path: Path) -> None:
    np.save(tmp_path / "a.npy", np.zeros((2, 3), np.float32))
    content = (tmp_path / "a.npy").read_bytes()
    forged = content.replace(b"(2, 3), }         ", b"(2, 3999999999), }")
    assert len(forged) == len(content)
    assert forged != content
    (tmp_path / "a.npy").write_bytes(forged)
    assert "takes 32000000120 bytes, and it has 152" in refused(tmp_path / "a.npy")
    (tmp_path / "a.npy").write_bytes(content[:-1])
    assert "takes 152 bytes, and it has 151" in refused(tmp_path / "a.npy")
    (tmp_path / "a.npy").write_bytes(content + b"x")
    assert "takes 152 bytes, and it has 153" in refused(tmp_path / "a.npy")


def test_a_changed_byte_of_an_archive_is_told_by_its_checksum(tmp_path: Path) -> None:
    path = tmp_path / "a.npz"
    np.savez(path, one=np.arange(1000, dtype=np.float32))
    content = bytearray(path.read_bytes())
    content[2000] ^= 1
    path.write_bytes(content)
    assert "Bad CRC-32" in refused(path)


def test_one_array_is_no_archive(tmp_path: Path) -> None:
    with (tmp_path / "a.npz").open("wb") as file:
        np.save(file, np.eye(2))
    assert "it holds one array without a name" in refused(tmp_path / "a.npz")


def _twice(archive: zipfile.ZipFile, path: Path) -> None:
    with pytest.warns(UserWarning, match="Duplicate name"):
        archive.write(path, "one.npy")


def _forged(archive: zipfile.ZipFile, path: Path) -> None:
    content = path.read_bytes().replace(b"(3,), }         ", b"(3999999999,), }")
    archive.writestr("two.npy", content)


@pytest.mark.parametrize(
    ("damage", "message"),
    [(_twice, "two of its arrays have one name"), (_forged, "takes 32000000120 bytes, and it has")],
)
def test_archives_of_any_ending_are_held_against_their_headers(
    tmp_path: Path, damage: Callable[[zipfile.ZipFile, Path], None], message: str
) -> None:
    path = tmp_path / "images.zip"
    with path.open("wb") as file:
        np.savez(file, one=np.arange(3.0))
    assert read_npz(path, "graph")["one"].tolist() == [0, 1, 2]
    np.save(tmp_path / "one.npy", np.arange(3.0))
    with zipfile.ZipFile(path, "a") as archive:
        damage(archive, tmp_path / "one.npy")
    with pytest.raises(DataError, match=rf"images\.zip: .*{message}.*, or no graph\. Write it"):
        read_npz(path, "graph")


def test_what_is_in_an_archive_beside_arrays_is_refused(tmp_path: Path) -> None:
    path = tmp_path / "a.npz"
    np.savez(path, one=np.arange(3.0))
    with zipfile.ZipFile(path, "a") as archive:
        archive.writestr("readme.txt", "text")
    assert "'readme.txt' in it is no array" in refused(path)


def test_a_folder_gives_its_files_in_order_by_their_names(tmp_path: Path) -> None:
    (tmp_path / "b").mkdir()
    for name in ("b/q.npy", "a.npz", ".hidden.npy", "notes.txt"):
        (tmp_path / name).write_bytes(b"")
    assert [name for name, _ in array_files(tmp_path)] == ["a", "b/q"]
    with pytest.raises(DataError, match=r"notes\.txt: expected a folder, or a file"):
        array_files(tmp_path / "notes.txt")
