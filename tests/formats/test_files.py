"""Files are there whole or not at all, and every error names the file."""

from __future__ import annotations

import errno
import io
import os
from pathlib import Path

import pytest

from headloom.errors import DataError, InputError
from headloom.formats import files, folders
from headloom.formats.files import (
    atomic_file,
    read_json,
    read_text,
    remove_leftovers,
    write_json,
)
from headloom.formats.folders import atomic_folder
from headloom.formats.lines import decoded_lines


def names(folder: Path) -> list[str]:
    return sorted(path.name for path in folder.iterdir())


def test_a_file_appears_at_the_end(tmp_path: Path) -> None:
    with atomic_file(tmp_path / "a") as temporary:
        temporary.write_text("new")
        assert not (tmp_path / "a").exists()
    assert (tmp_path / "a").read_text() == "new"
    assert names(tmp_path) == ["a"]


@pytest.mark.parametrize(("mask", "new"), [(0o022, 0o644), (0o077, 0o600)])
def test_the_rights_are_those_that_the_user_gave(tmp_path: Path, mask: int, new: int) -> None:
    """Of a new file by the mask; of one that was there, as they were."""
    own = tmp_path / "own"
    own.write_text("old")
    own.chmod(0o640)
    (tmp_path / "folder").mkdir(mode=0o700)
    before = os.umask(mask)
    try:
        for name in ("own", "new"):
            with atomic_file(tmp_path / name) as temporary:
                temporary.write_text(name)
        for name in ("folder", "another"):
            with atomic_folder(tmp_path / name, lambda _: None) as temporary:
                (temporary / "file").write_text(name)
    finally:
        os.umask(before)
    modes = {path.name: path.stat().st_mode & 0o777 for path in tmp_path.iterdir()}
    assert modes == {"own": 0o640, "new": new, "folder": 0o700, "another": 0o777 & ~mask}
    assert (tmp_path / "another" / "file").stat().st_mode & 0o777 == new


@pytest.mark.parametrize("error", [ValueError("ours"), KeyboardInterrupt()])
def test_what_was_there_survives_any_error(tmp_path: Path, error: BaseException) -> None:
    (tmp_path / "a").write_text("old")
    with pytest.raises(type(error)), atomic_file(tmp_path / "a") as temporary:
        temporary.write_text("half")
        raise error
    assert (tmp_path / "a").read_text() == "old"
    assert names(tmp_path) == ["a"]


def test_a_full_disk_is_one_line_and_loses_nothing(tmp_path: Path) -> None:
    write_json(tmp_path / "a", {"old": 1})
    with pytest.raises(DataError) as caught, atomic_file(tmp_path / "a"):
        raise OSError(errno.ENOSPC, os.strerror(errno.ENOSPC))
    assert str(caught.value) == (
        f"cannot write {tmp_path / 'a'}: no space left on device. Nothing was changed; free some "
        "space or choose another place, and try again."
    )
    assert read_json(tmp_path / "a") == {"old": 1}
    assert names(tmp_path) == ["a"]


def test_a_disk_that_fails_at_the_last_moment(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    def full(path: Path) -> None:
        raise OSError(errno.EDQUOT, os.strerror(errno.EDQUOT))

    write_json(tmp_path / "a", {"old": 1})
    for module in (files, folders):
        monkeypatch.setattr(module, "sync", full)
    with pytest.raises(DataError, match="cannot write"):
        write_json(tmp_path / "a", {"new": 1})
    with pytest.raises(DataError, match="cannot write"), atomic_folder(tmp_path / "f") as folder:
        (folder / "x").write_text("x")
    assert names(tmp_path) == ["a"]
    assert read_json(tmp_path / "a") == {"old": 1}


def test_a_disk_that_is_really_full(small_disk: Path) -> None:
    write_json(small_disk / "a", "old")
    with pytest.raises(DataError, match="no space left on device"):
        write_json(small_disk / "a", "x" * 200_000)
    assert read_json(small_disk / "a") == "old"
    assert names(small_disk) == ["a"]
    with (
        pytest.raises(DataError, match="no space left on device"),
        atomic_folder(small_disk / "f") as folder,
    ):
        (folder / "x").write_text("x" * 200_000)
    assert names(small_disk) == ["a"]


def test_a_folder_that_is_not_there(tmp_path: Path) -> None:
    with (
        pytest.raises(DataError, match=r"no such file or directory.*exists and is writable"),
        atomic_file(tmp_path / "no" / "a"),
    ):
        pass


def test_a_link_stays_a_link(tmp_path: Path) -> None:
    (tmp_path / "real").write_text("old")
    (tmp_path / "link").symlink_to("real")
    with atomic_file(tmp_path / "link") as temporary:
        temporary.write_text("new")
    assert (tmp_path / "link").is_symlink()
    assert (tmp_path / "real").read_text() == "new"


def test_what_is_no_regular_file_stays(tmp_path: Path) -> None:
    (tmp_path / "folder").mkdir()
    os.mkfifo(tmp_path / "pipe")
    for name, what in (("folder", "a folder"), ("pipe", "a pipe or a device")):
        with (
            pytest.raises(DataError, match=rf"cannot write .*{name}: it is {what}\."),
            atomic_file(tmp_path / name),
        ):
            pass
    assert (tmp_path / "folder").is_dir()
    assert (tmp_path / "pipe").is_fifo()
    assert names(tmp_path) == ["folder", "pipe"]


def test_a_byte_order_mark_is_no_text(tmp_path: Path) -> None:
    (tmp_path / "a").write_bytes(b"\xef\xbb\xbfone")
    assert read_text(tmp_path / "a") == "one"


def test_leftovers_of_killed_writers_go_and_nothing_else(tmp_path: Path) -> None:
    with atomic_file(tmp_path / "a") as temporary:
        left = temporary.name
    keep = [".hidden", "headloom-part-", "a"]
    for name in (left, *keep):
        (tmp_path / name).write_text("x")
    remove_leftovers(tmp_path)
    assert names(tmp_path) == sorted(keep)
    remove_leftovers(tmp_path / "no such folder")


def test_json_round_trip(tmp_path: Path) -> None:
    content = {"ü": [1, 2.5, None, "月"], "nested": {"a": True}}
    write_json(tmp_path / "a.json", content)
    assert read_json(tmp_path / "a.json") == content
    assert "月" in (tmp_path / "a.json").read_text("utf-8")


def test_what_cannot_be_read(tmp_path: Path) -> None:
    path = tmp_path / "a.json"
    with pytest.raises(DataError, match=r"a\.json: no such run\. Check the path\."):
        read_json(path, "run")
    with pytest.raises(DataError, match="a folder; expected a run, which is a file"):
        read_text(tmp_path, "run")
    with pytest.raises(DataError, match=r"a folder; expected a text file\.$"):
        read_text(tmp_path, "text file")
    path.write_text('{"a": 1,\n"b"')
    with pytest.raises(
        DataError,
        match=r"this run is damaged: line 2 is not JSON .*\. Correct it, or put a copy back\.$",
    ):
        read_json(path, "run")
    path.write_bytes(b"one\ntwo\nthr\xe9e\n")
    with pytest.raises(DataError, match=r"line 3 is not UTF-8 text \(byte 11 is 0xe9\).*iconv"):
        read_text(path)


@pytest.mark.parametrize(
    ("content", "said"),
    [
        (b"\x89PNG\r\n\x1a\n\0", r"a PNG picture; expected text.*by --image\.$"),
        (b"%PDF-1.7\xe2", r"a PDF document; expected text, as UTF-8\. Give a file of text\.$"),
        (b"\x7fELF\0\xff", r"no text: it has zeros in it; expected text"),
        ("Mädchen".encode("utf-16"), r"line 1 is not UTF-8.*iconv -f utf-16 -t utf-8\.$"),
    ],
)
def test_what_is_no_text(content: bytes, said: str, tmp_path: Path) -> None:
    """A remedy that fits: a picture is not converted by iconv."""
    path = tmp_path / "a.txt"
    path.write_bytes(content)
    with pytest.raises(DataError, match=rf"a\.txt: {said}"):
        read_text(path)
    with pytest.raises(InputError, match=f"it: {said}"):
        list(decoded_lines(io.BytesIO(content), "it"))
