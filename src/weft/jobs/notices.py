"""Notices to the person at the terminal, on standard error."""

from __future__ import annotations

import sys
from collections.abc import Sequence

from weft.formats.tokens import visible

__all__ = ["tell_quantized", "tell_unknown"]


def tell_unknown(what: str, parts: Sequence[str]) -> None:
    """Name the characters, or words, of a text that the vocabulary of a run lacks, if any."""
    if parts:
        shown = " ".join(map(visible, parts[:10])) + (" ..." if len(parts) > 10 else "")
        kind = "characters" if all(len(part) == 1 for part in parts) else "words"
        print(
            f"weft: {what} has {len(parts)} {kind} that are not in the vocabulary of this run, and "
            f"that the model reads as unknown: {shown}",
            file=sys.stderr,
        )


def tell_quantized(model: str, bits: str | None) -> None:
    """Say that the weights of a model were stored in few bits, where they were."""
    if bits:
        print(
            f"weft: {model}: quantised weights, {bits}; they are read as float32",
            file=sys.stderr,
        )
