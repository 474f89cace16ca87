"""Names of tokens: their spelling in a vocabulary, and their texts.

Texts come from the decoder of the vocabulary, never from the spelling alone: "Ġ" is a space in a
byte-level vocabulary, and a Maltese letter in another.
"""

from __future__ import annotations

import json
import re
from collections.abc import Callable, Sequence
from typing import Any

from headloom.errors import InputError
from headloom.formats.files import JsonObject
from headloom.formats.tokens import BYTES, Tokens, texts_of
from headloom.tracing.arguments import Tokenizer

_BYTE = re.compile(r"<0x([0-9A-F]{2})>")


def token_names(ids: Sequence[int], tokenizer: Tokenizer = None) -> list[str]:
    """Return the strings of token ids.

    Args:
        ids: of the tokens.
        tokenizer: anything that has `token_strings` (a headloom vocabulary),
            `convert_ids_to_tokens` (Transformers) or `id_to_token` (tokenizers); None: numbers.

    Returns: a string for each id, as the vocabulary spells it; "#17" for an id that the tokenizer
    does not know. If the texts differ from the spelling, `Tokens`, which have both.

    Raises: InputError: the tokenizer has none of these.

    >>> token_names([5, 17])
    ['#5', '#17']
    """
    ids = [int(number) for number in ids]
    if tokenizer is None:
        return [f"#{number}" for number in ids]
    if hasattr(tokenizer, "token_strings"):
        spelled = tokenizer.token_strings(ids)
    elif hasattr(tokenizer, "convert_ids_to_tokens"):
        spelled = tokenizer.convert_ids_to_tokens(ids)
    elif hasattr(tokenizer, "id_to_token"):
        spelled = [tokenizer.id_to_token(number) for number in ids]
    else:
        raise InputError(
            f"trace: cannot name tokens by a {type(tokenizer).__name__}: it has none of "
            "token_strings, convert_ids_to_tokens, id_to_token. Leave tokenizer= out for numbers."
        )
    names = [
        f"#{number}" if name is None else str(name)
        for number, name in zip(ids, spelled, strict=True)
    ]
    # Attributes of Transformers and of a headloom vocabulary; else the tokenizers library.
    holders = [getattr(tokenizer, name, None) for name in ("backend_tokenizer", "tokenizer")]
    for fast in (*holders, tokenizer):
        if not hasattr(fast, "decoder") or not hasattr(fast, "get_added_tokens_decoder"):
            continue
        text = _reader(fast)
        if text is None:
            break
        added = fast.get_added_tokens_decoder()
        pieces = [None if number in added else fast.id_to_token(number) for number in ids]
        texts = texts_of(
            name if piece is None else text(piece)
            for name, piece in zip(names, pieces, strict=True)
        )
        return names if texts == names else Tokens(names, texts)
    return names


def token_ids(text: str, tokenizer: Tokenizer) -> list[int]:
    """Return a text's ids, by a tokenizer of Transformers or tokenizers, or a headloom vocabulary.

    Raises: InputError: there is no tokenizer.
    """
    if tokenizer is None:
        raise InputError(
            "trace: a module of headloom reads tensors, not a text. Give the tokenizer of its "
            "vocabulary too, headloom.trace(module, text, tokenizer=...), or a tensor of ids."
        )
    encoded = tokenizer(text)["input_ids"] if callable(tokenizer) else tokenizer.encode(text)
    return [int(number) for number in getattr(encoded, "ids", encoded)]


def texts_known(names: Sequence[str]) -> dict[str, list[str]]:
    """Return the texts of tokens for `Trace.positions`; empty if the tokens are their texts."""
    return {"texts": names.texts} if isinstance(names, Tokens) else {}


def special_known(ids: Sequence[int], tokenizer: Tokenizer) -> dict[str, list[bool]]:
    """Return the special tokens for `Trace.positions`; empty if the tokenizer does not know them.

    tokenizer: of Transformers, or a vocabulary of headloom.
    """
    listed = getattr(tokenizer, "all_special_ids", None)
    if listed is not None:
        special = set(listed)
        return {"special": [int(number) in special for number in ids]}
    if hasattr(tokenizer, "is_special"):
        return {"special": [bool(tokenizer.is_special(int(number))) for number in ids]}
    return {}


def _reader(fast: Any) -> Callable[[str], str | bytes] | None:
    """Return a function from a token's spelling to its text or bytes; None: they are equal."""
    parts = _parts(fast.decoder)
    # Without a decoder, the pre-tokenizer tells how tokens are spelled.
    kinds = {part["type"] for part in parts or _parts(fast.pre_tokenizer)}
    ending = getattr(fast.model, "end_of_word_suffix", None)
    by_bytes = "ByteLevel" in kinds
    fallback = "ByteFallback" in kinds or bool(getattr(fast.model, "byte_fallback", False))
    spaces = {
        part.get("replacement") or part["pattern"].get("String")
        for part in parts
        if part["type"] == "Metaspace" or (part["type"] == "Replace" and part.get("content") == " ")
    }
    if not (by_bytes or spaces or fallback or ending):
        return None

    def text(piece: str) -> str | bytes:
        byte = _BYTE.fullmatch(piece) if fallback and not by_bytes else None
        if byte:
            return bytes.fromhex(byte[1])
        for space in () if by_bytes else spaces:
            piece = piece.replace(space, " ") if space else piece
        whole = piece
        if ending and piece.endswith(ending):  # a space follows the end of a word
            whole = piece.removesuffix(ending) + " "
        if not by_bytes:
            return whole
        return bytes(BYTES[c] for c in whole) if {*whole} <= BYTES.keys() else piece

    return text


def _parts(component: Any) -> list[JsonObject]:
    """Return the parts of a decoder or a pre-tokenizer of the tokenizers library."""
    try:
        described = json.loads(component.__getstate__()) if component is not None else {}
    except (TypeError, ValueError):
        return []  # a custom component has no description
    nested = described.get("decoders") or described.get("pretokenizers")
    return list(nested or [described] * bool(described))
