"""Padding of the inputs of a batch, found in their attention weights."""

from __future__ import annotations

import torch
from torch import Tensor


def left_padding(layers: list[Tensor], prompt: int) -> list[int]:
    """Return the length of the padding before each text.

    No row of the text sees the padding; a row of padding sees every key of the prompt, or none.

    Args:
        layers: weights of self-attention, (batch, heads, queries, keys).
        prompt: number of keys that the first rows may see.
    """
    inputs, _, _, keys = layers[0].shape
    if any(layer.shape[2:] != (keys, keys) for layer in layers):
        return [0] * inputs
    columns = torch.arange(keys)
    first, blank = torch.full((inputs, keys), keys), torch.ones(inputs, keys, dtype=torch.bool)
    for layer in layers:
        sees = layer != 0
        first = torch.minimum(first, torch.where(sees.any(1), columns, keys).amin(-1))
        blank &= (sees[..., :prompt].all(-1) | ~sees.any(-1)).all(1)
    # The first key that this row or a later one sees.
    first = first.flip(1).cummin(1).values.flip(1)
    fits = (first >= columns) & (columns <= blank.long().cumprod(1).sum(1, keepdim=True))
    starts: list[int] = (fits * columns).amax(1).tolist()
    return starts


def without_padding(layers: list[Tensor], starts: list[int]) -> list[Tensor]:
    """Return the layers with rows of zeros for the padding before each text."""
    if not any(starts):
        return layers
    padded = torch.arange(layers[0].shape[2]) < torch.tensor(starts)[:, None]
    return [layer.masked_fill(padded[:, None, :, None], 0) for layer in layers]


def seen_keys(layers: list[Tensor]) -> list[slice]:
    """Return the keys of each input from the first to the last that some query sees."""
    length = layers[-1].shape[3]
    seen = [(layer != 0).any(1).any(1) for layer in layers if layer.shape[3] == length]
    places = [row.nonzero().flatten().tolist() for row in torch.stack(seen).any(0)]
    return [slice(own[0], own[-1] + 1) if own else slice(0, length) for own in places]


def ends_of_texts(ids: Tensor, prompt: int, tokenizer: object) -> list[int]:
    """Return the number of rows of each text before the padding after its end.

    Args:
        ids: (texts, tokens); the last token of a text has no row.
        prompt: length of the prompts.
        tokenizer: without a `pad_token_id`, no padding is known.
    """
    pad, eos = (getattr(tokenizer, name, None) for name in ("pad_token_id", "eos_token_id"))
    if pad is None:
        return [ids.shape[1] - 1] * len(ids)
    padding = (ids[:, prompt:] == pad).flip(1).long().cumprod(1).sum(1)
    # The first of the padding may be the text's own end.
    rows = ids.shape[1] - 1 - padding + ((padding > 0) & (pad == eos))
    ends: list[int] = rows.clamp(min=prompt).tolist()
    return ends
