"""Files of lines, read one after the other."""

from __future__ import annotations

import gzip
import io
from itertools import islice
from pathlib import Path

import pytest

from headloom.errors import DataError, InputError
from headloom.formats.files import decoded_lines, file_lines, text_lines


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
