"""Sizes and choices of a Transformer, apart from its vocabulary."""

from __future__ import annotations

import math
from collections.abc import Mapping
from dataclasses import asdict, dataclass
from typing import Any, Literal, TypedDict, get_args

from headloom.errors import InputError
from headloom.mechanism.attention_layer import RelativeKind
from headloom.mechanism.multihead import WeightsKind
from headloom.mechanism.positions import check_buckets
from headloom.mechanism.rotary import RotaryScaling, checked_scaling
from headloom.mechanism.shapes import chosen, whole_number

PositionKind = Literal[
    "sinusoidal", "learned", "shaw", "shaw-keys", "alibi", "buckets", "rotary", "none"
]
PoolingKind = Literal["mean", "first", "max"]
NormalisationKind = Literal["layer", "rms"]
FeedForwardKind = Literal["plain", "gated"]
ActivationKind = Literal["relu", "gelu", "gelu-tanh", "silu"]
_WORDS = {
    "positions": get_args(PositionKind),
    "norm": ("pre", "post"),
    "normalisation": get_args(NormalisationKind),
    "feed_forward_kind": get_args(FeedForwardKind),
    "activation": get_args(ActivationKind),
}


class BlockChoices(TypedDict, total=False):
    """Keyword arguments of every stack of blocks: see `headloom.LanguageModel`."""

    width: int
    heads: int
    feed_forward: int
    dropout: float
    kv_heads: int | None
    norm: Literal["pre", "post"]
    normalisation: NormalisationKind
    norm_epsilon: float
    feed_forward_kind: FeedForwardKind
    biases: bool
    depth: int | None
    attention_dropout: float
    weights: WeightsKind
    activation: ActivationKind


class TextChoices(BlockChoices, total=False):
    """Keyword arguments of the modules that read texts: see `headloom.LanguageModel`."""

    positions: PositionKind
    clip: int
    buckets: int
    max_distance: int
    rotary_base: float
    rotary_scaling: RotaryScaling | None
    scaled_embeddings: bool
    output_bias: bool
    tied: bool
    max_length: int


@dataclass(frozen=True)
class Architecture:
    """Sizes and choices of a Transformer, checked; `headloom.LanguageModel` documents each."""

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
        for name, words in _WORDS.items():
            chosen("model", name, getattr(self, name), words)
        for name in ("width", "heads", "feed_forward", "max_length"):
            whole_number("model", name, getattr(self, name), 1)
        scaling: object = self.rotary_scaling
        if isinstance(scaling, Mapping):  # as a file of TOML or JSON has it
            object.__setattr__(self, "rotary_scaling", RotaryScaling(**scaling))
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
                f'model.rotary_scaling has no effect with model.positions "{self.positions}". '
                'Choose "rotary", or leave it out.'
            )
        checked_scaling("model.rotary_scaling", self.rotary_scaling, self.rotary_base)
        if self.positions == "buckets":
            for flag in (True, False):  # an encoder's layers, and a decoder's
                check_buckets("model.buckets", self.buckets, self.max_distance, bidirectional=flag)
        if self.weights == "uniform" and self.relative != "none":
            raise InputError(
                f'model.weights "uniform" with model.positions "{self.positions}": these positions '
                'act on the weights. Choose "sinusoidal", "learned" or "none".'
            )

    def arguments(self, layers: Literal["encoder", "decoder"] | None = None) -> dict[str, Any]:
        """Return keyword arguments for a module; layers: its stack of blocks, None: both stacks."""
        choices = asdict(self)
        if layers is not None:
            counts = {name: choices.pop(f"{name}_layers") for name in ("encoder", "decoder")}
            choices["layers"] = counts[layers]
        return choices

    @property
    def embedding_factor(self) -> float:
        """Factor of the embeddings."""
        return math.sqrt(self.width) if self.scaled_embeddings else 1.0

    @property
    def room(self) -> int | None:
        """Maximal number of tokens of a sequence; None: unlimited."""
        return self.max_length if self.positions == "learned" else None

    @property
    def relative(self) -> RelativeKind:
        """Positions that act inside self-attention."""
        if self.positions in ("shaw", "shaw-keys", "alibi", "buckets", "rotary"):
            return self.positions
        return "none"
