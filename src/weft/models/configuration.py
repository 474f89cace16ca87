"""What a Transformer is made of, apart from its vocabulary."""

from __future__ import annotations

from dataclasses import dataclass
from typing import Literal

from weft.errors import InputError
from weft.mechanism.multihead import RelativeKind, WeightsKind

__all__ = ["Architecture", "PoolingKind", "PositionKind"]

PositionKind = Literal["sinusoidal", "learned", "shaw", "shaw-keys", "alibi", "rotary", "none"]
PoolingKind = Literal["mean", "first", "max"]


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
        positions: how order is known. "shaw", "shaw-keys", "alibi" and "rotary" act inside
            self-attention.
        clip: the largest distance that Shaw's positions tell apart.
        norm: "pre" (normalise what enters a layer) or "post" (what leaves it, as in 2017).
        activation: of the feed-forward layers.
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
    norm: Literal["pre", "post"] = "pre"
    activation: Literal["relu", "gelu"] = "relu"
    dropout: float = 0.1
    attention_dropout: float = 0.0
    tied: bool = True
    max_length: int = 1024
    weights: WeightsKind = "learned"

    def __post_init__(self) -> None:
        for name in ("width", "heads", "feed_forward", "decoder_layers", "max_length"):
            if getattr(self, name) < 1:
                raise InputError(f"model.{name} is {getattr(self, name)}; expected 1 or more.")
        if self.width % self.heads:
            raise InputError(
                f"model.width {self.width} does not split into model.heads = {self.heads}. "
                "Choose a multiple."
            )
        if self.weights == "uniform" and self.relative != "none":
            raise InputError(
                f'model.weights "uniform" with model.positions "{self.positions}": these positions '
                'act on the weights. Choose "sinusoidal", "learned" or "none".'
            )

    @property
    def relative(self) -> RelativeKind:
        """The positions that act inside self-attention."""
        if self.positions in ("shaw", "shaw-keys", "alibi", "rotary"):
            return self.positions
        return "none"
