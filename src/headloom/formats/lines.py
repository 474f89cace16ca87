"""Lines of text, one after the other: a file of any size is read in little memory."""

from __future__ import annotations

from collections.abc import Iterator
from pathlib import Path
from typing import BinaryIO

from headloom.errors import InputError
from headloom.formats.files import not_utf8, unpacked

_MARK = "\ufeff"


def check_line_ends(text: str, path: Path) -> None:
    """Raise an InputError where carriage returns alone end the lines of a table.

    They would be one line, which has too many columns.
    """
    if "\n" not in text and "\r" in text.rstrip("\r"):
        raise InputError(
            f"{path}: its lines end by carriage returns (CR) alone; expected line feeds (LF). "
            f"Convert it: tr '\\r' '\\n' < {path.name}"
        )


def text_lines(text: str) -> list[str]:
    r"""The lines of a text, as `decoded_lines` counts them; not by splitlines, which counts more.

    >>> text_lines("a\u2028b\x0cc\r\nd\n"), text_lines("")
    (['a\u2028b\x0cc', 'd'], [])
    """
    lines = text.removesuffix("\n").split("\n") if text else []
    return [line.removesuffix("\r") for line in lines]


def decoded_lines(file: BinaryIO, name: str) -> Iterator[str]:
    """Lines as other programs count them: they end in a line feed, and in nothing else.

    A carriage return before it, and the byte order mark with which some editors begin a file, are
    no part of a line. No more is read than is asked for, but for the buffer of the file.

    Raises: InputError: a line is not UTF-8; those before it were given.
    """
    for number, content in enumerate(file, 1):
        try:
            line = content.decode("utf-8")
        except UnicodeDecodeError:
            raise InputError(f"{name}: {not_utf8(content, number)}") from None
        if number == 1:
            line = line.removeprefix(_MARK)
        yield line.removesuffix("\n").removesuffix("\r")


def file_lines(path: Path) -> Iterator[str]:
    """The lines of a text file; one whose name ends in .gz is decompressed.

    Raises: DataError: it is missing, not readable or damaged; InputError: not UTF-8.
    """
    with unpacked(path, "text file") as file:
        yield from decoded_lines(file, str(path))
