"""Word alignments in the Pharaoh format: a line for each sentence pair, "0-0 1-2 2-1".

A link is SOURCE-TARGET, the indices of two words, from 0. In a gold file, "1-2" is a sure link and
"1?2" or "1p2" a possible one.
"""

from __future__ import annotations

import re
from collections.abc import Iterable, Sequence
from dataclasses import dataclass
from pathlib import Path

from headloom.errors import InputError
from headloom.formats.files import atomic_file, read_text, text_lines

#: Index of a word of the source and of one of the target.
Link = tuple[int, int]

_LINK = re.compile(r"([0-9]{1,9})([-?p])([0-9]{1,9})")


@dataclass(frozen=True)
class GoldLinks:
    """Manual links of a sentence pair; possible links include the sure ones.

    Source: Och and Ney 2003, "A Systematic Comparison of Various Statistical Alignment Models".
    """

    sure: frozenset[Link]
    possible: frozenset[Link]

    @classmethod
    def of_line(cls, line: str) -> GoldLinks:
        """Return the links of a line. Raises: InputError: it is malformed.

        >>> sorted(GoldLinks.of_line("0-0 1?2").possible)
        [(0, 0), (1, 2)]
        """
        sure, possible = set(), set()
        for word in line.split():
            parts = _LINK.fullmatch(word)
            if parts is None:
                raise InputError(f"{word[:40]!r}; expected links of words, as 0-0 1-2, or 1?2.")
            link = int(parts[1]), int(parts[3])
            possible.add(link)
            if parts[2] == "-":
                sure.add(link)
        return cls(frozenset(sure), frozenset(possible))


def read_pharaoh(path: Path | str) -> list[GoldLinks]:
    """Read the links of every line of a file; an empty line has none.

    Raises: DataError: no such file, or not UTF-8; InputError: a line is malformed.
    """
    links = []
    for number, line in enumerate(text_lines(read_text(Path(path), "alignment")), 1):
        try:
            links.append(GoldLinks.of_line(line))
        except InputError as error:
            raise InputError(f"{path}: line {number} holds {error}") from error
    return links


def check_links(gold: Sequence[GoldLinks], sizes: Sequence[tuple[int, int]]) -> None:
    """Raise an InputError if gold links do not match the sentences.

    sizes: numbers of words of the source and of the target of each pair.
    """
    if len(gold) != len(sizes):
        raise InputError(
            f"gold has {len(gold)} lines for {len(sizes)} pairs of sentences; expected one each, "
            "empty where nothing is linked."
        )
    for number, (links, (source, target)) in enumerate(zip(gold, sizes, strict=True), 1):
        for first, second in sorted(links.possible):
            if first >= source or second >= target:
                raise InputError(
                    f"gold: line {number} links word {first} of the source to word {second} of "
                    f"the target, which have {source} and {target} words, counted from 0. Split "
                    "words by spaces, as in the texts, and count from 0."
                )


def pharaoh_line(links: Iterable[Link]) -> str:
    """Return links as a line, sorted by source word.

    >>> pharaoh_line([(2, 1), (0, 0)])
    '0-0 2-1'
    """
    return " ".join(f"{source}-{target}" for source, target in sorted(links))


def write_pharaoh(path: Path | str, lines: Iterable[Iterable[Link]]) -> None:
    """Write a file with a line for each sentence pair, atomically."""
    with atomic_file(Path(path)) as temporary, temporary.open("w", encoding="utf-8") as file:
        for links in lines:
            file.write(pharaoh_line(links) + "\n")
