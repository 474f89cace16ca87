"""What a model's forward or generate takes, by names: counted, checked, cut."""

from __future__ import annotations

import inspect
from collections.abc import Iterator, Mapping
from contextlib import contextmanager
from typing import Any

import torch
from torch import Tensor, nn

from headloom.errors import HeadloomError, InputError

#: Who names ids, of any library: see `headloom.tracing.names.token_names`.
Tokenizer = Any
#: To be read: tensors, and what else a model takes.
Inputs = Mapping[str, Any]
#: Of one's own, to be changed.
Arguments = dict[str, Any]

#: Beginnings of the names of arguments that hold images, videos or sounds, or say something of each
#: of these; no tokens.
BESIDE = ("pixel", "image", "video", "audio", "input_features", "input_values", "batch_num")

#: What a model of Transformers calls the argument that holds its cache: the first from 5.24 on, the
#: second before, and where a caller still does.
CACHES = ("cache", "past_key_values")


def cache_among(arguments: Inputs) -> object:
    """The cache that a model goes on with; None: it begins without one.

    >>> cache_among({"input_ids": [1], "cache": None, "past_key_values": "filled"})
    'filled'
    """
    return next((arguments[name] for name in CACHES if arguments.get(name) is not None), None)


def positions_in(cache: object) -> int:
    """How many positions a cache of Transformers holds; 0: none, or a state without positions.

    >>> positions_in(None)
    0
    """
    if cache is None:
        return 0
    try:
        return int(getattr(cache, "get_seq_length")())  # noqa: B009 - every cache has one
    except ValueError:
        # A model without attention, as Mamba, keeps a state alone, and its cache says so by this.
        return 0


def batch_of(inputs: Inputs) -> int:
    """How many inputs a batch holds.

    Surest is what holds texts: images have patches or tiles in the first dimension, or there are
    several for a text.
    """
    tensors = {
        name: value for name, value in inputs.items() if isinstance(value, Tensor) and value.ndim
    }
    texts = ("input_ids", "decoder_input_ids", "inputs_embeds", "attention_mask")
    names = [name for name in texts if name in tensors]
    names += [name for name in tensors if name.endswith("grid_thw")]
    return next((len(tensors[name]) for name in (*names, *tensors)), 1)


def check_readable(model: nn.Module, tensors: Mapping[str, Tensor], generates: bool) -> None:
    """Raise an InputError where a model would read something else than tensors say.

    generates: whether the model is to write the target itself.
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
                f"{tuple(ids.shape)}. Give a 1 for each token, of which every input has some, and "
                "a 0 for padding."
            )


#: Errors that a model raises for inputs that it cannot read; others are of whoever stops it.
_OF_MODELS = (
    *(RuntimeError, ValueError, TypeError, LookupError, AttributeError, AssertionError),
    *(ImportError, OSError),
)


@contextmanager
def explained(name: str, run: str = "") -> Iterator[None]:
    """Say in one line why a model fails on its inputs, in the block that runs it.

    Args: name: of its class. run: what it does, "generate"; empty: it reads.

    Raises: InputError: it failed. The error of the model is its cause.
    """
    try:
        yield
    except (HeadloomError, torch.OutOfMemoryError):
        raise
    except _OF_MODELS as error:
        name += f".{run}" if run else ""
        # Their first sentence says what is wrong.
        reason = f"{type(error).__name__}: {' '.join(str(error).split()).split('. ')[0]}"
        reason = reason[:200].rstrip(". ")
        raise InputError(
            f"trace: {name} fails on {'these options' if run else 'these inputs'}: {reason}."
        ) from error


#: The arguments that hold the tokens of a text, with those that go by position along with them.
_IDS = ("input_ids", "decoder_input_ids", "inputs_embeds", "decoder_inputs_embeds")


def prefix_of(inputs: Inputs, tokens: int | None) -> tuple[Arguments, int]:
    """The inputs cut to so many positions of each text, and the positions that are left.

    Left is the longest of the texts; 0 where there is no text. Where the inputs hold more than
    texts, as an image whose places stand in the text, they are whole.
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
        # `decoder_attention_mask` goes with `decoder_input_ids`.
        of_decoder = name.startswith("decoder_") or name == "labels"
        texts = [text for text in lengths if text.startswith("decoder_") == of_decoder]
        parts = (_part(value, lengths[text], _span(inputs, text, tokens)) for text in texts)
        part = next((part for part in parts if part is not None), None)
        if part is None:
            return dict(inputs), whole
        cut[name] = part
    return cut, min(whole, tokens)


def _span(inputs: Inputs, text: str, tokens: int) -> slice:
    """The positions that are taken: where a text is padded on the left, half of them are real."""
    length = inputs[text].shape[1]
    name = "decoder_attention_mask" if text.startswith("decoder_") else "attention_mask"
    mask = inputs.get(name)
    start = 0
    if isinstance(mask, Tensor) and mask.ndim == 2 and mask.shape == inputs[text].shape[:2]:
        first = int((mask != 0).int().argmax(1).max())
        start = max(0, min(first - tokens // 2, length - tokens))
    return slice(start, start + tokens)


def _part(value: object, shape: tuple[int, ...], span: slice) -> Tensor | None:
    """The positions of an argument that goes along with a text; None: it does not."""
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
    """How many tokens a model can read; None: no limit is known."""
    config: Any = model.config
    config = getattr(config, "text_config", None) or config
    limit: int | None = getattr(config, "max_position_embeddings", None)
    for name, module in model.named_modules():
        learned = name.rpartition(".")[2] in ("position_embeddings", "embed_positions", "wpe")
        if learned and isinstance(module, nn.Embedding) and module.padding_idx is not None:
            # As in RoBERTa: positions are counted from the one after padding.
            limit = min(limit or module.num_embeddings, module.num_embeddings) - (
                module.padding_idx + 1
            )
            break
    return limit if isinstance(limit, int) and limit > 0 else None
