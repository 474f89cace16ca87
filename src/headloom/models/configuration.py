"""What a Transformer is made of, apart from its vocabulary."""

from __future__ import annotations

import math
from collections.abc import Mapping
from dataclasses import dataclass
from typing import Any, Literal

from headloom.errors import InputError
from headloom.mechanism.attention_layer import RelativeKind
from headloom.mechanism.multihead import WeightsKind
from headloom.mechanism.positions import check_buckets
from headloom.mechanism.rotary import RotaryScaling, checked_scaling

PositionKind = Literal[
    "sinusoidal", "learned", "shaw", "shaw-keys", "alibi", "buckets", "rotary", "none"
]
PoolingKind = Literal["mean", "first", "max"]
NormalisationKind = Literal["layer", "rms"]
FeedForwardKind = Literal["plain", "gated"]
ActivationKind = Literal["relu", "gelu", "gelu-tanh", "silu"]


@dataclass(frozen=True)
class Architecture:
    """Sizes and choices of a Transformer.

    Args:
        width: of embeddings and of what flows between layers (d_model).
        heads: of each attention layer.
        kv_heads: of keys and values; None: as many as heads.
        feed_forward: inner width of the feed-forward layers (d_ff).
        encoder_layers: 0 for a language model.
        decoder_layers: with cross-attention in an encoder-decoder, without in a language model.
        positions: how order is known. "shaw", "shaw-keys", "alibi", "buckets" and "rotary" act
            inside self-attention.
        clip: the largest distance that Shaw's positions tell apart.
        buckets: of "buckets": how many there are in each layer, see `headloom.Buckets`.
        max_distance: of "buckets": all keys farther away share the last one.
        norm: "pre" (normalise what enters a layer) or "post" (what leaves it, as in 2017).
        normalisation: "layer" (mean and deviation, Ba et al. 2016) or "rms" (root mean square
            alone, without a bias, Zhang and Sennrich 2019).
        norm_epsilon: added to the variance, or to the mean square, before the root.
        feed_forward_kind: "plain" or "gated"; see `headloom.models.blocks.FeedForward`.
        activation: of the feed-forward layers. "gelu-tanh" is the approximation of GPT-2, "silu"
            is x sigmoid(x), also called swish.
        biases: whether the linear layers of the blocks have them.
        depth: of a head's queries and keys; None: width / heads.
        rotary_base: of rotary positions, which sets the longest wavelength.
        rotary_scaling: of rotary positions, for longer texts; see `headloom.RotaryScaling`.
        scaled_embeddings: whether embeddings are multiplied by sqrt(width).
        output_bias: whether one is added to the scores of the tokens.
        dropout: of embeddings and of what each layer adds.
        attention_dropout: of the attention weights.
        tied: whether source, target and output share one embedding matrix.
        max_length: the longest sequence; only "learned" positions need it.
        weights: of attention: "learned", or "uniform": each query weighs all keys that it may
            look at alike.
    """

    width: int = 256
    heads: int = 4
    kv_heads: int | None = None
    feed_forward: int = 1024
    encoder_layers: int = 3
    decoder_layers: int = 3
    positions: PositionKind = "sinusoidal"
    clip: int = 16
    buckets: int = 32
    max_distance: int = 128
    norm: Literal["pre", "post"] = "pre"
    normalisation: NormalisationKind = "layer"
    norm_epsilon: float = 1e-5
    feed_forward_kind: FeedForwardKind = "plain"
    activation: ActivationKind = "relu"
    biases: bool = True
    depth: int | None = None
    rotary_base: float = 10_000.0
    rotary_scaling: RotaryScaling | None = None
    scaled_embeddings: bool = True
    output_bias: bool = False
    dropout: float = 0.1
    attention_dropout: float = 0.0
    tied: bool = True
    max_length: int = 1024
    weights: WeightsKind = "learned"

    def __post_init__(self) -> None:
        if self.depth is None and self.width % self.heads:
            raise InputError(
                f"model.width {self.width} does not split into model.heads = {self.heads}. "
                "Choose a multiple."
            )
        if self.kv_heads is not None and self.heads % self.kv_heads:
            raise InputError(
                f"model.kv_heads {self.kv_heads} does not divide model.heads = {self.heads}. "
                "Choose a divisor, or leave model.kv_heads out."
            )
        depth = self.depth or self.width // self.heads
        if self.positions == "rotary" and depth % 2:
            raise InputError(
                f"model.width {self.width}, model.heads {self.heads}: each head has {depth} "
                "coordinates, an odd number, and rotary positions turn them in pairs. Choose a "
                f"model.width that is a multiple of {2 * self.heads}."
            )
        if self.rotary_scaling is not None and self.positions != "rotary":
            raise InputError(
                f'model.rotary_scaling with model.positions "{self.positions}", which turns '
                'nothing. Choose "rotary", or leave it out.'
            )
        checked_scaling("model.rotary_scaling", self.rotary_scaling, self.rotary_base)
        if self.positions == "buckets":
            for both in (True, False):  # an encoder's layers, and a decoder's
                check_buckets("model.buckets", self.buckets, self.max_distance, bidirectional=both)
        if self.weights == "uniform" and self.relative != "none":
            raise InputError(
                f'model.weights "uniform" with model.positions "{self.positions}": these positions '
                'act on the weights. Choose "sinusoidal", "learned" or "none".'
            )

    @classmethod
    def read(cls, choices: Mapping[str, Any]) -> Architecture:
        """Of what `dataclasses.asdict` says of one."""
        scaling = choices.get("rotary_scaling")
        return cls(
            **{**choices, "rotary_scaling": None if scaling is None else RotaryScaling(**scaling)}
        )

    @property
    def embedding_factor(self) -> float:
        """What embeddings are multiplied by."""
        return math.sqrt(self.width) if self.scaled_embeddings else 1.0

    @property
    def room(self) -> int | None:
        """How many tokens a sequence may have; None: any number."""
        return self.max_length if self.positions == "learned" else None

    @property
    def relative(self) -> RelativeKind:
        """The positions that act inside self-attention."""
        if self.positions in ("shaw", "shaw-keys", "alibi", "buckets", "rotary"):
            return self.positions
        return "none"
