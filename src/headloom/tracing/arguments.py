"""Arguments of a model's forward or generate, by name: counted, checked, cut."""

from __future__ import annotations

import inspect
from collections.abc import Iterator, Mapping
from contextlib import contextmanager
from typing import Any

import torch
from torch import Tensor, nn

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


def check_readable(model: nn.Module, tensors: Mapping[str, Tensor], generates: bool) -> None:
    """Raise an InputError for a missing target, or masks that do not fit their tokens.

    generates: whether the model is to generate the target.
    """
    name = type(model).__name__
    takes = inspect.signature(model.forward).parameters
    pair = getattr(model.config, "is_encoder_decoder", False) and "decoder_input_ids" in takes
    targets = {"decoder_input_ids", "decoder_inputs_embeds", "labels"}
    if pair and not generates and not targets & tensors.keys():
        raise InputError(
            f"trace: {name} reads a source and writes a target. Give "
            "decoder_input_ids too: the target's tokens, as in {'input_ids': ..., "
            "'decoder_input_ids': ...}, or generate= to let the model write it."
        )
    # With a cache, or beside images, a mask may have more places than there are ids.
    alone = not any(argument.startswith((*BESIDE, "past")) for argument in tensors)
    for argument in ("input_ids", "decoder_input_ids"):
        mask_name = argument.replace("input_ids", "attention_mask")
        ids, mask = tensors.get(argument), tensors.get(mask_name)
        if ids is None or mask is None or ids.ndim != 2 or mask.ndim != 2:
            continue
        other = len(mask) != len(ids) or (alone and mask.shape[1] != ids.shape[1])
        if other or not bool(mask.bool().any(1).all()):
            raise InputError(
                f"trace: {mask_name} has the shape {tuple(mask.shape)}, {argument} "
                f"{tuple(ids.shape)}. Give a 1 for each token and a 0 for padding; every input "
                "needs at least one token."
            )


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


def token_limit(model: nn.Module) -> int | None:
    """Return the maximal number of tokens of a model; None: no known limit."""
    config: Any = model.config
    config = getattr(config, "text_config", None) or config
    limit: int | None = getattr(config, "max_position_embeddings", None)
    for name, module in model.named_modules():
        learned = name.rpartition(".")[2] in ("position_embeddings", "embed_positions", "wpe")
        if learned and isinstance(module, nn.Embedding) and module.padding_idx is not None:
            # RoBERTa counts positions from the one after padding.
            limit = min(limit or module.num_embeddings, module.num_embeddings) - (
                module.padding_idx + 1
            )
            break
    return limit if isinstance(limit, int) and limit > 0 else None
