"""What a verb reads: a text of its options, or lines of standard input."""

from __future__ import annotations

import sys
from pathlib import Path

from weft.errors import InputError

__all__ = ["given_text", "standard_input_lines"]


def given_text(text: str | None, file: Path | None, stdin: bool = False) -> str | None:
    """The text of --text, --file or --stdin; None: none of them is there.

    Raises: InputError: several are there, or the text is empty; DataError: no such file.
    """
    if (text is not None) + (file is not None) + stdin > 1:
        options = "--text, --file and --stdin" if stdin else "--text and --file"
        raise InputError(f"give the text by one of {options}.")
    if file is not None:
        from weft.formats.files import read_text

        text = read_text(file, "text file")
    elif stdin:
        text = "\n".join(standard_input_lines())
    if text is not None and not text:
        raise InputError("the text is empty; give at least one character.")
    return text


def standard_input_lines() -> list[str]:
    """Lines as other programs count them: they end in a line feed, and in nothing else."""
    if sys.stdin is None:
        raise InputError("standard input is closed; give the text by a file or a pipe.")
    content = sys.stdin.buffer.read()
    try:
        text = content.decode("utf-8")
    except UnicodeDecodeError as error:
        line = content[: error.start].count(b"\n") + 1
        raise InputError(
            f"standard input: line {line} is not UTF-8 text. Convert it, as in: iconv -f latin1 -t "
            "utf-8."
        ) from None
    return [line.removesuffix("\r") for line in text.removesuffix("\n").split("\n")] if text else []
