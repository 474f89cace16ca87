"""Names of tokens: how the ids of a vocabulary are shown."""

from __future__ import annotations

from collections.abc import Sequence
from typing import Any

from weft.errors import InputError

__all__ = ["token_names"]


def token_names(ids: Sequence[int], tokenizer: Any = None) -> list[str]:
    """The strings of token ids.

    Args:
        ids: a sequence of them.
        tokenizer: anything that has `token_strings` (a weft vocabulary), `convert_ids_to_tokens`
            (Transformers) or `id_to_token` (tokenizers); None: numbers.

    Returns: one string an id; "#17" for an id that the tokenizer does not know.

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
    return [
        f"#{number}" if name is None else str(name) for number, name in zip(ids, names, strict=True)
    ]
