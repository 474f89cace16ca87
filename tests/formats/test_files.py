"""Files are there whole or not at all, and every error names the file."""

from __future__ import annotations

import errno
import gzip
import io
import os
import platform
from itertools import islice
from pathlib import Path

import pytest

from headloom.errors import DataError, InputError
from headloom.formats.files import (
    atomic_file,
    decoded_lines,
    file_lines,
    read_json,
    read_text,
    remove_leftovers,
    text_lines,
    write_json,
)


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


@pytest.mark.parametrize(
    ("content", "expected"),
    [
        (b"", []),
        (b"\n", [""]),
        (b"a", ["a"]),
        (b"a\nb\n", ["a", "b"]),
        (b"a\r\n\r\n\nb\rc\r", ["a", "", "", "b\rc"]),
        ("\ufeffa\n\ufeffb\u2028c\x0cd\x85e\n".encode(), ["a", "\ufeffb\u2028c\x0cd\x85e"]),
    ],
)
def test_lines(content: bytes, expected: list[str], tmp_path: Path) -> None:
    assert list(decoded_lines(io.BytesIO(content), "it")) == expected
    (tmp_path / "a").write_bytes(content)
    (tmp_path / "a.gz").write_bytes(gzip.compress(content))
    assert text_lines(content.decode("utf-8-sig")) == expected
    assert list(file_lines(tmp_path / "a")) == list(file_lines(tmp_path / "a.gz")) == expected


def test_a_line_that_is_not_utf8_comes_after_those_before_it() -> None:
    lines = decoded_lines(io.BytesIO(b"a\nb\nM\xe4d\n"), "it")
    assert list(islice(lines, 2)) == ["a", "b"]
    with pytest.raises(InputError, match=r"^it: line 3 is not UTF-8 text\. Convert it"):
        next(lines)


def test_files_that_cannot_be_read(tmp_path: Path) -> None:
    with pytest.raises(DataError, match="no such text file"):
        list(file_lines(tmp_path / "no"))
    with pytest.raises(DataError, match="a folder"):
        list(file_lines(tmp_path))
    whole = gzip.compress(b"a line\n" * 10_000)
    for content in (b"a line\n", whole[:40], whole[:-9] + b"........."):
        (tmp_path / "a.gz").write_bytes(content)
        with pytest.raises(DataError, match=r"a\.gz: damaged, or not compressed by gzip"):
            list(file_lines(tmp_path / "a.gz"))
