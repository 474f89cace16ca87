"""Letters for every script: an installed font that has them, else their code points."""

from __future__ import annotations

import logging
from collections.abc import Iterable
from dataclasses import dataclass
from functools import lru_cache

from matplotlib import font_manager
from matplotlib.ft2font import FT2Font

from headloom.formats.tokens import visible

__all__ = ["Lettering", "lettering"]

#: What matplotlib brings along.
_FIRST = "DejaVu Sans"
#: Characters of a text at most, and letters without a font that are named.
_LONGEST, _SHOWN = 200, 20


@dataclass(frozen=True)
class Lettering:
    """The fonts of a picture, and the characters that none of them has."""

    families: tuple[str, ...]
    missing: frozenset[str]

    def token(self, token: str, limit: int = 16) -> str:
        """A token as it can be drawn: a letter without a font becomes its code point.

        Dollar signs are no formulas.
        """
        text = visible(token, limit)
        if not self.missing.isdisjoint(text):
            drawn = "".join(_code(c) if c in self.missing else c for c in text)
            text = drawn.replace("◌‹", "‹")
        return text.replace("$", r"\$")

    def text(self, text: str) -> str:
        """A title or a name as it can be drawn."""
        return self.token(text, _LONGEST) if text else ""


def _code(character: str) -> str:
    """The code point of a character; of a picture of a control character, what it stands for."""
    code = {"⏎": 0x0A, "⇥": 0x09}.get(character, ord(character))
    code = 0x7F if code == 0x2421 else code - 0x2400 if 0x2400 <= code < 0x2420 else code
    return f"‹{code:04X}›"


@lru_cache(maxsize=512)
def _letters(path: str) -> frozenset[int]:
    """The code points that a font file has; none where it cannot be drawn with."""
    try:
        font = FT2Font(path)
    except (OSError, RuntimeError, ValueError):
        return frozenset()
    return frozenset(font.get_charmap()) if font.scalable else frozenset()


def lettering(tokens: Iterable[str]) -> Lettering:
    """Find fonts for some tokens: the one that is always there, and installed ones for the rest.

    A line of the log names the letters that no font has.

    tokens: whatever will be drawn with it.
    """
    needed = {ord(c) for token in tokens for c in visible(token, _LONGEST)}
    needed |= {ord(c) for c in "‹›0123456789ABCDEF…"}
    installed = _installed()
    families = [_FIRST]
    missing = needed - _letters(installed[_FIRST])
    if missing:
        # Noto first, which is made to cover what others lack.
        for family in sorted(installed, key=lambda name: (not name.startswith("Noto Sans"), name)):
            if not missing:
                break
            found = missing & _letters(installed[family])
            if found:
                families.append(family)
                missing -= found
    if letters := "".join(filter(str.isprintable, map(chr, sorted(missing))))[:_SHOWN]:
        message = (
            "headloom: no installed font has %s: drawn as code points. Install one that has, as "
            "Noto."
        )
        logging.getLogger(__name__).warning(message, letters)
    return Lettering(tuple(families), frozenset(map(chr, missing)))


def _installed() -> dict[str, str]:
    """The file of each installed family's regular, upright face."""
    return {
        entry.name: entry.fname
        for entry in font_manager.fontManager.ttflist
        if entry.style == "normal"
        and entry.weight in (400, "normal", "regular", "book")
        and entry.stretch in ("normal", 400, 100)
        and "Last Resort" not in entry.name
    }
