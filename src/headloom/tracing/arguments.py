"""Arguments of a model's forward or generate, by name: counted, checked, cut."""

from __future__ import annotations

from collections.abc import Iterator, Mapping
from contextlib import contextmanager
from typing import Any

import torch
from torch import Tensor

from headloom.errors import HeadloomError, InputError

#: Tokenizer of any library: see `headloom.tracing.names.token_names`.
Tokenizer = Any
#: Tensors and other arguments of a model, read only.
Inputs = Mapping[str, Any]
#: A changeable copy of them.
Arguments = dict[str, Any]

#: Prefixes of the names of arguments that hold images, videos or sounds, or describe them.
BESIDE = ("pixel", "image", "video", "audio", "input_features", "input_values", "batch_num")

#: Names of the cache argument in Transformers: the first from 5.24 on, the second before.
CACHES = ("cache", "past_key_values")


def cache_among(arguments: Inputs) -> object:
    """Return the cache that a model continues with; None: no cache.

    >>> cache_among({"input_ids": [1], "cache": None, "past_key_values": "filled"})
    'filled'
    """
    return next((arguments[name] for name in CACHES if arguments.get(name) is not None), None)


def positions_in(cache: object) -> int:
    """Return the number of positions in a cache of Transformers; 0: no cache, or no positions.

    >>> positions_in(None)
    0
    """
    if cache is None:
        return 0
    try:
        return int(getattr(cache, "get_seq_length")())  # noqa: B009 - every cache has one
    except ValueError:
        # The cache of a model without attention, such as Mamba, raises this: it has a state only.
        return 0


def batch_of(inputs: Inputs) -> int:
    """Return the number of inputs of a batch.

    Arguments that hold texts are counted first: images may have patches or tiles in their first
    dimension, and a text may have several images.
    """
    tensors = {
        name: value for name, value in inputs.items() if isinstance(value, Tensor) and value.ndim
    }
    texts = ("input_ids", "decoder_input_ids", "inputs_embeds", "attention_mask")
    names = [name for name in texts if name in tensors]
    names += [name for name in tensors if name.endswith("grid_thw")]
    return next((len(tensors[name]) for name in (*names, *tensors)), 1)


#: Errors that a model raises for inputs that it cannot read; others pass through.
_OF_MODELS = (
    *(RuntimeError, ValueError, TypeError, LookupError, AttributeError, AssertionError),
    *(ImportError, OSError),
)


@contextmanager
def explained(name: str, run: str = "") -> Iterator[None]:
    """Turn a model's error in the block into an InputError of one line.

    Args: name: of its class. run: the method, "generate"; empty: forward.

    Raises: InputError: the model failed; its own error is the cause.
    """
    try:
        yield
    except (HeadloomError, torch.OutOfMemoryError):
        raise
    except _OF_MODELS as error:
        name += f".{run}" if run else ""
        # The first sentence of such an error names the problem.
        reason = f"{type(error).__name__}: {' '.join(str(error).split()).split('. ')[0]}"
        reason = reason[:200].rstrip(". ")
        raise InputError(
            f"trace: {name} fails on {'these options' if run else 'these inputs'}: {reason}."
        ) from error


#: Arguments that hold the tokens of a text.
_IDS = ("input_ids", "decoder_input_ids", "inputs_embeds", "decoder_inputs_embeds")


def prefix_of(inputs: Inputs, tokens: int | None) -> tuple[Arguments, int]:
    """Return the inputs cut to a number of positions of each text, and the number left.

    The number is of the longest text; 0: no text. Inputs that hold more than texts, such as an
    image with its place in the text, are not cut.
    """
    lengths = {name: value.shape[:2] for name, value in inputs.items()
               if name in _IDS and isinstance(value, Tensor) and value.ndim >= 2}  # fmt: skip
    whole = max((length for _, length in lengths.values()), default=0)
    if tokens is None or whole <= tokens:
        return dict(inputs), whole
    cut: Arguments = {}
    for name, value in inputs.items():
        if value is None or isinstance(value, bool | int | float | str):
            cut[name] = value
            continue
        # `decoder_attention_mask` belongs to `decoder_input_ids`.
        of_decoder = name.startswith("decoder_") or name == "labels"
        texts = [text for text in lengths if text.startswith("decoder_") == of_decoder]
        parts = (_part(value, lengths[text], _span(inputs, text, tokens)) for text in texts)
        part = next((part for part in parts if part is not None), None)
        if part is None:
            return dict(inputs), whole
        cut[name] = part
    return cut, min(whole, tokens)


def _span(inputs: Inputs, text: str, tokens: int) -> slice:
    """Return the positions to take; of a text padded on the left, half of them are tokens."""
    length = inputs[text].shape[1]
    name = "decoder_attention_mask" if text.startswith("decoder_") else "attention_mask"
    mask = inputs.get(name)
    start = 0
    if isinstance(mask, Tensor) and mask.ndim == 2 and mask.shape == inputs[text].shape[:2]:
        first = int((mask != 0).int().argmax(1).max())
        start = max(0, min(first - tokens // 2, length - tokens))
    return slice(start, start + tokens)


def _part(value: object, shape: tuple[int, ...], span: slice) -> Tensor | None:
    """Return the positions of an argument as long as a text; None: it has other dimensions."""
    if not isinstance(value, Tensor):
        return None
    batch, length = shape
    if value.ndim == 1 and len(value) == length:
        return value[span]
    if value.ndim >= 2 and tuple(value.shape[:2]) == (batch, length):
        return value[:, span]
    if value.ndim == 4 and tuple(value.shape[2:]) == (length, length):
        return value[:, :, span, span]
    if value.ndim == 3 and tuple(value.shape[1:]) == (batch, length):
        return value[:, :, span]  # rotary positions in several directions
    return None
