"""A traced layer from a dense matrix of weights, as other programs give it."""

from __future__ import annotations

from typing import Literal

import torch
from torch import Tensor

from headloom.errors import InputError
from headloom.formats.trace import LayerInMemory, TraceLayer
from headloom.mechanism.function import attend
from headloom.mechanism.graph import Top
from headloom.mechanism.shapes import describe


def layer_of_weights(
    weights: Tensor,
    tokens: list[str] | None = None,
    *,
    key_tokens: list[str] | None = None,
    mask: Literal["all", "causal"] = "all",
    keep: int | None = None,
) -> TraceLayer:
    """A layer that every analysis reads, from weights that are there.

    Args:
        weights: (heads, queries, keys), 0 or more; rows sum to 1.
        tokens: of the queries; None: "#0", "#1", ...
        key_tokens: of the keys, where they are another sequence.
        mask: "causal" where no query may look ahead.
        keep: edges kept of each query; None: all.

    Its scores are the logarithms of the weights.

    >>> layer = layer_of_weights(torch.tensor([[[0.5, 0.5], [0.25, 0.75]]]), ["a", "b"])
    >>> layer.graph.keys[0].tolist()
    [[0, 1], [1, 0]]
    """
    heads, queries, keys = weights.shape
    names = [f"#{i}" for i in range(queries)] if tokens is None else tokens
    columns = names if key_tokens is None else key_tokens
    if (len(names), len(columns)) != (queries, keys):
        raise InputError(
            f"layer_of_weights: {len(names)} tokens of queries and {len(columns)} of keys for "
            f"weights {describe(weights)}. Give one for each row and each column."
        )
    cells = weights.detach().float()
    nothing = cells.new_zeros(heads, keys, 1)
    # The logarithm of 0 would hide the key, which may be looked at.
    bias = cells.clamp(min=1e-30).log()
    if mask == "causal":
        bias = bias.masked_fill(~torch.ones(queries, keys, dtype=torch.bool).tril(), -torch.inf)
    _, graph = attend(
        cells.new_zeros(heads, queries, 1),
        nothing,
        nothing,
        bias=bias,
        keep=Top(keys if keep is None else keep),
        backend="torch",
    )
    one_sequence = key_tokens is None
    return TraceLayer(
        name="weights",
        kind=("decoder" if mask == "causal" else "encoder") if one_sequence else "cross",
        index=0,
        shape=(heads, queries, keys),
        queries_from="tokens" if one_sequence else "target",
        keys_from="tokens" if one_sequence else "source",
        query_tokens=names,
        key_tokens=columns,
        scale=1.0,
        data=LayerInMemory(graph),
        positions="bias",
        mask=mask,
    )
