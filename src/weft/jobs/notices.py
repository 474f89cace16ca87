"""Notices to the person at the terminal, on standard error."""

from __future__ import annotations

import sys
from collections.abc import Sequence

from weft.formats.tokens import visible

__all__ = ["tell_unknown"]


def tell_unknown(what: str, characters: Sequence[str]) -> None:
    """Name the characters of a text that the vocabulary of a run lacks, if there are any."""
    if characters:
        shown = " ".join(map(visible, characters[:10])) + (" ..." if len(characters) > 10 else "")
        print(
            f"weft: {what} has {len(characters)} characters that are not in the vocabulary of this "
            f"run, and that the model reads as unknown: {shown}",
            file=sys.stderr,
        )
