"""Names of tokens: how a vocabulary spells the tokens of its ids, and what they say.

What they say is known by what turns tokens back into text: the decoder of the vocabulary, never
by how they look. "Ġ" is a space to a byte-level vocabulary, and a Maltese letter to another.
"""

from __future__ import annotations

import json
import re
from collections.abc import Callable, Sequence
from typing import Any

from headloom.errors import InputError
from headloom.formats.files import JsonObject
from headloom.formats.tokens import Tokens, texts_of
from headloom.tracing.arguments import Tokenizer

__all__ = ["special_known", "texts_known", "token_names"]


def token_names(ids: Sequence[int], tokenizer: Tokenizer = None) -> list[str]:
    """The strings of token ids.

    Args:
        ids: a sequence of them.
        tokenizer: anything that has `token_strings` (a headloom vocabulary),
        `convert_ids_to_tokens`
            (Transformers) or `id_to_token` (tokenizers); None: numbers.

    Returns: one string an id, as the vocabulary spells it; "#17" for an id that the tokenizer does
    not know. Where texts differ from that, `Tokens`, which have both.

    Raises: InputError: the tokenizer has none of these.

    >>> token_names([5, 17])
    ['#5', '#17']
    """
    ids = [int(number) for number in ids]
    if tokenizer is None:
        return [f"#{number}" for number in ids]
    if hasattr(tokenizer, "token_strings"):
        names = list(tokenizer.token_strings(ids))
    elif hasattr(tokenizer, "convert_ids_to_tokens"):
        names = list(tokenizer.convert_ids_to_tokens(ids))
    elif hasattr(tokenizer, "id_to_token"):
        names = [tokenizer.id_to_token(number) for number in ids]
    else:
        raise InputError(
            f"trace: cannot name tokens by a {type(tokenizer).__name__}: it has none of "
            "token_strings, convert_ids_to_tokens, id_to_token. Leave tokenizer= out for numbers."
        )
    if len(names) != len(ids):
        raise InputError(
            f"trace: the tokenizer gave {len(names)} names for {len(ids)} ids; expected one each."
        )
    names = [
        f"#{number}" if name is None else str(name) for number, name in zip(ids, names, strict=True)
    ]
    texts = _texts(ids, names, tokenizer)
    return names if texts is None or texts == names else Tokens(names, texts)


def texts_known(names: Sequence[str]) -> dict[str, list[str]]:
    """What `Trace.positions` says of the texts of tokens: nothing where they are the tokens."""
    return {"texts": names.texts} if isinstance(names, Tokens) else {}


def special_known(ids: Sequence[int], tokenizer: Tokenizer) -> dict[str, list[bool]]:
    """What `Trace.positions` says of special tokens: nothing where the tokenizer does not know.

    tokenizer: of Transformers, or a vocabulary of headloom.
    """
    listed = getattr(tokenizer, "all_special_ids", None)
    if listed is not None:
        listed = set(listed)
        return {"special": [int(number) in listed for number in ids]}
    if hasattr(tokenizer, "is_special"):
        return {"special": [bool(tokenizer.is_special(int(number))) for number in ids]}
    return {}


#: The bytes that byte-level vocabularies write as other characters, by these: printable Latin-1
#: stands for itself, the other 68 for the code points from 256 on, in order.
_PRINTABLE = (*range(33, 127), *range(161, 173), *range(174, 256))
_BYTES = {chr(byte): byte for byte in _PRINTABLE} | {
    chr(256 + place): byte for place, byte in enumerate(sorted({*range(256)} - {*_PRINTABLE}))
}
_BYTE = re.compile(r"<0x([0-9A-F]{2})>")


def _texts(ids: list[int], names: list[str], tokenizer: Tokenizer) -> list[str] | None:
    """What the tokens say; None: the tokenizer does not show how that is found."""
    # Of Transformers; of a headloom vocabulary; of the tokenizers library.
    fast = next(
        (
            tokens
            for tokens in (
                getattr(tokenizer, "backend_tokenizer", None),
                getattr(tokenizer, "tokenizer", None),
                tokenizer,
            )
            if hasattr(tokens, "decoder") and hasattr(tokens, "get_added_tokens_decoder")
        ),
        None,
    )
    if fast is None:
        return None
    text = _reader(fast)
    if text is None:
        return None
    added = fast.get_added_tokens_decoder()
    spelled = [fast.id_to_token(number) for number in ids]
    return texts_of(
        name if piece is None or number in added else text(piece)
        for number, name, piece in zip(ids, names, spelled, strict=True)
    )


def _reader(fast: Any) -> Callable[[str], str | bytes] | None:
    """From how a vocabulary spells a token to its text, or its bytes; None: it is the same."""
    parts = _parts(fast.decoder)
    kinds = {part["type"] for part in parts}
    if not parts:
        # Without a decoder, what cut the text into tokens knows how they are spelled.
        kinds = {part["type"] for part in _parts(fast.pre_tokenizer)}
    ending = getattr(fast.model, "end_of_word_suffix", None)

    def whole(piece: str) -> str:
        # A word's end is where a space follows.
        return piece.removesuffix(ending) + " " if ending and piece.endswith(ending) else piece

    if "ByteLevel" in kinds:

        def of_bytes(piece: str) -> str | bytes:
            content = [b" " if c == " " else _byte(c) for c in whole(piece)]
            return piece if None in content else b"".join(c for c in content if c is not None)

        return of_bytes
    spaces = {
        part.get("replacement") or part["pattern"].get("String")
        for part in parts
        if part["type"] == "Metaspace" or (part["type"] == "Replace" and part.get("content") == " ")
    }
    fallback = "ByteFallback" in kinds or bool(getattr(fast.model, "byte_fallback", False))
    if not (spaces or fallback or ending):
        return None

    def of_pieces(piece: str) -> str | bytes:
        byte = _BYTE.fullmatch(piece) if fallback else None
        if byte:
            return bytes.fromhex(byte[1])
        for space in spaces:
            piece = piece.replace(space, " ") if space else piece
        return whole(piece)

    return of_pieces


def _byte(character: str) -> bytes | None:
    number = _BYTES.get(character)
    return None if number is None else bytes([number])


def _parts(component: Any) -> list[JsonObject]:
    """What a decoder or a pre-tokenizer of the tokenizers library is made of."""
    if component is None:
        return []
    try:
        described = json.loads(component.__getstate__())
    except (TypeError, ValueError):
        # One of the caller's own making says nothing of itself.
        return []
    return list(described.get("decoders") or described.get("pretokenizers") or [described])
