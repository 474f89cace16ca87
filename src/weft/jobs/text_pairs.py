"""Pairs of texts as an encoder-decoder of Transformers reads them, and what its words are."""

from __future__ import annotations

from collections.abc import Sequence
from typing import Any

import torch
from torch import Tensor, nn

from weft.analysis.alignment.words import WordParts, parts_by_offsets, parts_by_tokens
from weft.errors import InputError
from weft.jobs.model import Pairs
from weft.tracing.names import token_names

__all__ = ["text_pairs"]


def text_pairs(
    model: nn.Module, tokenizer: Any, sources: Sequence[str], targets: Sequence[str]
) -> Pairs:
    """Sources and targets, padded on the right.

    Raises: InputError: tokens that cannot be joined to the words of a text.
    """
    config: Any = model.config
    start = config.decoder_start_token_id
    first = [] if start is None else [start]
    source = [_encoded(tokenizer, text, []) for text in sources]
    target = [_encoded(tokenizer, text, first, as_target=True) for text in targets]
    inputs: dict[str, Tensor] = {}
    filler = config.pad_token_id or 0
    for prefix, sides in (("", source), ("decoder_", target)):
        rows = [torch.tensor(ids) for ids, _ in sides]
        pad = torch.nn.utils.rnn.pad_sequence
        inputs[f"{prefix}input_ids"] = pad(rows, True, filler)
        inputs[f"{prefix}attention_mask"] = pad([torch.ones_like(row) for row in rows], True, 0)
    return Pairs(inputs, [parts for _, parts in source], [parts for _, parts in target])


def _encoded(
    tokenizer: Any, text: str, first: list[int], as_target: bool = False
) -> tuple[list[int], WordParts]:
    """The ids of a text, and its words."""
    fast = bool(getattr(tokenizer, "is_fast", False))
    given = {"text_target" if as_target else "text": text}
    encoded = tokenizer(**given, return_offsets_mapping=fast, verbose=False)
    ids = [*first, *encoded["input_ids"]]
    if fast:
        offsets = [*([[0, 0]] * len(first)), *map(list, encoded["offset_mapping"])]
        return ids, parts_by_offsets(text, offsets)
    special = set(tokenizer.all_special_ids) | set(first)
    parts = parts_by_tokens(token_names(ids, tokenizer), [number in special for number in ids])
    words = text.split()
    if len(parts.words) != len(words):
        raise InputError(
            f"align: the tokens of {text[:60]!r} make {len(parts.words)} words, and it has "
            f"{len(words)} between spaces. Use a tokenizer that knows its offsets (tokenizer.json)."
        )
    return ids, WordParts(words, parts.share)
