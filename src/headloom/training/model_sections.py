"""The section [model] of a configuration: one class for each kind of model."""

from __future__ import annotations

from typing import Annotated, Literal, Self

from pydantic import BaseModel, ConfigDict, Field, model_validator
from pydantic_core import PydanticCustomError

from headloom.errors import InputError
from headloom.mechanism.multihead import WeightsKind
from headloom.mechanism.rotary import RotaryScaling, ScalingKind
from headloom.models.configuration import (
    ActivationKind,
    Architecture,
    FeedForwardKind,
    NormalisationKind,
    PoolingKind,
    PositionKind,
)
from headloom.models.convolutional import Convolutions, Region
from headloom.models.vision_transformer import ReadOut

__all__ = [
    "ClassifierConfig",
    "ConvolutionalConfig",
    "GraphConfig",
    "ModelConfig",
    "ModelSection",
    "Only",
    "PretrainedConfig",
    "Section",
    "TransformerConfig",
    "VisionTransformerConfig",
]


class Section(BaseModel):
    """A section of a configuration: unknown keys are refused, nothing changes later."""

    model_config = ConfigDict(extra="forbid", frozen=True, strict=True, allow_inf_nan=False)


class Only:
    """Marks a key that nothing reads but where another key has one of some values.

    Args: keys: that key, or several with a space between, of which any; with its section where
        that is another, as "task.kind". values, unless: these values, or all but these.

    A key with several marks is read where all say so.
    """

    def __init__(self, keys: str, *values: object, unless: tuple[object, ...] = ()) -> None:
        self.keys, self.values, self.unless = keys.split(), values, unless

    def unmet(self, name: str, run: BaseModel) -> tuple[str, object] | None:
        """The other key, and its value, where nothing reads a key of the section of this name."""
        for place in self.keys:
            section, _, key = (place if "." in place else f"{name}.{place}").partition(".")
            value = getattr(getattr(run, section), key)
            if value in self.values or (self.unless and value not in self.unless):
                return None
        return f"{section}.{key}", value


class ModelSection(Section):
    """What the section of every kind of model has.

    kind: in a subclass a Literal of its one name, which is also its default.
    """

    kind: str

    def summary(self) -> str:
        """What it has, for a message: "width 256, 4 heads, 3 + 3 layers"."""
        raise NotImplementedError

    def size(self) -> str:
        """The sizes that its memory follows from, for a message."""
        raise NotImplementedError


class _BlocksSection(ModelSection):
    """What stacks of attention blocks share; see headloom.models.configuration.Architecture."""

    width: int = Field(256, ge=1, le=1_000_000)
    heads: int = Field(4, ge=1, le=1_000_000)
    kv_heads: int | None = Field(None, ge=1)
    feed_forward: int = Field(1024, ge=1, le=1_000_000)
    norm: Literal["pre", "post"] = "pre"
    normalisation: NormalisationKind = "layer"
    norm_epsilon: float = Field(1e-5, gt=0, lt=1)
    feed_forward_kind: FeedForwardKind = "plain"
    activation: ActivationKind = "relu"
    biases: bool = Field(True, description="of the blocks' linear layers")
    dropout: float = Field(0.1, ge=0, lt=1)
    attention_dropout: float = Field(0.0, ge=0, lt=1)

    @model_validator(mode="after")
    def _check_architecture(self) -> Self:
        """Raise an error where no model is made like that."""
        try:
            self.architecture()
        except InputError as error:
            raise PydanticCustomError("misfit", "{error}", {"error": str(error)}) from error
        return self

    def architecture(self) -> Architecture:
        """The same as the model takes it."""
        raise NotImplementedError

    def layer_counts(self) -> str:
        """How many layers, for a message: "3 + 3 layers"."""
        raise NotImplementedError

    def summary(self) -> str:
        """See ModelSection.summary."""
        return f"width {self.width}, {self.heads} heads, {self.layer_counts()}"

    def size(self) -> str:
        """See ModelSection.size."""
        return f"width {self.width} and feed_forward {self.feed_forward}"


class RotaryScalingConfig(Section):
    """The section [model.rotary_scaling]: see headloom.RotaryScaling."""

    kind: ScalingKind
    factor: float
    original_length: int | None = None
    slow: float | None = None
    fast: float | None = None
    temperature: float | None = None

    @model_validator(mode="after")
    def _check_numbers(self) -> Self:
        """Raise an error where the kind does not have these numbers."""
        try:
            RotaryScaling(**self.model_dump())
        except InputError as error:
            raise PydanticCustomError("misfit", "{error}", {"error": str(error)}) from error
        return self


class _AttentionSection(_BlocksSection):
    """What Transformers of texts share."""

    positions: PositionKind = "sinusoidal"
    clip: Annotated[int, Only("positions", "shaw", "shaw-keys")] = Field(16, ge=1, le=10_000_000)
    buckets: Annotated[int, Only("positions", "buckets")] = Field(32, ge=1, le=1_000_000)
    max_distance: Annotated[int, Only("positions", "buckets")] = Field(
        128, ge=1, le=10_000_000, description="what shares the last bucket"
    )
    rotary_base: Annotated[float, Only("positions", "rotary")] = Field(10_000.0, gt=0)
    rotary_scaling: RotaryScalingConfig | None = Field(None, description="for longer texts")
    max_length: int = Field(1024, ge=1, le=10_000_000)


class TransformerConfig(_AttentionSection):
    """An encoder-decoder, or a language model: which of them, the task says."""

    kind: Literal["transformer"] = "transformer"
    encoder_layers: Annotated[int, Only("task.kind", "dates", "translation")] = Field(
        3, ge=0, le=1_000
    )
    decoder_layers: int = Field(3, ge=1, le=1_000)
    tied: bool = True

    def architecture(self) -> Architecture:
        """See _BlocksSection.architecture."""
        return Architecture.read(self.model_dump(exclude={"kind"}))

    def layer_counts(self) -> str:
        """See _BlocksSection.layer_counts."""
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
        """See _BlocksSection.architecture."""
        sizes = self.model_dump(exclude={"kind", "layers", "pooling", "embeddings"})
        return Architecture.read(sizes | {"encoder_layers": self.layers})

    def layer_counts(self) -> str:
        """See _BlocksSection.layer_counts."""
        return f"{self.layers} layer{'s' if self.layers > 1 else ''}"


#: Of the block of attention among convolutions, which may be nowhere.
_OfBlock = Only("attention", unless=(0,))


class ConvolutionalConfig(ModelSection):
    """Convolutions of 3 x 3 on images, and SAGAN's attention block among them."""

    kind: Literal["convolutional"] = "convolutional"
    channels: tuple[int, ...] = Field((16, 16, 16, 16), description="of each convolution, in order")
    halved: tuple[int, ...] = Field(
        (), description="after which convolutions, from 1, rows and columns are halved"
    )
    attention: int = Field(
        4, ge=0, description="after which convolution the block stands; 0: nowhere"
    )
    inner_channels: Annotated[int | None, _OfBlock] = Field(
        None, ge=1, description="of queries and keys; an eighth of the block's, if left out"
    )
    value_channels: Annotated[int | None, _OfBlock] = Field(
        None, ge=1, description="of values; as inner_channels, if left out"
    )
    pooled: Annotated[bool, _OfBlock] = Field(
        False, description="keys, values: maxima of 2 x 2 places"
    )
    spectral_norm: Annotated[bool, _OfBlock] = Field(True, description="of its four matrices")
    batch_norm: bool = Field(True, description="after each convolution")
    region: tuple[int, int, int, int] | None = Field(
        None, description="first row, first column, rows, columns that the class is read from"
    )

    def convolutions(self) -> Convolutions:
        """The same as the model takes it."""
        choices = self.model_dump(exclude={"kind", "region", "attention"})
        return Convolutions(
            **choices,
            attention=self.attention or None,
            region=None if self.region is None else Region(*self.region),
        )

    def summary(self) -> str:
        """See ModelSection.summary."""
        block = "an attention block" if self.attention else "no attention block"
        return f"{len(self.channels)} convolutions, {block}"

    def size(self) -> str:
        """See ModelSection.size."""
        return f"channels {list(self.channels)}"


class VisionTransformerConfig(_BlocksSection):
    """A Transformer encoder on the patches of an image."""

    kind: Literal["vision-transformer"] = "vision-transformer"
    width: int = Field(64, ge=1, le=1_000_000)
    feed_forward: int = Field(128, ge=1, le=1_000_000)
    layers: int = Field(4, ge=1, le=1_000)
    activation: ActivationKind = "gelu"
    positions: Literal["learned", "sinusoidal", "none"] = "learned"
    patch: tuple[Annotated[int, Field(ge=1)], Annotated[int, Field(ge=1)]] = Field(
        (4, 4), description="its rows and columns, in pixels"
    )
    read: ReadOut = Field("class token", description="what the class is read from")

    def architecture(self) -> Architecture:
        """See _BlocksSection.architecture."""
        sizes = self.model_dump(exclude={"kind", "layers", "patch", "read"})
        return Architecture(**sizes, encoder_layers=self.layers)

    def layer_counts(self) -> str:
        """See _BlocksSection.layer_counts."""
        return f"{self.layers} layer{'s' if self.layers > 1 else ''}"


class GraphConfig(ModelSection):
    """A graph attention network; see headloom.models.graph_attention."""

    kind: Literal["graph"] = "graph"
    width: Annotated[int, Only("layers", unless=(1,))] = Field(
        64, ge=1, le=1_000_000, description="of all heads of a hidden layer"
    )
    heads: Annotated[int, Only("layers", unless=(1,))] = Field(8, ge=1, le=1_000_000)
    output_heads: int = Field(1, ge=1, le=1_000_000, description="of the last layer, averaged")
    layers: int = Field(2, ge=1, le=1_000)
    version: Literal[1, 2] = Field(1, description="of the score: GAT or GATv2")
    dropout: float = Field(0.6, ge=0, lt=1, description="of what enters a layer")
    attention_dropout: float = Field(0.6, ge=0, lt=1, description="of the normalised weights")
    residual: Annotated[bool, Only("layers", unless=(1, 2))] = False
    weights: WeightsKind = Field("learned", description="uniform: the baseline without attention")

    def summary(self) -> str:
        """See ModelSection.summary."""
        layers = f"{self.layers} layer{'s' if self.layers > 1 else ''}"
        return f"width {self.width}, {self.heads} heads, {layers}"

    def size(self) -> str:
        """See ModelSection.size."""
        return f"width {self.width}"


class PretrainedConfig(ModelSection):
    """A model of Transformers that is trained further; its folder says how large it is."""

    kind: Literal["pretrained"] = "pretrained"
    folder: str = Field(
        description="with config.json, safetensors and tokenizer.json, from the current folder"
    )
    dropout: float | None = Field(None, ge=0, lt=1, description="left out: as its config.json says")
    attention_dropout: float | None = Field(None, ge=0, lt=1, description="likewise")

    def summary(self) -> str:
        """See ModelSection.summary."""
        return f"the model of {self.folder}"

    def size(self) -> str:
        """See ModelSection.size."""
        return f"the sizes of {self.folder}"


#: What a section [model] may be.
ModelConfig = Annotated[
    TransformerConfig
    | ClassifierConfig
    | ConvolutionalConfig
    | VisionTransformerConfig
    | GraphConfig
    | PretrainedConfig,
    Field(discriminator="kind"),
]
