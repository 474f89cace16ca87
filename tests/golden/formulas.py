"""Weights by their formulas, as the papers have them, of tensors of float64. Nothing of
headloom."""

from __future__ import annotations

from collections.abc import Mapping

import torch
from torch import Tensor
from torch.nn.functional import layer_norm, leaky_relu

__all__ = ["gat_weights", "headloom_layers", "softmax_weights", "split", "turned"]

State = Mapping[str, Tensor]


def softmax_weights(
    queries: Tensor,
    keys: Tensor,
    *,
    scale: float | None = None,
    window: int | None = None,
    sinks: Tensor | None = None,
) -> Tensor:
    """Weights (heads, queries, keys); `window`: keys that a query sees, itself the last of them.

    sinks: one more score a head, which takes its part of each row.
    """
    keys = keys.repeat_interleave(len(queries) // len(keys), 0)
    scores = queries @ keys.mT * (queries.shape[-1] ** -0.5 if scale is None else scale)
    if window is not None:
        distance = torch.arange(queries.shape[1])[:, None] - torch.arange(keys.shape[1])
        scores = scores.masked_fill((distance < 0) | (distance >= window), -torch.inf)
    total = scores.exp().sum(-1, keepdim=True)
    return scores.exp() / (total if sinks is None else total + sinks[:, None, None].exp())


def split(projected: Tensor, depth: int) -> Tensor:
    """(positions, heads * depth) to (heads, positions, depth)."""
    return projected.unflatten(-1, (-1, depth)).transpose(0, 1)


def turned(vectors: Tensor, dtype: torch.dtype = torch.float64) -> Tensor:
    """Rotary positions of base 10,000, paired by halves; `dtype`: in which angles are computed."""
    half = vectors.shape[-1] // 2
    frequency = (10_000.0 ** (-torch.arange(half, dtype=torch.float64) / half)).to(dtype)
    angle = torch.arange(vectors.shape[-2], dtype=dtype)[:, None] * frequency
    cos, sin = angle.cos().double(), angle.sin().double()
    first, second = vectors[..., :half], vectors[..., half:]
    return torch.cat((first * cos - second * sin, second * cos + first * sin), -1)


def gat_weights(state: State, x: Tensor, edges: Tensor) -> tuple[Tensor, Tensor]:
    """Weights (heads, edges) and output of a GATConv; `edges` hold one of each node to itself.

    exp(LeakyReLU(a_source . W x_j + a_target . W x_i)) over its sum: Velickovic et al. 2018, 3.
    """
    a_source, a_target = (state[f"att_{end}"].transpose(0, 1) for end in ("src", "dst"))
    moved = split(x @ state["lin.weight"].T, a_source.shape[-1])
    source, target = moved[:, edges[0]], moved[:, edges[1]]
    powers = leaky_relu((a_source * source).sum(-1) + (a_target * target).sum(-1), 0.2).exp()
    totals = powers.new_zeros(moved.shape[:2]).index_add(1, edges[1], powers)
    weights = powers / totals[:, edges[1]]
    output = torch.zeros_like(moved).index_add(1, edges[1], weights[..., None] * source)
    return weights, output.transpose(0, 1).flatten(1) + state["bias"]


def headloom_layers(
    state: State, target: Tensor, source: Tensor | None = None
) -> dict[str, Tensor]:
    """Weights of headloom's translator, or, without a source, of its language model: by path, in
    order.

    Pre-norm, rotary positions, two layers of heads of depth 4, as in models.py and run.toml.
    """
    layers: dict[str, Tensor] = {}

    def normed(path: str, x: Tensor) -> Tensor:
        return layer_norm(x, x.shape[-1:], state[f"{path}.weight"], state[f"{path}.bias"])

    def linear(path: str, x: Tensor) -> Tensor:
        return x @ state[f"{path}.weight"].T + state[f"{path}.bias"]

    def attended(path: str, x: Tensor, memory: Tensor | None, window: int | None) -> Tensor:
        asks = normed(f"{path}_norm", x)
        read = asks if memory is None else memory
        queries, keys, values = (
            split(linear(f"{path}.w_{part}", inputs), 4)
            for part, inputs in (("q", asks), ("k", read), ("v", read))
        )
        if memory is None:
            queries, keys = turned(queries), turned(keys)
        layers[path] = weights = softmax_weights(queries, keys, window=window)
        values = values.repeat_interleave(len(queries) // len(values), 0)
        return x + linear(f"{path}.w_o", (weights @ values).transpose(0, 1).flatten(1))

    def stack(name: str, embedding: str, text: Tensor, memory: Tensor | None) -> Tensor:
        x = state[f"{embedding}.tokens.weight"][text] * 16**0.5
        for path in (f"{name}.{place}" for place in range(2)):
            window = len(text) if name == "decoder" else None
            x = attended(f"{path}.self_attention", x, None, window)
            if memory is not None:
                x = attended(f"{path}.cross_attention", x, memory, None)
            hidden = linear(f"{path}.feed_forward.rise", normed(f"{path}.feed_forward_norm", x))
            x = x + linear(f"{path}.feed_forward.fall", hidden.relu())
        return normed(f"{name}_norm", x)

    if source is None:
        stack("decoder", "embedding", target, None)
    else:
        memory = stack("encoder", "source_embedding", source, None)
        stack("decoder", "target_embedding", target, memory)
    return layers
