"""The sections [task] and [model] of a configuration: one class for each kind.

docs/training.md says what each key means.
"""

from __future__ import annotations

from typing import Annotated, ClassVar, Literal, Self

from pydantic import BaseModel, BeforeValidator, ConfigDict, Field, model_validator

from headloom.mechanism.multihead import WeightsKind
from headloom.mechanism.rotary import ScalingKind
from headloom.models.configuration import (
    ActivationKind,
    Architecture,
    FeedForwardKind,
    NormalisationKind,
    PoolingKind,
    PositionKind,
)
from headloom.models.images import ReadOut, check_convolutions

#: Sizes that any memory ends before.
_Size = Annotated[int, Field(ge=1, le=1_000_000)]
_Layers = Annotated[int, Field(ge=1, le=1_000)]
_Pixels = Annotated[int, Field(ge=1)]
_Share = Annotated[float, Field(ge=0, lt=1)]
#: Tokens: byte-pair encoding needs 300, and makes room for all before the first is learned.
_Pieces = Annotated[int, Field(ge=300, le=10_000_000)]
_Seed = Annotated[int, Field(ge=0, le=2**63 - 1)]


class Section(BaseModel):
    """A section of a configuration: unknown keys are refused, nothing changes later."""

    model_config = ConfigDict(extra="forbid", frozen=True, strict=True, allow_inf_nan=False)


class ModelSection(Section):
    """The section of a kind of model; `kind` is a Literal of its one name, which is its default."""

    kind: str


class _BlocksSection(ModelSection):
    """Keys of all stacks of attention blocks: see headloom.LanguageModel."""

    width: _Size = 256
    heads: _Size = 4
    kv_heads: int | None = None
    feed_forward: _Size = 1024
    norm: Literal["pre", "post"] = "pre"
    normalisation: NormalisationKind = "layer"
    norm_epsilon: float = Field(1e-5, gt=0, lt=1)
    feed_forward_kind: FeedForwardKind = "plain"
    activation: ActivationKind = "relu"
    biases: bool = True
    dropout: _Share = 0.1
    attention_dropout: _Share = 0.0

    @model_validator(mode="after")
    def _check_architecture(self) -> Self:
        """Raise an error where no model is made like that."""
        self.architecture()
        return self

    def architecture(self) -> Architecture:
        """The same as the model takes it."""
        raise NotImplementedError


class RotaryScalingConfig(Section):
    """The section [model.rotary_scaling]: see headloom.RotaryScaling."""

    kind: ScalingKind
    factor: float
    original_length: int | None = None
    slow: float | None = None
    fast: float | None = None
    temperature: float | None = None


class _TextSection(_BlocksSection):
    """Keys that Transformers of texts share."""

    positions: PositionKind = "sinusoidal"
    clip: int = Field(16, ge=1, le=10_000_000)
    buckets: _Size = 32
    max_distance: int = Field(128, ge=1, le=10_000_000)
    rotary_base: float = Field(10_000.0, gt=0)
    rotary_scaling: RotaryScalingConfig | None = None
    max_length: int = Field(1024, ge=1, le=10_000_000)


class TransformerConfig(_TextSection):
    """An encoder-decoder, or a language model: which of them, the task says."""

    kind: Literal["transformer"] = "transformer"
    encoder_layers: int = Field(3, ge=0, le=1_000)
    decoder_layers: _Layers = 3
    tied: bool = True

    def architecture(self) -> Architecture:
        """See _BlocksSection.architecture."""
        return Architecture(**self.model_dump(exclude={"kind"}))


class ClassifierConfig(_TextSection):
    """An encoder whose outputs are pooled into the score of each class."""

    kind: Literal["classifier"] = "classifier"
    width: _Size = 128
    feed_forward: _Size = 256
    layers: _Layers = 2
    dropout: _Share = 0.3
    pooling: PoolingKind = "mean"
    weights: WeightsKind = "learned"

    def architecture(self) -> Architecture:
        """See _BlocksSection.architecture."""
        sizes = self.model_dump(exclude={"kind", "layers", "pooling"})
        return Architecture(**sizes, encoder_layers=self.layers)


class VisionTransformerConfig(_BlocksSection):
    """A Transformer encoder on the patches of an image."""

    kind: Literal["vision-transformer"] = "vision-transformer"
    width: _Size = 64
    feed_forward: _Size = 128
    layers: _Layers = 4
    activation: ActivationKind = "gelu"
    positions: Literal["learned", "sinusoidal", "none"] = "learned"
    patch: tuple[_Pixels, _Pixels] = (4, 4)
    read: ReadOut = "class token"

    def architecture(self) -> Architecture:
        """See _BlocksSection.architecture."""
        sizes = self.model_dump(exclude={"kind", "layers", "patch", "read"})
        return Architecture(**sizes, encoder_layers=self.layers)


class ConvolutionalConfig(ModelSection):
    """Convolutions of 3 x 3 on images, and SAGAN's attention block among them."""

    kind: Literal["convolutional"] = "convolutional"
    channels: tuple[int, ...] = (16, 16, 16, 16)
    halved: tuple[int, ...] = ()
    attention: int = Field(4, ge=0)
    inner_channels: int | None = Field(None, ge=1)
    value_channels: int | None = Field(None, ge=1)
    pooled: bool = False
    spectral_norm: bool = True
    batch_norm: bool = True
    region: tuple[int, int, int, int] | None = None

    @model_validator(mode="after")
    def _check_convolutions(self) -> Self:
        """Raise an error where no model is made like that."""
        check_convolutions(self.channels, self.halved, self.attention)
        return self


class GraphConfig(ModelSection):
    """A graph attention network; see headloom.models.graph_attention."""

    kind: Literal["graph"] = "graph"
    width: _Size = 64
    heads: _Size = 8
    output_heads: _Size = 1
    layers: _Layers = 2
    version: Literal[1, 2] = 1
    dropout: _Share = 0.6
    attention_dropout: _Share = 0.6
    residual: bool = False
    weights: WeightsKind = "learned"


class PretrainedConfig(ModelSection):
    """A model of Transformers that is trained further; its folder says how large it is."""

    kind: Literal["pretrained"] = "pretrained"
    folder: str
    dropout: _Share | None = None
    attention_dropout: _Share | None = None


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


class TaskSection(Section):
    """The section of a kind of task.

    kind: in a subclass a Literal of its one name.
    models: the kinds of models that can learn it; the first where [model] names none.
    divisible: whether several processes can share a batch.
    place: the key that says where the data are; None: they are drawn.
    """

    models: ClassVar[tuple[type[ModelSection], ...]] = (TransformerConfig,)
    divisible: ClassVar[bool] = True
    place: ClassVar[str | None] = None
    kind: str


class DatesConfig(TaskSection):
    """Dates in 48 languages to ISO 8601."""

    kind: Literal["dates"] = "dates"
    train_examples: int = Field(60_000, ge=1, le=10_000_000)
    test_examples: int = Field(1_000, ge=1, le=10_000_000)
    first_year: int = Field(1950, ge=1, le=9998)
    last_year: int = Field(2049, ge=1, le=9998)


#: Two line-aligned files, or one of tab-separated pairs, which may stand without its brackets.
_PairFiles = Annotated[
    list[str],
    Field(min_length=1, max_length=2),
    BeforeValidator(lambda files: [files] if isinstance(files, str) else files),
]


class TranslationConfig(TaskSection):
    """Lines of one language to lines of another."""

    models: ClassVar[tuple[type[ModelSection], ...]] = (TransformerConfig, PretrainedConfig)
    kind: Literal["translation"]
    place: ClassVar[str | None] = "folder"
    folder: str = "."
    train: _PairFiles
    valid: _PairFiles
    test: _PairFiles | None = None
    vocabulary: _Pieces = 8_000
    max_length: int = Field(256, ge=1)
    length_penalty: float = Field(1.0, ge=0, le=10)


class LanguageConfig(TaskSection):
    """A language model on a text file."""

    models: ClassVar[tuple[type[ModelSection], ...]] = (TransformerConfig, PretrainedConfig)
    kind: Literal["language"]
    place: ClassVar[str | None] = "file"
    file: str
    valid_share: float = Field(0.1, gt=0, lt=1)
    tokens: Literal["characters", "pieces"] = "characters"
    vocabulary: _Pieces = 4_000
    block: int = Field(128, ge=2)


class RepeatsConfig(TaskSection):
    """A language model on sequences whose first half comes again."""

    kind: Literal["repeats"]
    symbols: int = Field(62, ge=2, le=62)
    shortest: int = Field(10, ge=2)
    longest: int = Field(30, ge=2)


class _LabelledSection(TaskSection):
    """Keys that tasks share whose examples are each of one class."""

    place: ClassVar[str | None] = "folder"
    folder: str = "."
    valid: str | None = None
    test: str | None = None
    valid_share: float = Field(0.1, gt=0, lt=0.5)
    test_share: float = Field(0.1, ge=0, lt=0.5)
    split_seed: _Seed = 1


class LabelsConfig(_LabelledSection):
    """Texts, each of one class."""

    models: ClassVar[tuple[type[ModelSection], ...]] = (ClassifierConfig, PretrainedConfig)
    kind: Literal["labels"]
    train: str
    tokens: Literal["words", "pieces", "characters"] = "words"
    vocabulary: _Pieces = 10_000
    max_length: int = Field(512, ge=2)


class NodesConfig(TaskSection):
    """The classes of the nodes of a graph."""

    models: ClassVar[tuple[type[ModelSection], ...]] = (GraphConfig,)
    divisible: ClassVar[bool] = False
    kind: Literal["nodes"]
    place: ClassVar[str | None] = "graph"
    graph: str
    setting: Literal["transductive", "inductive"] = "transductive"
    normalise: bool = True
    undirected: bool = False


class ImagesConfig(_LabelledSection):
    """Images, each of one class."""

    models: ClassVar[tuple[type[ModelSection], ...]] = (
        VisionTransformerConfig,
        ConvolutionalConfig,
    )
    kind: Literal["images"]
    train: str
    colour: bool | None = None
    size: tuple[_Pixels, _Pixels] | None = None


#: What a section [task] may be.
TaskConfig = Annotated[
    DatesConfig
    | TranslationConfig
    | LanguageConfig
    | RepeatsConfig
    | LabelsConfig
    | NodesConfig
    | ImagesConfig,
    Field(discriminator="kind"),
]
