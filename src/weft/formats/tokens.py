"""How a token is shown on one line: whatever it holds becomes visible, and short."""

from __future__ import annotations

import unicodedata

__all__ = ["visible"]

#: Invisible characters that shape their neighbours (joiners, variation selectors): kept between
#: two others, where they belong to what is seen.
_JOINERS = frozenset("\u200c\u200d\ufe0e\ufe0f")


def visible(token: str, limit: int = 32) -> str:
    r"""A token as one short line in which nothing hides.

    Spaces at the ends become ␣, control characters their pictures (␊ for a line feed), what has
    no picture of its own its code point (‹202E› for a mark that turns the direction of writing),
    a combining mark without a letter gets a dotted circle, and nothing at all is ∅.

    Args:
        token: any string.
        limit: characters from which it is cut, with an ellipsis.

    >>> visible(" the\n"), visible(""), visible("\u202e"), visible("x" * 50, 8)
    ('␣the␊', '∅', '‹202E›', 'xxxxxxx…')
    """
    if not token:
        return "∅"
    # A long token is cut first, so that a million characters cost no more than a few.
    cut = len(token) > limit
    token = token[: limit - 1] if cut else token
    start, end = len(token) - len(token.lstrip(" ")), len(token.rstrip(" "))
    shown = []
    for place, character in enumerate(token):
        if character == " ":
            shown.append(" " if start <= place < end else "␣")
        elif (character in _JOINERS and 0 < place < len(token) - 1) or (
            character == "\ufe0f" and place
        ):
            shown.append(character)
        else:
            shown.append(_shown(character, first=place == 0))
    return "".join(shown) + ("…" if cut else "")


def _shown(character: str, first: bool) -> str:
    code = ord(character)
    if code < 0x20:
        return chr(0x2400 + code)
    if code == 0x7F:
        return "␡"
    category = unicodedata.category(character)
    if category in ("Mn", "Me") and first:
        return "◌" + character
    if category in ("Cc", "Cf", "Cs", "Co", "Cn", "Zl", "Zp"):
        return f"‹{code:04X}›"
    if category == "Zs":
        return "⍽" if code in (0xA0, 0x202F) else "␣"
    return character
