"""The section [model] of a configuration: one class for each kind of model."""

from __future__ import annotations

from typing import Annotated, Literal

from pydantic import BaseModel, ConfigDict, Field

from weft.mechanism.multihead import WeightsKind
from weft.models.configuration import Architecture, PoolingKind, PositionKind

__all__ = [
    "ClassifierConfig",
    "GraphConfig",
    "ModelConfig",
    "ModelSection",
    "Section",
    "TransformerConfig",
]


class Section(BaseModel):
    """A section of a configuration: unknown keys are refused, nothing changes later."""

    model_config = ConfigDict(extra="forbid", frozen=True, strict=True, allow_inf_nan=False)


class ModelSection(Section):
    """What the section of every kind of model has.

    kind: in a subclass a Literal of its one name, which is also its default.
    """

    kind: str
    width: int = Field(256, ge=1, le=1_000_000)
    heads: int = Field(4, ge=1, le=1_000_000)

    def layer_counts(self) -> str:
        """How many layers, for a message: "3 + 3 layers"."""
        raise NotImplementedError

    def size(self) -> str:
        """The sizes that its memory follows from, for a message."""
        return f"width {self.width}"


class _AttentionSection(ModelSection):
    """What Transformers share; see weft.models.configuration.Architecture."""

    kv_heads: int | None = Field(None, ge=1)
    feed_forward: int = Field(1024, ge=1, le=1_000_000)
    positions: PositionKind = "sinusoidal"
    clip: int = Field(16, ge=1, le=10_000_000)
    norm: Literal["pre", "post"] = "pre"
    activation: Literal["relu", "gelu"] = "relu"
    dropout: float = Field(0.1, ge=0, lt=1)
    attention_dropout: float = Field(0.0, ge=0, lt=1)
    max_length: int = Field(1024, ge=1, le=10_000_000)

    def size(self) -> str:
        """See ModelSection.size."""
        return f"width {self.width} and feed_forward {self.feed_forward}"


class TransformerConfig(_AttentionSection):
    """An encoder-decoder, or a language model: which of them, the task says."""

    kind: Literal["transformer"] = "transformer"
    encoder_layers: int = Field(3, ge=0, le=1_000)
    decoder_layers: int = Field(3, ge=1, le=1_000)
    tied: bool = True

    def architecture(self) -> Architecture:
        """The same as the model takes it."""
        return Architecture(**self.model_dump(exclude={"kind"}))

    def layer_counts(self) -> str:
        """See ModelSection.layer_counts."""
        return f"{self.encoder_layers} + {self.decoder_layers} layers"


class ClassifierConfig(_AttentionSection):
    """An encoder whose outputs are pooled into the score of each class."""

    kind: Literal["classifier"] = "classifier"
    width: int = Field(128, ge=1, le=1_000_000)
    feed_forward: int = Field(256, ge=1, le=1_000_000)
    layers: int = Field(2, ge=1, le=1_000)
    dropout: float = Field(0.3, ge=0, lt=1)
    pooling: PoolingKind = Field("mean", description="how the outputs become one vector")
    weights: WeightsKind = Field("learned", description="uniform: the baseline without attention")
    embeddings: Literal["learned", "frozen"] = Field(
        "learned", description="frozen: they stay as they were drawn, or given"
    )

    def architecture(self) -> Architecture:
        """The same as the model takes it."""
        sizes = self.model_dump(exclude={"kind", "layers", "pooling", "embeddings"})
        return Architecture(**sizes, encoder_layers=self.layers)

    def layer_counts(self) -> str:
        """See ModelSection.layer_counts."""
        return f"{self.layers} layer{'s' if self.layers > 1 else ''}"


class GraphConfig(ModelSection):
    """A graph attention network; see weft.models.graph_attention."""

    kind: Literal["graph"] = "graph"
    width: int = Field(64, ge=1, le=1_000_000, description="of all heads of a hidden layer")
    heads: int = Field(8, ge=1, le=1_000_000)
    output_heads: int = Field(1, ge=1, le=1_000_000, description="of the last layer, averaged")
    layers: int = Field(2, ge=1, le=1_000)
    version: Literal[1, 2] = Field(1, description="of the score: GAT or GATv2")
    dropout: float = Field(0.6, ge=0, lt=1, description="of what enters a layer")
    attention_dropout: float = Field(0.6, ge=0, lt=1, description="of the normalised weights")
    residual: bool = False
    weights: WeightsKind = Field("learned", description="uniform: the baseline without attention")

    def layer_counts(self) -> str:
        """See ModelSection.layer_counts."""
        return f"{self.layers} layer{'s' if self.layers > 1 else ''}"


#: What a section [model] may be.
ModelConfig = Annotated[
    TransformerConfig | ClassifierConfig | GraphConfig, Field(discriminator="kind")
]
