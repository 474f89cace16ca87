"""The sections [task] and [model] of a configuration: one class for each kind."""

from __future__ import annotations

from typing import Annotated, ClassVar, Literal, Self

from pydantic import AfterValidator, BaseModel, BeforeValidator, ConfigDict, Field, model_validator

from headloom.errors import InputError
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
from headloom.models.convolutional import Convolutions, Region
from headloom.models.vision_transformer import ReadOut

__all__ = [
    "ClassifierConfig",
    "ConvolutionalConfig",
    "DatesConfig",
    "GraphConfig",
    "ImagesConfig",
    "LabelsConfig",
    "LanguageConfig",
    "ModelConfig",
    "ModelSection",
    "NodesConfig",
    "PretrainedConfig",
    "RepeatsConfig",
    "Section",
    "TaskConfig",
    "TaskSection",
    "TransformerConfig",
    "TranslationConfig",
    "VisionTransformerConfig",
]

#: Sizes that any memory ends before.
_Size = Annotated[int, Field(ge=1, le=1_000_000)]
_Layers = Annotated[int, Field(ge=1, le=1_000)]
_Pixels = Annotated[int, Field(ge=1)]
_Share = Annotated[float, Field(ge=0, lt=1)]
_Seed = Annotated[int, Field(ge=0, le=2**63 - 1)]


class Section(BaseModel):
    """A section of a configuration: unknown keys are refused, nothing changes later."""

    model_config = ConfigDict(extra="forbid", frozen=True, strict=True, allow_inf_nan=False)


class ModelSection(Section):
    """The section of a kind of model; `kind` is a Literal of its one name, which is its default."""

    kind: str


class _BlocksSection(ModelSection):
    """Keys of all stacks of attention blocks: see headloom.models.configuration.Architecture."""

    width: _Size = 256
    heads: _Size = 4
    kv_heads: int | None = None
    feed_forward: _Size = 1024
    norm: Literal["pre", "post"] = "pre"
    normalisation: NormalisationKind = "layer"
    norm_epsilon: float = Field(1e-5, gt=0, lt=1)
    feed_forward_kind: FeedForwardKind = "plain"
    activation: ActivationKind = "relu"
    biases: bool = Field(True, description="of the blocks' linear layers")
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
    max_distance: int = Field(128, ge=1, le=10_000_000, description="what shares the last bucket")
    rotary_base: float = Field(10_000.0, gt=0)
    rotary_scaling: RotaryScalingConfig | None = Field(None, description="for longer texts")
    max_length: int = Field(1024, ge=1, le=10_000_000)


class TransformerConfig(_TextSection):
    """An encoder-decoder, or a language model: which of them, the task says."""

    kind: Literal["transformer"] = "transformer"
    encoder_layers: int = Field(3, ge=0, le=1_000)
    decoder_layers: _Layers = 3
    tied: bool = True

    def architecture(self) -> Architecture:
        """See _BlocksSection.architecture."""
        return Architecture.read(self.model_dump(exclude={"kind"}))


class ClassifierConfig(_TextSection):
    """An encoder whose outputs are pooled into the score of each class."""

    kind: Literal["classifier"] = "classifier"
    width: _Size = 128
    feed_forward: _Size = 256
    layers: _Layers = 2
    dropout: _Share = 0.3
    pooling: PoolingKind = Field("mean", description="how the outputs become one vector")
    weights: WeightsKind = Field("learned", description="uniform: the baseline without attention")

    def architecture(self) -> Architecture:
        """See _BlocksSection.architecture."""
        sizes = self.model_dump(exclude={"kind", "layers", "pooling"})
        return Architecture.read(sizes | {"encoder_layers": self.layers})


class VisionTransformerConfig(_BlocksSection):
    """A Transformer encoder on the patches of an image."""

    kind: Literal["vision-transformer"] = "vision-transformer"
    width: _Size = 64
    feed_forward: _Size = 128
    layers: _Layers = 4
    activation: ActivationKind = "gelu"
    positions: Literal["learned", "sinusoidal", "none"] = "learned"
    patch: tuple[_Pixels, _Pixels] = Field((4, 4), description="its rows and columns, in pixels")
    read: ReadOut = Field("class token", description="what the class is read from")

    def architecture(self) -> Architecture:
        """See _BlocksSection.architecture."""
        sizes = self.model_dump(exclude={"kind", "layers", "patch", "read"})
        return Architecture(**sizes, encoder_layers=self.layers)


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
    inner_channels: int | None = Field(
        None, ge=1, description="of queries and keys; an eighth of the block's, if left out"
    )
    value_channels: int | None = Field(
        None, ge=1, description="of values; as inner_channels, if left out"
    )
    pooled: bool = Field(False, description="keys, values: maxima of 2 x 2 places")
    spectral_norm: bool = Field(True, description="of the block's four matrices")
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

    @model_validator(mode="after")
    def _check_convolutions(self) -> Self:
        """Raise an error where no model is made like that."""
        self.convolutions()
        return self


class GraphConfig(ModelSection):
    """A graph attention network; see headloom.models.graph_attention."""

    kind: Literal["graph"] = "graph"
    width: _Size = Field(64, description="of all heads of a hidden layer")
    heads: _Size = 8
    output_heads: _Size = Field(1, description="of the last layer, averaged")
    layers: _Layers = 2
    version: Literal[1, 2] = Field(1, description="of the score: GAT or GATv2")
    dropout: _Share = Field(0.6, description="of what enters a layer")
    attention_dropout: _Share = Field(0.6, description="of the normalised weights")
    residual: bool = False
    weights: WeightsKind = Field("learned", description="uniform: the baseline without attention")


class PretrainedConfig(ModelSection):
    """A model of Transformers that is trained further; its folder says how large it is."""

    kind: Literal["pretrained"] = "pretrained"
    folder: str = Field(
        description="with config.json, safetensors and tokenizer.json, from the current folder"
    )
    dropout: _Share | None = Field(None, description="left out: as its config.json says")
    attention_dropout: _Share | None = Field(None, description="likewise")


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
    train_examples: int = Field(60_000, ge=1, le=10_000_000, description="pairs to learn from")
    test_examples: int = Field(
        1_000, ge=1, le=10_000_000, description="held-out dates to validate and test on"
    )
    first_year: int = Field(1950, ge=1, le=9998)
    last_year: int = Field(2049, ge=1, le=9998)


def _check_files(files: list[str]) -> list[str]:
    if len(files) not in (1, 2):
        raise InputError("expected two line-aligned files, or one of tab-separated pairs")
    return files


#: Files that pairs of texts are read from; one may stand without its brackets.
_PairFiles = Annotated[
    list[str],
    BeforeValidator(lambda files: [files] if isinstance(files, str) else files),
    AfterValidator(_check_files),
]


class TranslationConfig(TaskSection):
    """Lines of one language to lines of another."""

    models: ClassVar[tuple[type[ModelSection], ...]] = (TransformerConfig, PretrainedConfig)
    kind: Literal["translation"]
    place: ClassVar[str | None] = "folder"
    folder: str = Field(".", description="where the files are, from the current folder")
    train: _PairFiles = Field(description="source and target file, line-aligned; or one TSV")
    valid: _PairFiles = Field(description="likewise, for early stopping")
    test: _PairFiles | None = Field(None, description="likewise, for `headloom evaluate`")
    vocabulary: int = Field(8_000, ge=300, description="tokens of the shared byte-pair encoding")
    max_length: int = Field(256, ge=1, description="training pairs with a longer side are left out")
    length_penalty: float = Field(
        1.0, ge=0, le=10, description="how much beam search prefers long translations"
    )


class LanguageConfig(TaskSection):
    """A language model on a text file."""

    models: ClassVar[tuple[type[ModelSection], ...]] = (TransformerConfig, PretrainedConfig)
    kind: Literal["language"]
    place: ClassVar[str | None] = "file"
    file: str = Field(description="the text, from the current folder")
    valid_share: float = Field(0.1, gt=0, lt=1, description="the end of the text, held out")
    tokens: Literal["characters", "pieces"] = "characters"
    vocabulary: int = Field(4_000, ge=300, description="tokens of the byte-pair encoding")
    block: int = Field(128, ge=2, description="tokens of one training window")


class RepeatsConfig(TaskSection):
    """A language model on sequences whose first half comes again."""

    kind: Literal["repeats"]
    symbols: int = Field(62, ge=2, le=62, description="letters and digits that parts are drawn of")
    shortest: int = Field(10, ge=2, description="symbols of a part, at least")
    longest: int = Field(30, ge=2, description="symbols of a part, at most")


class _LabelledSection(TaskSection):
    """Keys that tasks share whose examples are each of one class."""

    place: ClassVar[str | None] = "folder"
    folder: str = Field(".", description="where the files are, from the current folder")
    valid: str | None = Field(None, description="as train; left out: drawn from it")
    test: str | None = Field(None, description="as train; left out: drawn from it")
    valid_share: float = Field(0.1, gt=0, lt=0.5)
    test_share: float = Field(0.1, ge=0, lt=0.5)
    split_seed: _Seed = 1


class LabelsConfig(_LabelledSection):
    """Texts, each of one class."""

    models: ClassVar[tuple[type[ModelSection], ...]] = (ClassifierConfig, PretrainedConfig)
    kind: Literal["labels"]
    train: str = Field(description="label TAB text lines, or a folder with one for each class")
    tokens: Literal["words", "pieces", "characters"] = "words"
    vocabulary: int = Field(10_000, ge=300, description="tokens")
    max_length: int = Field(512, ge=2, description="longer texts are read as far as that")


class NodesConfig(TaskSection):
    """The classes of the nodes of a graph."""

    models: ClassVar[tuple[type[ModelSection], ...]] = (GraphConfig,)
    divisible: ClassVar[bool] = False
    kind: Literal["nodes"]
    place: ClassVar[str | None] = "graph"
    graph: str = Field(description="an .npz file with edge_index, x, y and splits")
    setting: Literal["transductive", "inductive"] = Field(
        "transductive", description="inductive: other nodes are not there in training"
    )
    normalise: bool = Field(True, description="divide each node's features by their sum")
    undirected: bool = Field(False, description="take every edge in both directions")


class ImagesConfig(_LabelledSection):
    """Images, each of one class."""

    models: ClassVar[tuple[type[ModelSection], ...]] = (
        VisionTransformerConfig,
        ConvolutionalConfig,
    )
    kind: Literal["images"]
    train: str = Field(
        description="a .npz with images and labels, or a folder with one for each class"
    )
    colour: bool | None = Field(
        None, description="red, green and blue, or grey; left out: as the images are"
    )
    size: tuple[_Pixels, _Pixels] | None = Field(
        None, description="rows and columns that image files are scaled to"
    )


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
