"""Sequences of the positions of a layer, and names of the positions.

A position is a token of a text, a patch of an image, or a frame of a sound.
"""

from __future__ import annotations

import importlib
from collections.abc import Mapping
from dataclasses import dataclass, field
from typing import Any, Protocol

import torch
from torch import Tensor, nn

from headloom.formats.tokens import Tokens, shown
from headloom.formats.trace import SEQUENCES
from headloom.formats.traced_images import TracedImage
from headloom.mechanism.grid import Grid
from headloom.mechanism.watching import named_modules
from headloom.tracing.arguments import BESIDE, Arguments, Inputs, Tokenizer
from headloom.tracing.names import special_known, texts_known, token_names
from headloom.tracing.recording.layer_call import LayerCall
from headloom.tracing.vision_language import ImagesOfText, images_of_texts

#: Names of cross-attention modules, in lower case.
_CROSS = (
    "crossattention", "cross_attn", "cross_attention", "encoder_attn", "encdecattention",
    "encoder_decoder_attention",
)  # fmt: skip

#: Sequences whose tokens are arguments of a model.
_READ = ("tokens", "source", "target")
#: Words in the paths of modules that read an image, in a model that reads a text too.
_IMAGE = ("vision", "visual", "image", "pixel")


def layer_kind(path: str, module: nn.Module, is_causal: bool) -> str:
    """Return the kind of a layer, "encoder", "decoder" or "cross", by path, class and flag."""
    return "cross" if "Cross" in type(module).__name__ else kind_of_name(path, is_causal)


def kind_of_name(path: str, is_causal: bool) -> str:
    """Return the kind of a layer from its path, and whether it is causal.

    >>> kind_of_name("decoder.0.encoder_attn", False), kind_of_name("layers.0", True)
    ('cross', 'decoder')
    """
    if any(word in path.lower() for word in _CROSS):
        return "cross"
    if is_causal or "decoder" in path.split("."):
        return "decoder"
    return "encoder"


def _is_vision(path: str) -> bool:
    """Return whether the path of a module contains a word for images."""
    return any(word in path.lower() for word in _IMAGE)


@dataclass(frozen=True, eq=False)
class InputSequence:
    """Positions of one sequence, for one input of a batch.

    span: the positions without padding; names: of these; known: as in Trace.positions; images: the
    ones with patches among them.
    """

    span: slice
    names: list[str]
    known: dict[str, list[Any]] = field(default_factory=dict)
    images: tuple[TracedImage, ...] = ()


class NamesOfSequences(Protocol):
    """Protocol of objects that name the positions of layers."""

    def ends(self, call: LayerCall) -> tuple[str, str]:
        """Return the sequences of the queries and of the keys of a layer."""

    def of(self, name: str, length: int, sample: int) -> InputSequence:
        """Return a sequence of some length, of one input of the batch."""


def name_of_grid(known: dict[str, Grid], grid: Grid) -> str:
    """Return the sequence of an image's places, the same for all layers of that grid.

    known: grids by the names of their sequences; the grid is added to it.
    """
    name = "patches"
    if known.setdefault(name, grid) != grid:
        name = f"patches-{grid.rows}x{grid.columns}" + f"+{grid.before}" * (grid.before > 0)
        known[name] = grid
    return name


#: Arguments that hold a wave, (batch, samples), or frames, (batch, bands, frames).
_WAVE, _FRAMES = "input_values", "input_features"
#: Parts of the paths of convolutions that do not change the positions of the sound.
_BESIDE = ("pos_conv", "adapter", "conv_module", "decoder", "depthwise", "pointwise")


def is_sound(inputs: Inputs) -> bool:
    """Return whether the inputs hold a sound."""
    return any(name in inputs for name in (_WAVE, _FRAMES))


@dataclass(frozen=True)
class SoundAxis:
    """Centres of positions, in seconds: ``first + j * step``, for ``count`` positions.

    Source: Dumoulin and Visin 2016, "A guide to convolution arithmetic"; Araujo et al. 2019,
    "Computing Receptive Fields of Convolutional Neural Networks".
    """

    first: float
    step: float
    count: int

    @classmethod
    def of(cls, model: nn.Module, inputs: Inputs, tokenizer: Tokenizer) -> SoundAxis | None:
        """Return the axis of a model on its inputs; None: unknown.

        The rate is from the processor or feature extractor given as the tokenizer, otherwise the
        default of the family. Frames are a hop apart, each centred on its first sample.
        """
        value = inputs.get(_WAVE, inputs.get(_FRAMES))
        if not isinstance(value, Tensor) or value.ndim < 2:
            return None
        extractor = _extractor(model, tokenizer)
        rate = getattr(extractor, "sampling_rate", None)
        hop = 1 if _WAVE in inputs else getattr(extractor, "hop_length", None)
        if not isinstance(rate, int | float) or not isinstance(hop, int) or not rate > 0 < hop:
            return None
        length, first, step = value.shape[-1], 0.0, 1
        for name, part in named_modules(model):
            if not isinstance(part, nn.Conv1d) or any(word in name for word in _BESIDE):
                continue
            (kernel,), (stride,), (spread,) = part.kernel_size, part.stride, part.dilation
            if isinstance(part.padding, str):
                return None
            (padding,) = part.padding
            reach = spread * (kernel - 1)
            length = (length + 2 * padding - reach - 1) // stride + 1
            first += step * (reach / 2 - padding)
            step *= stride
        return cls(first * hop / rate, step * hop / rate, length)

    def seconds(self, start: int, stop: int) -> list[float]:
        """Return the centres of some positions, to a microsecond."""
        return [round(self.first + place * self.step, 6) for place in range(start, stop)]

    def names(self, start: int, stop: int) -> list[str]:
        """Return the names of some positions.

        >>> SoundAxis(0.0, 0.02, 1500).names(0, 3), SoundAxis(0.0125, 0.02, 49).names(0, 2)
        (['0.00 s', '0.02 s', '0.04 s'], ['0.013 s', '0.033 s'])
        """
        whole = all(abs(100 * number - round(100 * number)) < 1e-6
                    for number in (self.first, self.step))  # fmt: skip
        digits = 2 if whole else 3
        return [f"{second:.{digits}f} s" for second in self.seconds(start, stop)]


def _extractor(model: nn.Module, tokenizer: Tokenizer) -> Tokenizer:
    """Return the feature extractor, or the default one of the family; None: unknown."""
    if isinstance(tokenizer, Mapping):
        tokenizer = tokenizer.get("source")
    extractor = getattr(tokenizer, "feature_extractor", tokenizer)
    if hasattr(extractor, "sampling_rate"):
        return extractor
    kind = getattr(getattr(model, "config", None), "model_type", None)
    try:
        library = importlib.import_module("transformers")
        auto = importlib.import_module("transformers.models.auto.feature_extraction_auto")
        name = auto.FEATURE_EXTRACTOR_MAPPING_NAMES.get(kind)
        return None if name is None else getattr(library, name)()
    except (ImportError, AttributeError, TypeError, ValueError):
        return None


class Sequences(NamesOfSequences):
    """Sequences of a model's call, named when the first layer over them has run.

    prompt: number of prompt tokens; the ones after it were generated.
    """

    def __init__(
        self, model: nn.Module, inputs: Inputs, tokenizer: Tokenizer,
        offsets: list[list[int]] | None = None, prompt: int | None = None,
    ) -> None:  # fmt: skip
        self._config: Any = getattr(model, "config", None)
        self._inputs, self._tokenizer, self._offsets = inputs, tokenizer, offsets
        self._prompt = prompt
        self._pair = "decoder_input_ids" in inputs or bool(
            getattr(self._config, "is_encoder_decoder", False)
        )
        #: Tokens before the patches of an image: [CLS], and the distillation token.
        distilled = any(name.endswith("distillation_token") for name, _ in model.named_parameters())
        self._before_patches = 1 + distilled
        #: Parts of the model that read the image, unlike the prompts and masks of SAM.
        self._towers = [name for name, _ in model.named_children() if _is_vision(name)]
        self._sound = SoundAxis.of(model, inputs, tokenizer) if is_sound(inputs) else None
        sees = any(name.startswith("pixel") for name in inputs)
        self._images = images_of_texts(model, inputs, tokenizer, prompt) if sees else None
        #: Length of each sequence without an argument, from its first layer.
        self._lengths: dict[str, int] = {}
        #: Grids of layers, by the names of their sequences.
        self._grids: dict[str, Grid] = {}

    def ends(self, call: LayerCall) -> tuple[str, str]:
        """Return the sequences of the queries and of the keys of a layer.

        Every length is a separate sequence: positions of another length than the input, such as a
        pooled text, or an image and a text together, are named by their length; places of an image
        with a grid from their layer, by its rows and columns.
        """
        if call.grids is not None:
            rows, columns = (name_of_grid(self._grids, grid) for grid in call.grids)
            return rows, columns
        path, kind, (queries, keys) = call.path, call.kind, call.graph.shape[2:]
        if self._pair:
            named = SEQUENCES[kind]
        else:
            reads_image = "pixel_values" in self._inputs and (
                "input_ids" not in self._inputs or _is_vision(path)
            )
            if reads_image and self._towers and "input_ids" not in self._inputs:
                return self._of_tower(path, queries), self._of_tower(path, keys)
            named = ("patches", "patches") if reads_image else ("tokens", "tokens")
            length = self._input_length(named[0]) or self._lengths.get(named[0])
            if kind == "cross" and not (keys == length != queries):
                # Other queries than these pool the input: their keys have its length.
                named = (named[0], "source")
        return self._of_length(named[0], queries), self._of_length(named[1], keys)

    def _of_tower(self, path: str, length: int) -> str:
        """Return the sequence of a length in a model with a part that reads images."""
        inside = path.partition(".")[0] in self._towers or self._patches(length) is not None
        return self._of_length("patches" if inside else "positions", length)

    def _of_length(self, name: str, length: int) -> str:
        known = self._input_length(name) or self._lengths.setdefault(name, length)
        return name if length == known else f"{name}-{length}"

    def _input(self, name: str, what: str) -> Tensor | None:
        """Return an argument of a sequence, (batch, length, ...); None: there is none."""
        value = self._inputs.get(f"decoder_{what}" if name == "target" else what)
        return value if isinstance(value, Tensor) and value.ndim > 1 and name in _READ else None

    def _input_length(self, name: str) -> int | None:
        """Return the number of a sequence's tokens in the arguments; None: not in them."""
        values = (self._input(name, what) for what in ("input_ids", "inputs_embeds"))
        return next((value.shape[1] for value in values if value is not None), None)

    def of(self, name: str, length: int, sample: int) -> InputSequence:
        if name in self._grids:
            grid = self._grids[name]
            return InputSequence(slice(0, length), grid.names(), {**grid.places()})
        ids, mask = (
            value if value is not None and value.shape == (len(value), length) else None
            for value in (self._input(name, "input_ids"), self._input(name, "attention_mask"))
        )
        span = slice(0, length)
        if mask is not None:
            (real,) = mask[sample].nonzero(as_tuple=True)
            span = slice(int(real[0]), int(real[-1]) + 1) if len(real) else slice(0, 0)
        if ids is not None:
            images = self._images[sample] if self._images and name == "tokens" else None
            return self._tokens(ids[sample, span].tolist(), span, name, images)
        sees = "pixel_values" in self._inputs and (
            name.startswith("patches") or (name == "source" and "input_ids" not in self._inputs)
        )
        patches = self._patches(length) if sees else None
        if patches is not None:
            return InputSequence(span, *patches)
        sounds = self._is_sound(name)
        if self._sound is not None and sounds and length == self._sound.count:
            names = self._sound.names(span.start, span.stop)
            return InputSequence(
                span, names, {"seconds": self._sound.seconds(span.start, span.stop)}
            )
        word = "frame" if sounds else "position"
        return InputSequence(span, [f"{word} {i}" for i in range(span.start, span.stop)])

    def _is_sound(self, name: str) -> bool:
        return not name.startswith("target") and is_sound(self._inputs)

    def _tokens(
        self, ids: list[int], span: slice, name: str, images: ImagesOfText | None
    ) -> InputSequence:
        tokenizer = self._tokenizer
        if isinstance(tokenizer, Mapping):
            tokenizer = tokenizer.get(name)
        if hasattr(tokenizer, "feature_extractor") or hasattr(tokenizer, "image_processor"):
            # A processor, of sounds or images and of texts.
            tokenizer = getattr(tokenizer, "tokenizer", None)
        known: dict[str, list[Any]] = {**special_known(ids, tokenizer)}
        if self._offsets is not None and name in ("tokens", "source"):
            # Generated tokens have no place in the text of the prompt.
            known["offsets"] = (self._offsets + [[0, 0]] * (span.stop - len(self._offsets)))[span]
        prompt = None if name == "source" else self._prompt
        if prompt is not None and (self._input_length(name) or 0) > prompt:
            known["generated"] = [place >= prompt for place in range(span.start, span.stop)]
        names = token_names(ids, tokenizer)
        if images is None or not images.images:
            return InputSequence(span, names, known | texts_known(names))
        texts = images.named(list(shown(names)), span)
        names = images.named(names, span)
        if names != texts:
            names = Tokens(names, texts)
        known |= images.known(span) | texts_known(names)
        return InputSequence(span, names, known, images.images)

    def _patches(self, length: int) -> tuple[list[str], dict[str, list[Any]]] | None:
        """Return the patches of an image, row by row, after other tokens such as [CLS]."""
        config = getattr(self._config, "vision_config", self._config)
        size = getattr(config, "patch_size", None)
        pixels = self._inputs["pixel_values"]
        if size is None or not isinstance(pixels, Tensor) or pixels.ndim != 4:
            return None
        # A masked autoencoder shuffles the patches of its encoder, the first sequence.
        if hasattr(config, "mask_ratio") and self._lengths.get("patches") == length:
            return None
        high, wide = (size, size) if isinstance(size, int) else size
        rows, columns = pixels.shape[-2] // high, pixels.shape[-1] // wide
        before = length - rows * columns
        registers = getattr(config, "num_register_tokens", 0) or 0
        if not 0 <= before <= self._before_patches + registers:
            return None
        grid = Grid(rows, columns, before, distilled=self._before_patches > 1)
        return grid.names(), {**grid.places()}


def on_device_of(model: nn.Module, inputs: Inputs) -> Arguments:
    """Return the inputs on the model's device, token ids with a batch dimension."""
    device = next((parameter.device for parameter in model.parameters()), torch.device("cpu"))
    arguments: Arguments = {}
    for name, value in inputs.items():
        if isinstance(value, Tensor):
            value = value.to(device)
            beside = str(name).startswith(BESIDE)
            if value.ndim == 1 and not value.is_floating_point() and not beside:
                value = value[None]
        arguments[str(name)] = value
    return arguments
