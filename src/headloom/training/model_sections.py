"""Section [model] of a configuration: one class for each kind, and the base of all sections."""

from __future__ import annotations

from dataclasses import fields
from typing import Annotated, Any, Literal, Self

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

#: Upper limits that exceed any memory.
Size = Annotated[int, Field(ge=1, le=1_000_000)]
Layers = Annotated[int, Field(ge=1, le=1_000)]
Pixels = Annotated[int, Field(ge=1)]
Share = Annotated[float, Field(ge=0, lt=1)]


def key(default: Any, what: str, **limits: Any) -> Any:
    """Declare a key of a section: its default (... if required) and its description."""
    return Field(default, description=what, **limits)


class Section(BaseModel):
    """Section of a configuration: frozen, unknown keys are errors."""

    model_config = ConfigDict(extra="forbid", frozen=True, strict=True, allow_inf_nan=False)

    @classmethod
    def __pydantic_init_subclass__(cls, **named: object) -> None:
        """List the keys in the docstring."""
        keys = [f"{name} ({default}): {what}" for name, default, what in described(cls)]
        cls.__doc__ = "\n".join([cls.__doc__ or "", "", "Keys, with their defaults:", "", *keys])


def described(section: type[BaseModel]) -> list[tuple[str, str, str]]:
    """List the keys of a section: name, default in TOML, and description.

    A key that a subclass gives another default inherits its description.
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
    return f"{value:g}"


class ModelSection(Section):
    """Base class of the section [model]; `kind` is a Literal of one name, its default."""

    kind: str


class _BlocksSection(ModelSection):
    """Keys of all stacks of attention blocks; see headloom.LanguageModel."""

    width: Size = key(256, "of embeddings and of the vectors between layers")
    heads: Size = key(4, "query heads per layer")
    kv_heads: int | None = key(None, "key and value heads, if fewer than `heads`")
    feed_forward: Size = key(1024, "inner width of the feed-forward layers")
    norm: Literal["pre", "post"] = key("pre", 'or `"post"`, as in Vaswani et al. 2017')
    normalisation: NormalisationKind = key("layer", 'or `"rms"`: RMSNorm (Zhang and Sennrich 2019)')
    norm_epsilon: float = key(1e-5, "added to the variance", gt=0, lt=1)
    feed_forward_kind: FeedForwardKind = key(
        "plain",
        'or `"gated"`: (activation(x W_g) * x W_1) W_2, 1.5 times the weights (Shazeer 2020)',
    )
    activation: ActivationKind = key(
        "relu", 'or `"gelu"`, `"gelu-tanh"` (GPT-2\'s approximation), `"silu"`'
    )
    biases: bool = key(True, "of the linear layers of the blocks")
    dropout: Share = key(0.1, "of layer outputs")
    attention_dropout: Share = key(0.0, "of the attention weights")

    @model_validator(mode="after")
    def _check_architecture(self) -> Self:
        """Raise an error where the keys do not fit together."""
        self.architecture()
        return self

    def architecture(self) -> Architecture:
        """Return the keys as an Architecture; without the layers of a single stack."""
        return Architecture(**self.model_dump(include={f.name for f in fields(Architecture)}))


class RotaryScalingConfig(Section):
    """Section [model.rotary_scaling]; see headloom.RotaryScaling."""

    kind: ScalingKind
    factor: float
    original_length: int | None = None
    slow: float | None = None
    fast: float | None = None
    temperature: float | None = None


class _TextSection(_BlocksSection):
    """Keys of all Transformers of texts."""

    positions: PositionKind = key(
        "sinusoidal",
        'or `"learned"`, `"shaw"`, `"shaw-keys"` (no table of values), `"alibi"`, `"buckets"` '
        '(T5\'s), `"rotary"`, `"none"`',
    )
    clip: int = key(16, "largest distance that Shaw's positions distinguish", ge=1, le=10_000_000)
    buckets: Size = key(32, 'of `"buckets"`: number of buckets; each has a learned bias per head')
    max_distance: int = key(
        128, 'of `"buckets"`: larger distances share the last one', ge=1, le=10_000_000
    )
    rotary_base: float = key(10_000.0, 'base of `"rotary"` positions', gt=0)
    rotary_scaling: RotaryScalingConfig | None = key(
        None,
        'a section for longer texts with `"rotary"`: `kind` (`"linear"`, `"ntk"`, `"llama3"` or '
        '`"yarn"`), `factor`, and the other arguments of `headloom.RotaryScaling`',
    )
    max_length: int = key(1024, 'number of `"learned"` positions', ge=1, le=10_000_000)


class TransformerConfig(_TextSection):
    """Encoder-decoder or language model, depending on the task."""

    kind: Literal["transformer"] = "transformer"
    encoder_layers: int = key(3, "layers of the encoder; a language model has none", ge=0, le=1_000)
    decoder_layers: Layers = key(3, "layers of the decoder")
    tied: bool = key(True, "share one embedding between source, target and output")


class ClassifierConfig(_TextSection):
    """Encoder whose outputs are pooled into class scores."""

    kind: Literal["classifier"] = "classifier"
    width: Size = 128
    feed_forward: Size = 256
    layers: Layers = key(2, "layers of the encoder")
    dropout: Share = 0.3
    pooling: PoolingKind = key("mean", 'of the outputs over positions; or `"first"`, `"max"`')
    weights: WeightsKind = key("learned", 'or `"uniform"`: a baseline without attention')


class VisionTransformerConfig(_BlocksSection):
    """Transformer encoder on the patches of an image."""

    kind: Literal["vision-transformer"] = "vision-transformer"
    width: Size = 64
    feed_forward: Size = 128
    layers: Layers = key(4, "layers of the encoder")
    activation: ActivationKind = key(
        "gelu", 'or `"relu"`, `"gelu-tanh"` (GPT-2\'s approximation), `"silu"`'
    )
    positions: Literal["learned", "sinusoidal", "none"] = key(
        "learned", 'or `"sinusoidal"`, `"none"`'
    )
    patch: tuple[Pixels, Pixels] = key((4, 4), "rows and columns of a patch, in pixels")
    read: ReadOut = key("class token", 'input of the classifier; or `"mean"` of all patches')


class ConvolutionalConfig(ModelSection):
    """Convolutions of 3 x 3 on images, with SAGAN's attention block."""

    kind: Literal["convolutional"] = "convolutional"
    channels: tuple[int, ...] = key((16, 16, 16, 16), "channels of each 3 x 3 convolution")
    halved: tuple[int, ...] = key(
        (), "convolutions, counted from 1, after which rows and columns are halved"
    )
    attention: int = key(4, "convolution after which the attention block stands; 0: none", ge=0)
    inner_channels: int | None = key(None, "of queries and keys; if empty, an eighth", ge=1)
    value_channels: int | None = key(None, "of values; if empty, as of queries and keys", ge=1)
    pooled: bool = key(False, "max-pool keys and values by 2 x 2")
    spectral_norm: bool = key(True, "spectral normalisation of the attention block")
    batch_norm: bool = key(True, "batch norm after each convolution")
    region: tuple[int, int, int, int] | None = key(
        None, "part of the image that the classifier uses: first row, first column, rows, columns"
    )

    @model_validator(mode="after")
    def _check_convolutions(self) -> Self:
        """Raise an error where the keys do not fit together."""
        check_convolutions(self.channels, self.halved, self.attention)
        return self


class GraphConfig(ModelSection):
    """Graph attention network; see headloom.models.graph_attention."""

    kind: Literal["graph"] = "graph"
    width: Size = key(64, "of a hidden layer, all heads together")
    heads: Size = key(8, "heads of a hidden layer")
    output_heads: Size = key(1, "heads of the last layer; their scores are averaged")
    layers: Layers = key(2, "number of layers")
    version: Literal[1, 2] = key(1, "1: GAT, 2: GATv2")
    dropout: Share = key(0.6, "of layer inputs")
    attention_dropout: Share = key(0.6, "of the attention weights")
    residual: bool = key(False, "residual connections of inner hidden layers")
    weights: WeightsKind = key("learned", 'or `"uniform"`: a baseline without attention')


class PretrainedConfig(ModelSection):
    """Model of Transformers to train further; its folder defines the sizes."""

    kind: Literal["pretrained"] = "pretrained"
    folder: str = key(..., "with config.json, model.safetensors and tokenizer.json")
    dropout: Share | None = key(None, "of layer outputs; if empty, the folder's")
    attention_dropout: Share | None = key(None, "of the attention weights; if empty, the folder's")


#: Union of all kinds of [model].
ModelConfig = Annotated[
    TransformerConfig
    | ClassifierConfig
    | ConvolutionalConfig
    | VisionTransformerConfig
    | GraphConfig
    | PretrainedConfig,
    Field(discriminator="kind"),
]
