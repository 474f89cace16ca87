"""A traced layer from a dense matrix of weights, of which none hides its key."""

from __future__ import annotations

from typing import Literal

import torch
from torch import Tensor

from headloom.formats.trace import LayerInMemory, TraceLayer
from headloom.mechanism.function import attend
from headloom.mechanism.graph import Top


def layer_of_weights(
    weights: Tensor,
    tokens: list[str] | None = None,
    *,
    key_tokens: list[str] | None = None,
    mask: Literal["all", "causal"] = "all",
    keep: int | None = None,
) -> TraceLayer:
    """A layer whose scores are the logarithms of weights, (heads, queries, keys)."""
    heads, queries, keys = weights.shape
    names = [f"#{i}" for i in range(queries)] if tokens is None else tokens
    cells = weights.detach().float()
    rows, columns = cells.new_zeros(heads, queries, 1), cells.new_zeros(heads, keys, 1)
    # The logarithm of 0 would hide the key, which may be looked at.
    bias = cells.clamp(min=1e-30).log()
    if mask == "causal":
        bias = bias.masked_fill(~torch.ones(queries, keys, dtype=torch.bool).tril(), -torch.inf)
    places = Top(keys if keep is None else keep)
    _, graph = attend(rows, columns, columns, bias=bias, keep=places, backend="torch")
    alone = key_tokens is None
    return TraceLayer(
        "weights", ("decoder" if mask == "causal" else "encoder") if alone else "cross", 0,
        (heads, queries, keys), "tokens" if alone else "target", "tokens" if alone else "source",
        names, names if key_tokens is None else key_tokens, 1.0, LayerInMemory(graph),
        positions="bias", mask=mask,
    )  # fmt: skip
