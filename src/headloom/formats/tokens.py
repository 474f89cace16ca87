"""Display of tokens: their text instead of the vocabulary's spelling, on one line.

A trace keeps each token as its vocabulary spells it ("Ġof", "<0xE6>") and, where that differs, its
text (" of"), which is displayed: see `Tokens`.
"""

from __future__ import annotations

import codecs
import re
import unicodedata
from collections.abc import Iterable, Sequence

_UPPER, _LOWER = "⁰¹²³⁴⁵⁶⁷⁸⁹", "₀₁₂₃₄₅₆₇₈₉"
#: Bytes by the characters of byte-level vocabularies: printable Latin-1 stands for itself, the
#: other 68 bytes are the code points from 256 on, in order. A space may stand for itself.
_PRINTABLE = (*range(33, 127), *range(161, 173), *range(174, 256))
_OTHERS = sorted({*range(256)} - {*_PRINTABLE})
BYTES = {chr(byte): byte for byte in _PRINTABLE} | {" ": 32}
BYTES |= {chr(256 + place): byte for place, byte in enumerate(_OTHERS)}
#: Suffix of a character that several tokens share: the number of the part, as in 東²⁄₃.
PARTS = rf"[{_UPPER}]+⁄[{_LOWER}]+"


class Tokens(list[str]):
    r"""Tokens as their vocabulary spells them, with their texts.

    >>> tokens = Tokens(["Ġof", "Ċ"], [" of", "\n"])
    >>> tokens[0], shown(tokens)[0], shown(["Ġof"])[0]
    ('Ġof', ' of', 'Ġof')
    """

    def __init__(self, tokens: Iterable[str], texts: Iterable[str]) -> None:
        super().__init__(tokens)
        self.texts = list(texts)
        if len(self.texts) != len(self):
            raise ValueError(f"{len(self)} tokens have {len(self.texts)} texts")


def shown(tokens: Sequence[str]) -> Sequence[str]:
    """Return the texts of tokens where known, else the tokens."""
    return tokens.texts if isinstance(tokens, Tokens) else tokens


def texts_of(pieces: Iterable[str | bytes]) -> list[str]:
    r"""Return the text of each token of a sequence.

    A character whose bytes are in several tokens appears in each of them with a fraction, the
    number of the part: 東¹⁄₂, 東²⁄₂. A byte that belongs to no character is ‹0xE6›.

    Args: pieces: a token's text, or its bytes, in the order of the sequence.

    >>> texts_of([b" \xe6", b"\x9d\xb1", b"!\xff", "<end>"])
    [' 東¹⁄₂', '東²⁄₂', '!‹0xFF›', '<end>']
    """
    texts: list[str] = []
    run: list[bytes] = []
    for piece in pieces:
        if isinstance(piece, bytes):
            run.append(piece)
            continue
        texts += [*_texts_of_bytes(run), piece]
        run = []
    return texts + _texts_of_bytes(run)


def _texts_of_bytes(run: Sequence[bytes]) -> list[str]:
    owners = [number for number, piece in enumerate(run) for _ in piece]
    texts = ["" for _ in run]
    start = 0
    for text, size in _characters(b"".join(run)):
        sharing = sorted({*owners[start : start + size]})
        for part, number in enumerate(sharing, 1):
            texts[number] += text
            if len(sharing) > 1:
                texts[number] += f"{_digits(part, _UPPER)}⁄{_digits(len(sharing), _LOWER)}"
        start += size
    return texts


def _characters(content: bytes) -> Iterable[tuple[str, int]]:
    """Yield each character with its number of bytes; an invalid byte is yielded as ‹0xE6›."""
    decoder = codecs.getincrementaldecoder("utf-8")()
    start = 0
    for end in range(1, len(content) + 1):
        try:
            character = decoder.decode(content[end - 1 : end])
        except UnicodeDecodeError:
            # Only the earlier bytes are invalid for sure: this one may begin another character.
            decoder.reset()
            for place in range(start, end - 1):
                yield f"‹0x{content[place]:02X}›", 1
            start = end - 1
            try:
                character = decoder.decode(content[start:end])
            except UnicodeDecodeError:
                decoder.reset()
                character, start = "", end
                yield f"‹0x{content[end - 1]:02X}›", 1
        if character:
            yield character, end - start
            start = end
    for place in range(start, len(content)):
        yield f"‹0x{content[place]:02X}›", 1


def _digits(number: int, digits: str) -> str:
    return "".join(digits[int(digit)] for digit in str(number))


def running_text(tokens: Sequence[str]) -> str:
    """Join tokens into a readable text: each character once.

    Word tokens without spaces are separated by spaces.

    >>> running_text(["東¹⁄₂", "東²⁄₂", " is"]), running_text(["the", "dog"])
    ('東 is', 'the dog')
    """
    bare = each_once(tokens)
    apart = not any(token.startswith(" ") and token != " " for token in bare)
    # Single characters and word pieces are joined directly.
    apart = apart and sum(map(len, bare)) > 2 * len(bare)
    return (" " if apart else "").join(bare)


def each_once(texts: Sequence[str]) -> list[str]:
    """Return texts in which a character shared by several tokens is only in the first."""
    return [re.sub(rf".({PARTS})", _once, text) for text in texts]


def _once(part: re.Match[str]) -> str:
    return part[0][0] if part[1].startswith("¹⁄") else ""


#: Invisible characters that shape their neighbours (joiners, variation selectors): kept between
#: two others.
_JOINERS = frozenset("\u200c\u200d\ufe0e\ufe0f")
#: Control characters with a clearer symbol than their Unicode picture.
_CONTROLS = {"\n": "⏎", "\t": "⇥"}


def visible(token: str, limit: int = 32) -> str:
    r"""Return a token as one short line without invisible characters.

    Spaces at the ends become ␣, a line feed ⏎, a tab ⇥, control characters their pictures (␍ for
    a carriage return), other invisible characters their code point (‹202E› for the mark that
    reverses the writing direction); a combining mark without a letter gets a dotted circle, and
    the empty string is ∅.

    Args:
        token: any string.
        limit: maximal number of characters; a longer token is cut, with an ellipsis.

    >>> visible(" the\n"), visible(""), visible("\u202e"), visible("x" * 50, 8)
    ('␣the⏎', '∅', '‹202E›', 'xxxxxxx…')
    """
    if not token:
        return "∅"
    # A long token is cut first, so that a million characters take no longer than a few.
    cut = len(token) > limit
    rest, token = (token[limit - 1 :], token[: limit - 1]) if cut else ("", token)
    start = len(token) - len(token.lstrip(" "))
    # Spaces before a cut are not at the end, unless nothing else follows.
    end = len(token) if rest.strip(" ") else len(token.rstrip(" "))
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
        return _CONTROLS.get(character) or chr(0x2400 + code)
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
