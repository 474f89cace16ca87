"""Blocks of Transformers: attention and feed-forward layers, each with a residual connection.

    pre-norm:   x + sublayer(norm(x))
    post-norm:  norm(x + sublayer(x))

Source: Vaswani et al. 2017, section 3.1 (post); Xiong et al. 2020 (pre).
"""

from __future__ import annotations

from collections.abc import Callable
from dataclasses import dataclass, field
from functools import partial

import torch
from torch import Tensor, nn
from torch.nn.functional import gelu, silu

from headloom.mechanism.attention_layer import LayerKind, PositionSizes
from headloom.mechanism.key_value_cache import KeyValueCache
from headloom.mechanism.masks import Mask, padding
from headloom.mechanism.multihead import MultiHeadAttention
from headloom.models.configuration import ActivationKind, Architecture
from headloom.models.dense import Dropout, linear_maps


@dataclass(eq=False)
class BlockCache:
    """Key/value caches of a decoder block: of the target and of the source."""

    target: KeyValueCache = field(default_factory=KeyValueCache)
    source: KeyValueCache = field(default_factory=KeyValueCache)

    def reorder(self, order: Tensor, sources: Tensor | None) -> None:
        """Make sequence ``order[b]`` sequence b, likewise for sources; None: keep the sources."""
        self.target.reorder(order)
        if sources is not None:
            self.source.reorder(sources)


def activated(hidden: Tensor, kind: ActivationKind) -> Tensor:
    """Apply the activation of a feed-forward layer.

        relu: max(0, x)    gelu: x Phi(x)    silu: x sigmoid(x)
        gelu-tanh: x / 2 (1 + tanh(sqrt(2 / pi) (x + 0.044715 x^3)))

    Source: Hendrycks and Gimpel 2016 for the last three.
    """
    return _ACTIVATIONS[kind](hidden)


_ACTIVATIONS: dict[ActivationKind, Callable[[Tensor], Tensor]] = {
    "relu": torch.relu,
    "gelu": gelu,
    "gelu-tanh": partial(gelu, approximate="tanh"),
    "silu": silu,
}


class FeedForward(nn.Module):
    """Two linear maps with an activation in between, or three with a gate.

        plain:  activation(x W_1 + b_1) W_2 + b_2
        gated:  (activation(x W_g + b_g) * (x W_1 + b_1)) W_2 + b_2

    Source: Vaswani et al. 2017, equation 2; Shazeer 2020, equation 6, for the gate.
    """

    def __init__(self, architecture: Architecture) -> None:
        super().__init__()
        width, inner, biases = architecture.width, architecture.feed_forward, architecture.biases
        self.rise = nn.Linear(width, inner, bias=biases)
        self.fall = nn.Linear(inner, width, bias=biases)
        gated = architecture.feed_forward_kind == "gated"
        self.gate = nn.Linear(width, inner, bias=biases) if gated else None
        self.activation = architecture.activation
        for linear in (self.rise, self.fall, self.gate):
            if linear is not None:
                nn.init.xavier_uniform_(linear.weight)
                if linear.bias is not None:
                    nn.init.zeros_(linear.bias)

    def forward(self, inputs: Tensor) -> Tensor:
        """Map (..., width) to (..., width)."""
        if self.gate is not None:
            gate, risen = linear_maps(inputs, [self.gate, self.rise])
            hidden = activated(gate, self.activation) * risen
        else:
            relu = self.activation == "relu"
            (hidden,) = linear_maps(inputs, [self.rise], relu=relu)
            hidden = hidden if relu else activated(hidden, self.activation)
        (result,) = linear_maps(hidden, [self.fall])
        return result


def norm_of(architecture: Architecture) -> nn.LayerNorm | nn.RMSNorm:
    """Return a new norm.

        layer:  (x - mean(x)) / sqrt(var(x) + epsilon) g + b
        rms:    x / sqrt(mean(x^2) + epsilon) g

    Source: Ba et al. 2016; Zhang and Sennrich 2019, equation 4.
    """
    kind = nn.RMSNorm if architecture.normalisation == "rms" else nn.LayerNorm
    return kind(architecture.width, eps=architecture.norm_epsilon)


def closing_norm(architecture: Architecture) -> nn.Module:
    """Return the norm after the last block; post-norm blocks need none."""
    return norm_of(architecture) if architecture.norm == "pre" else nn.Identity()


def _attention(architecture: Architecture, kind: LayerKind) -> MultiHeadAttention:
    layer = MultiHeadAttention(
        architecture.width, architecture.heads, kv_heads=architecture.kv_heads,
        depth=architecture.depth, bias=architecture.biases, dropout=architecture.attention_dropout,
        # Distances between two texts have no meaning.
        relative="none" if kind == "cross" else architecture.relative,
        positions=PositionSizes(
            architecture.clip, architecture.buckets, architecture.max_distance,
            architecture.rotary_base, None if kind == "cross" else architecture.rotary_scaling,
        ),
        kind=kind,
        weights=architecture.weights,
    )  # fmt: skip
    layer.linear_maps = linear_maps
    return layer


class _Block(nn.Module):
    """Base of both kinds of block: the residual connection."""

    def __init__(self, architecture: Architecture) -> None:
        super().__init__()
        self.pre_norm = architecture.norm == "pre"
        self.dropout = Dropout(architecture.dropout)

    def _add(self, inputs: Tensor, norm: nn.Module, sublayer: Callable[[Tensor], Tensor]) -> Tensor:
        if self.pre_norm:
            return self.dropout.added(inputs, sublayer(norm(inputs)))
        result: Tensor = norm(self.dropout.added(inputs, sublayer(inputs)))
        return result


class EncoderBlock(_Block):
    """Self-attention, then feed-forward."""

    def __init__(self, architecture: Architecture) -> None:
        super().__init__(architecture)
        self.self_attention = _attention(architecture, "encoder")
        self.feed_forward = FeedForward(architecture)
        self.self_attention_norm = norm_of(architecture)
        self.feed_forward_norm = norm_of(architecture)

    def forward(self, inputs: Tensor, mask: Mask | None) -> Tensor:
        """Map (batch, positions, width) to the same shape."""
        attended = self._add(
            inputs, self.self_attention_norm, lambda x: self.self_attention(x, mask=mask)
        )
        return self._add(attended, self.feed_forward_norm, self.feed_forward)


class DecoderBlock(_Block):
    """Causal self-attention, attention to the source where there is one, then feed-forward."""

    def __init__(self, architecture: Architecture, *, source: bool) -> None:
        super().__init__(architecture)
        self.self_attention = _attention(architecture, "decoder")
        self.self_attention_norm = norm_of(architecture)
        self.cross_attention = _attention(architecture, "cross") if source else None
        self.cross_attention_norm = norm_of(architecture) if source else None
        self.feed_forward = FeedForward(architecture)
        self.feed_forward_norm = norm_of(architecture)

    def forward(
        self, inputs: Tensor, mask: Mask, source: Tensor | None = None,
        source_mask: Mask | None = None, cache: BlockCache | None = None,
    ) -> Tensor:  # fmt: skip
        """Map (batch, positions, width) to the same shape; cache: of earlier steps, for decoding.

        source: outputs of the encoder, (sources, source positions, width). The batch is as large or
        a multiple: then consecutive sequences share a source.
        """
        cross_attention, cross_norm = self.cross_attention, self.cross_attention_norm
        target_cache = cache.target if cache else None
        outputs = self._add(
            inputs,
            self.self_attention_norm,
            lambda x: self.self_attention(x, mask=mask, cache=target_cache),
        )
        if cross_attention is not None and cross_norm is not None:
            from_source = cache.source if cache else None
            sources = inputs.shape[0] if source is None else source.shape[0]
            per_source = inputs.shape[0] // max(sources, 1)

            def attend(x: Tensor) -> Tensor:
                # All hypotheses of a source are its queries, so that it is read once.
                queries = x.reshape(sources, per_source * x.shape[1], x.shape[2])
                read: Tensor = cross_attention(queries, source, mask=source_mask, cache=from_source)
                return read.reshape(x.shape)

            outputs = self._add(outputs, cross_norm, attend)
        return self._add(outputs, self.feed_forward_norm, self.feed_forward)


def encoder_blocks(architecture: Architecture) -> nn.ModuleList:
    """Return new blocks of an encoder."""
    return nn.ModuleList(EncoderBlock(architecture) for _ in range(architecture.encoder_layers))


def stacked(blocks: nn.ModuleList, norm: nn.Module, vectors: Tensor, *others: object) -> Tensor:
    """Run blocks one after the other, then the norm; others: see their `forward`."""
    for block in blocks:
        vectors = block(vectors, *others)
    result: Tensor = norm(vectors)
    return result


def padding_mask(ids: Tensor, padding_id: int) -> Mask | None:
    """Return the mask that hides padding, or None if there is no padding."""
    real = ids != padding_id
    return None if bool(real.all()) else padding(real)


def output_map(vocabulary: int, architecture: Architecture) -> nn.Linear:
    """Return a new linear map from outputs to the score of every token."""
    linear = nn.Linear(architecture.width, vocabulary, bias=architecture.output_bias)
    nn.init.xavier_uniform_(linear.weight)
    return linear
