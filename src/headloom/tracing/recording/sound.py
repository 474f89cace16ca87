"""Where the positions of a model of sound lie in time.

What a model hears is a wave, or the frames of its spectrum; convolutions make fewer positions of
it. Position j has its middle at ``first + j * step`` of what was given, by the kernels, strides and
padding of the convolutions, and so a second.
"""

from __future__ import annotations

import importlib
from collections.abc import Mapping
from dataclasses import dataclass
from typing import Any

from torch import Tensor, nn

from headloom.mechanism.watching import named_modules
from headloom.tracing.arguments import Inputs

__all__ = ["SoundAxis", "is_sound"]

#: The arguments that hold a wave, (batch, samples), or frames, (batch, bands, frames).
_WAVE, _FRAMES = "input_values", "input_features"
#: Parts of the paths of convolutions that make no positions of the sound.
_BESIDE = ("pos_conv", "adapter", "conv_module", "decoder", "depthwise", "pointwise")


def is_sound(inputs: Inputs) -> bool:
    """Whether a model is given a sound."""
    return any(name in inputs for name in (_WAVE, _FRAMES))


@dataclass(frozen=True)
class SoundAxis:
    """The middles of positions, in seconds: ``first + j * step``; count: how many there are.

    Source: Dumoulin and Visin 2016, "A guide to convolution arithmetic", for the length after a
    convolution; Araujo et al. 2019, "Computing Receptive Fields of Convolutional Neural Networks",
    for the middle.
    """

    first: float
    step: float
    count: int

    @classmethod
    def of(cls, model: nn.Module, inputs: Inputs, tokenizer: Any) -> SoundAxis | None:
        """The axis of a model on its inputs; None: it is not known.

        The rate is that of the processor or the feature extractor that is given as the tokenizer,
        alone or for "source", else the usual one of the model's family. Frames are a hop apart,
        each centred on its first sample, as the feature extractors with a `hop_length` make them.
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
        """The middles of some positions, to a microsecond."""
        return [round(self.first + place * self.step, 6) for place in range(start, stop)]

    def names(self, start: int, stop: int) -> list[str]:
        """The names of some positions.

        >>> SoundAxis(0.0, 0.02, 1500).names(0, 3), SoundAxis(0.0125, 0.02, 49).names(0, 2)
        (['0.00 s', '0.02 s', '0.04 s'], ['0.013 s', '0.033 s'])
        """
        whole = all(abs(100 * number - round(100 * number)) < 1e-6
                    for number in (self.first, self.step))  # fmt: skip
        digits = 2 if whole else 3
        return [f"{second:.{digits}f} s" for second in self.seconds(start, stop)]


def _extractor(model: nn.Module, tokenizer: Any) -> Any:
    """What turned the sound into numbers, or the like of it; None: it is not known."""
    if isinstance(tokenizer, Mapping):
        tokenizer = tokenizer.get("source")
    own = getattr(tokenizer, "feature_extractor", tokenizer)
    if hasattr(own, "sampling_rate"):
        return own
    kind = getattr(getattr(model, "config", None), "model_type", None)
    try:
        library = importlib.import_module("transformers")
        auto = importlib.import_module("transformers.models.auto.feature_extraction_auto")
        name = auto.FEATURE_EXTRACTOR_MAPPING_NAMES.get(kind)
        return None if name is None else getattr(library, name)()
    except (ImportError, AttributeError, TypeError, ValueError):
        return None
