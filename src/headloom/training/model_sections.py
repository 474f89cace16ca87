"""The section [model] of a configuration: one class for each kind, and what all sections share."""

from __future__ import annotations

from typing import Annotated, Literal, Self

from pydantic import BaseModel, ConfigDict, Field, model_validator
from pydantic.fields import FieldInfo

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
Size = Annotated[int, Field(ge=1, le=1_000_000)]
Layers = Annotated[int, Field(ge=1, le=1_000)]
Pixels = Annotated[int, Field(ge=1)]
Share = Annotated[float, Field(ge=0, lt=1)]


class Section(BaseModel):
    """A section of a configuration: unknown keys are refused, nothing changes later."""

    model_config = ConfigDict(extra="forbid", frozen=True, strict=True, allow_inf_nan=False)

    @classmethod
    def __pydantic_init_subclass__(cls, **named: object) -> None:
        """Say in the docstring what each key means."""
        keys = [f"{name} ({default}): {what}" for name, default, what in described(cls)]
        cls.__doc__ = "\n".join([cls.__doc__ or "", "", "Keys, with their defaults:", "", *keys])


def described(section: type[BaseModel]) -> list[tuple[str, str, str]]:
    """The keys of a section: name, default as TOML has it, and what it means.

    A key with a default of its own means what it does in the class above.
    """
    texts: dict[str, str] = {}
    for parent in section.__mro__:
        for name, field in getattr(parent, "model_fields", {}).items():
            texts.setdefault(name, field.description or "") or texts.pop(name)
    fields = section.model_fields.items()
    return [(name, _default(field), texts[name]) for name, field in fields if name in texts]


def _default(field: FieldInfo) -> str:
    value = field.get_default()
    if field.is_required():
        return "required"
    if value is None or isinstance(value, BaseModel) or field.default_factory is not None:
        return "none"
    if isinstance(value, bool):
        return str(value).lower()
    if isinstance(value, str):
        return f'"{value}"'
    if isinstance(value, tuple):
        return str(list(value))
    return f"{value:_}" if isinstance(value, int) else f"{value:g}"


class ModelSection(Section):
    """The section of a kind of model; `kind` is a Literal of its one name, which is its default."""

    kind: str


class _BlocksSection(ModelSection):
    """Keys of all stacks of attention blocks: see headloom.LanguageModel."""

    width: Size = Field(256, description="of embeddings and of what flows between layers")
    heads: Size = Field(4, description="heads of queries")
    kv_heads: int | None = Field(None, description="of keys and values, where fewer than `heads`")
    feed_forward: Size = Field(1024, description="inner width of the feed-forward layers")
    norm: Literal["pre", "post"] = Field("pre", description='or `"post"`, as in the paper of 2017')
    normalisation: NormalisationKind = Field(
        "layer",
        description='or `"rms"`: by the root mean square alone, without a bias (Zhang and Sennrich '
        "2019)",
    )
    norm_epsilon: float = Field(1e-5, gt=0, lt=1, description="added to the variance")
    feed_forward_kind: FeedForwardKind = Field(
        "plain",
        description='or `"gated"`: (activation(x W_g) * x W_1) W_2, with half as many weights '
        "again (Shazeer 2020)",
    )
    activation: ActivationKind = Field(
        "relu", description='or `"gelu"`, `"gelu-tanh"` (GPT-2\'s approximation), `"silu"`'
    )
    biases: bool = Field(True, description="of the linear layers of the blocks")
    dropout: Share = Field(0.1, description="of what layers give")
    attention_dropout: Share = Field(0.0, description="of the attention weights")

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

    positions: PositionKind = Field(
        "sinusoidal",
        description='or `"learned"`, `"shaw"`, `"shaw-keys"` (no table of values), `"alibi"`, '
        '`"buckets"` (T5\'s), `"rotary"`, `"none"`',
    )
    clip: int = Field(
        16, ge=1, le=10_000_000, description="the largest distance that Shaw's positions tell apart"
    )
    buckets: Size = Field(
        32, description='of `"buckets"`: how many each layer has, a learned number a head in each'
    )
    max_distance: int = Field(
        128, ge=1, le=10_000_000,
        description='of `"buckets"`: all that are farther away share the last one',
    )  # fmt: skip
    rotary_base: float = Field(
        10_000.0, gt=0,
        description='of `"rotary"` positions: the longest wavelength grows with it',
    )  # fmt: skip
    rotary_scaling: RotaryScalingConfig | None = Field(
        None,
        description='a section of its own, of `"rotary"` positions: slows the turns down for '
        'longer texts, by `kind = "linear"`, `"ntk"`, `"llama3"` or `"yarn"` and `factor`; the '
        "last two with `original_length` and, where they are not the usual ones, `slow`, `fast` "
        "and, of yarn, `temperature` (`headloom.RotaryScaling`)",
    )
    max_length: int = Field(
        1024, ge=1, le=10_000_000, description='where `"learned"` positions end, in tokens'
    )


class TransformerConfig(_TextSection):
    """An encoder-decoder, or a language model: which of them, the task says."""

    kind: Literal["transformer"] = "transformer"
    encoder_layers: int = Field(
        3, ge=0, le=1_000, description="a language model has decoder layers only"
    )
    decoder_layers: Layers = Field(3, description="layers of the decoder")
    tied: bool = Field(True, description="source, target and output share one embedding")

    def architecture(self) -> Architecture:
        """See _BlocksSection.architecture."""
        return Architecture(**self.model_dump(exclude={"kind"}))


class ClassifierConfig(_TextSection):
    """An encoder whose outputs are pooled into the score of each class."""

    kind: Literal["classifier"] = "classifier"
    width: Size = 128
    feed_forward: Size = 256
    layers: Layers = Field(2, description="layers of the encoder")
    dropout: Share = 0.3
    pooling: PoolingKind = Field(
        "mean", description='of the outputs of all positions; or `"first"`, `"max"`'
    )
    weights: WeightsKind = Field(
        "learned", description='or `"uniform"`: the baseline without attention'
    )

    def architecture(self) -> Architecture:
        """See _BlocksSection.architecture."""
        sizes = self.model_dump(exclude={"kind", "layers", "pooling"})
        return Architecture(**sizes, encoder_layers=self.layers)


class VisionTransformerConfig(_BlocksSection):
    """A Transformer encoder on the patches of an image."""

    kind: Literal["vision-transformer"] = "vision-transformer"
    width: Size = 64
    feed_forward: Size = 128
    layers: Layers = Field(4, description="layers of the encoder")
    activation: ActivationKind = Field(
        "gelu", description='or `"relu"`, `"gelu-tanh"` (GPT-2\'s approximation), `"silu"`'
    )
    positions: Literal["learned", "sinusoidal", "none"] = Field(
        "learned", description='or `"sinusoidal"`, `"none"`'
    )
    patch: tuple[Pixels, Pixels] = Field(
        (4, 4), description="rows and columns of a patch, in pixels"
    )
    read: ReadOut = Field(
        "class token", description='what the class is read from; or `"mean"`, of all patches'
    )

    def architecture(self) -> Architecture:
        """See _BlocksSection.architecture."""
        sizes = self.model_dump(exclude={"kind", "layers", "patch", "read"})
        return Architecture(**sizes, encoder_layers=self.layers)


class ConvolutionalConfig(ModelSection):
    """Convolutions of 3 x 3 on images, and SAGAN's attention block among them."""

    kind: Literal["convolutional"] = "convolutional"
    channels: tuple[int, ...] = Field((16, 16, 16, 16), description="of each convolution of 3 x 3")
    halved: tuple[int, ...] = Field(
        (), description="after which of them, from 1, rows and columns are halved"
    )
    attention: int = Field(
        4, ge=0, description="after which of them the block of attention stands; 0: nowhere"
    )
    inner_channels: int | None = Field(
        None, ge=1, description="of queries and keys; none: an eighth"
    )
    value_channels: int | None = Field(
        None, ge=1, description="of values; none: as queries and keys"
    )
    pooled: bool = Field(False, description="whether keys and values are maxima of 2 x 2 places")
    spectral_norm: bool = Field(
        True, description="the block's matrices are divided by their largest singular value"
    )
    batch_norm: bool = Field(True, description="after each convolution")
    region: tuple[int, int, int, int] | None = Field(
        None, description="first row, first column, rows and columns that the class is read from"
    )

    @model_validator(mode="after")
    def _check_convolutions(self) -> Self:
        """Raise an error where no model is made like that."""
        check_convolutions(self.channels, self.halved, self.attention)
        return self


class GraphConfig(ModelSection):
    """A graph attention network; see headloom.models.graph_attention."""

    kind: Literal["graph"] = "graph"
    width: Size = Field(64, description="of all heads of a hidden layer together")
    heads: Size = Field(8, description="of a hidden layer")
    output_heads: Size = Field(1, description="of the last layer, whose scores are averaged")
    layers: Layers = Field(2, description="the last one too")
    version: Literal[1, 2] = Field(1, description="of the score: 1 is GAT, 2 is GATv2")
    dropout: Share = Field(0.6, description="of what enters a layer")
    attention_dropout: Share = Field(0.6, description="of the normalised weights")
    residual: bool = Field(
        False,
        description="whether what enters a hidden layer between two others is added to what it "
        "gives",
    )
    weights: WeightsKind = Field(
        "learned", description='or `"uniform"`: the baseline without attention'
    )


class PretrainedConfig(ModelSection):
    """A model of Transformers that is trained further; its folder says how large it is."""

    kind: Literal["pretrained"] = "pretrained"
    folder: str = Field(description="with config.json, model.safetensors and tokenizer.json")
    dropout: Share | None = Field(None, description="of what layers give; none: the folder's")
    attention_dropout: Share | None = Field(
        None, description="of the attention weights; none: the folder's"
    )


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
