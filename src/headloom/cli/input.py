"""What a verb reads: a text of its options, or lines of standard input."""

from __future__ import annotations

import sys
from collections.abc import Iterator
from pathlib import Path

from headloom.errors import InputError

__all__ = ["given_text", "iterate_standard_input", "standard_input_lines"]


def given_text(text: str | None, file: Path | None, stdin: bool = False) -> str | None:
    """The text of --text, --file or --stdin; None: none of them is there.

    Raises: InputError: several are there, or the text is empty, or of spaces alone; DataError: no
    such file.
    """
    if (text is not None) + (file is not None) + stdin > 1:
        options = "--text, --file and --stdin" if stdin else "--text and --file"
        raise InputError(f"give the text by one of {options}.")
    if file is not None:
        from headloom.formats.files import read_text

        text = read_text(file, "text file")
    elif stdin:
        text = "\n".join(standard_input_lines())
    if text is not None and not text.strip():
        raise InputError("the text is empty; give at least one character that is no space.")
    return text


def standard_input_lines() -> list[str]:
    """The lines of standard input, all at once."""
    return list(iterate_standard_input())


def iterate_standard_input() -> Iterator[str]:
    """The lines of standard input, as they come: see `decoded_lines`.

    Raises: InputError: it is closed, or a line is not UTF-8.
    """
    from headloom.formats.lines import decoded_lines

    if sys.stdin is None:
        raise InputError("standard input is closed; give the text by a file or a pipe.")
    if sys.stdin.isatty():
        print("headloom: type a line, then Enter; Ctrl-D ends.", file=sys.stderr)
    return decoded_lines(sys.stdin.buffer, "standard input")
