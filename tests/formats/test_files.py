"""Files are there whole or not at all, and every error names the file."""

from __future__ import annotations

import errno
import os
import platform
from pathlib import Path

import pytest

from headloom.errors import DataError
from headloom.formats.files import (
    atomic_file,
    read_json,
    read_text,
    remove_leftovers,
    write_json,
)
from headloom.formats.folders import atomic_folder


def names(folder: Path) -> list[str]:
    return sorted(path.name for path in folder.iterdir())


def test_a_file_appears_at_the_end(tmp_path: Path) -> None:
    with atomic_file(tmp_path / "a") as temporary:
        temporary.write_text("new")
        assert not (tmp_path / "a").exists()
    assert (tmp_path / "a").read_text() == "new"
    assert names(tmp_path) == ["a"]


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
    with pytest.raises(DataError, match=r"line 3 is not UTF-8 text.*iconv"):
        read_text(path)


def test_what_is_no_text(tmp_path: Path) -> None:
    for content, message in (
        (b"\x7fELF\0\xff", r"no text: it has zeros in it; expected text"),
        ("Mädchen".encode("utf-16"), r"line 1 is not UTF-8.*iconv -f utf-16 -t utf-8\.$"),
    ):
        (tmp_path / "a.txt").write_bytes(content)
        with pytest.raises(DataError, match=rf"a\.txt: {message}"):
            read_text(tmp_path / "a.txt")


def test_what_killed_writers_left_goes_and_what_is_written_stays(tmp_path: Path) -> None:
    with atomic_file(tmp_path / "a") as temporary:
        writing = temporary.name
    process = os.fork() or os._exit(0)  # a process that has ended
    os.waitpid(process, 0)
    dead = writing.replace(f"-{os.getpid()}-", f"-{process}-")
    other_machine = writing.replace(platform.node(), f"{platform.node()}x")
    for name in (writing, dead, other_machine, ".hidden"):
        (tmp_path / name).write_text("x")
    with atomic_file(tmp_path / "a") as temporary:
        temporary.write_text("whole")
    assert names(tmp_path) == sorted([writing, other_machine, ".hidden", "a"])
    remove_leftovers(tmp_path)  # of a folder that is one process's alone
    assert names(tmp_path) == [".hidden", "a"]
