"""Notices to the person at the terminal, on standard error."""

from __future__ import annotations

import sys
from collections.abc import Iterable, Iterator, Sequence

from headloom.formats.tokens import visible
from headloom.training.text import Vocabulary

__all__ = ["UnknownParts", "tell_quantized", "tell_unknown"]


def tell_unknown(what: str, parts: Sequence[str]) -> None:
    """Name the characters, or words, of a text that the vocabulary of a run lacks, if any."""
    if parts:
        shown = " ".join(map(visible, parts[:10])) + (" ..." if len(parts) > 10 else "")
        kind = "character" if all(len(part) == 1 for part in parts) else "word"
        said = f"{kind} that is" if len(parts) == 1 else f"{kind}s that are"
        print(
            f"headloom: {what} has {len(parts)} {said} not in the vocabulary of this run, and "
            f"that the model reads as unknown: {shown}",
            file=sys.stderr,
        )


class UnknownParts:
    """What a vocabulary lacks of lines that pass by."""

    def __init__(self, vocabulary: Vocabulary) -> None:
        self.vocabulary = vocabulary
        self._parts: dict[str, None] = {}

    def watching(self, lines: Iterable[str]) -> Iterator[str]:
        """The lines, as they are."""
        for line in lines:
            self._parts.update(dict.fromkeys(self.vocabulary.unknown_parts(line)))
            yield line

    def tell(self, what: str) -> None:
        """Name what was lacking, if anything: see `tell_unknown`."""
        tell_unknown(what, list(self._parts))


def tell_quantized(model: str, bits: str | None) -> None:
    """Say that the weights of a model were stored in few bits, where they were."""
    if bits:
        print(
            f"headloom: {model}: quantised weights, {bits}; they are read as float32",
            file=sys.stderr,
        )
