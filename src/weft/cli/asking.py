"""What a command asks a model: the text it reads, and the token whose logit is wanted."""

from __future__ import annotations

from pathlib import Path
from typing import Any

from weft.errors import InputError

__all__ = ["given_text", "masked_place", "one_token"]


def given_text(operation: str, text: str | None, file: Path | None) -> str | None:
    """The text of --text or --file; None: neither was given.

    Raises: InputError: both were given, or the text is empty; DataError: no such file.
    """
    if file is not None:
        from weft.formats.files import read_text

        if text is not None:
            raise InputError(f"{operation}: give the text by one of --text and --file.")
        text = read_text(file, "text file")
    if text is not None and not text:
        raise InputError("the text is empty; give at least one character.")
    return text


def one_token(option: str, ids: list[int]) -> int:
    """The only token of a word.

    Raises: InputError: it has several, or none.
    """
    if len(ids) != 1:
        raise InputError(f"{option}: {len(ids)} tokens; expected one.")
    return ids[0]


def masked_place(option: str, ids: list[int], tokenizer: Any) -> int:
    """Where the first mask of a text stands.

    Raises: InputError: there is none.
    """
    if tokenizer.mask_token_id not in ids:
        raise InputError(f"{option}: put {tokenizer.mask_token} into the text.")
    return ids.index(tokenizer.mask_token_id)
