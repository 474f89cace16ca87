"""What a model of Transformers reads: counted, checked, cut to its beginning."""

from __future__ import annotations

import inspect
from collections.abc import Iterator, Mapping
from contextlib import contextmanager
from typing import Any

import torch
from torch import Tensor, nn

from headloom.errors import HeadloomError, InputError
from headloom.tracing.arguments import BESIDE, Arguments, Inputs

__all__ = [
    "batch_of",
    "check_readable",
    "explained",
    "prefix_of",
    "token_limit",
]

#: Arguments whose first dimension is that of the batch, surest first; images have patches or tiles
#: there, or there are several for a text.
_BATCHED = ("input_ids", "decoder_input_ids", "inputs_embeds", "attention_mask")
#: Errors that a model raises for inputs that it cannot read; others are of whoever stops it.
_OF_MODELS = (
    *(RuntimeError, ValueError, TypeError, LookupError, AttributeError, AssertionError),
    *(ImportError, OSError),
)


def batch_of(inputs: Inputs) -> int:
    """How many inputs a batch holds."""
    tensors = {
        name: value for name, value in inputs.items() if isinstance(value, Tensor) and value.ndim
    }
    for name in _BATCHED:
        if name in tensors:
            return len(tensors[name])
    grids = [value for name, value in tensors.items() if name.endswith("grid_thw")]
    return next((len(value) for value in (*grids, *tensors.values())), 1)


def check_readable(model: nn.Module, tensors: Mapping[str, Tensor], generates: bool) -> None:
    """Raise an InputError where a model cannot read tensors.

    generates: whether the model is to write the target itself.
    """
    name = type(model).__name__
    takes = inspect.signature(model.forward).parameters
    if (
        getattr(model.config, "is_encoder_decoder", False)
        and not generates
        and "decoder_input_ids" in takes
        and "labels" not in tensors
        and not any(
            argument in tensors for argument in ("decoder_input_ids", "decoder_inputs_embeds")
        )
    ):
        raise InputError(
            f"trace: {name} reads a source and writes a target. Give "
            "decoder_input_ids too: the target's tokens, as in {'input_ids': ..., "
            "'decoder_input_ids': ...}, or generate= to let the model write it."
        )
    for argument in ("input_ids", "decoder_input_ids"):
        if argument in tensors:
            _check_ids(model, argument, tensors[argument], tensors)


def _check_ids(model: nn.Module, argument: str, ids: Tensor, tensors: Mapping[str, Tensor]) -> None:
    if ids.is_floating_point() or ids.is_complex() or ids.dtype == torch.bool:
        raise InputError(
            f"trace: {argument} holds {ids.dtype}; expected integers, the numbers of tokens. Give "
            "ids.long(), or vectors as inputs_embeds."
        )
    if not len(ids):
        raise InputError(
            f"trace: {argument} has the shape {tuple(ids.shape)}, an empty batch. Give at least "
            "one input."
        )
    mask_name = argument.replace("input_ids", "attention_mask")
    mask = tensors.get(mask_name)
    if mask is not None and ids.ndim == 2 and mask.ndim == 2:
        # With a cache, or beside images, a mask may have more places than there are ids.
        alone = not any(name.startswith((*BESIDE, "past")) for name in tensors)
        other = mask.shape[1] < ids.shape[1] or (alone and mask.shape[1] > ids.shape[1])
        if other or len(mask) != len(ids):
            raise InputError(
                f"trace: {mask_name} has the shape {tuple(mask.shape)}, {argument} "
                f"{tuple(ids.shape)}. Give a 1 for each token and a 0 for padding."
            )
        if not bool(mask.bool().any(1).all()):
            empty = int((~mask.bool().any(1)).nonzero()[0])
            raise InputError(
                f"trace: {mask_name} hides every token of input {empty}. Give a 1 for each token "
                "and a 0 for padding."
            )
    words = _vocabulary(model)
    beside = any(name.startswith(BESIDE) for name in tensors)
    if words is None or beside or not ids.numel():
        return
    low, high = int(ids.min()), int(ids.max())
    if low < 0 or high >= words:
        wrong = low if low < 0 else high
        raise InputError(
            f"trace: {argument} holds {wrong}; {type(model).__name__} has the tokens 0 to "
            f"{words - 1}. Encode the text with the model's own tokenizer."
        )


def _vocabulary(model: Any) -> int | None:
    """How many tokens a model of one vocabulary has; None: it is not known."""
    try:
        embedding = model.get_input_embeddings()
    except (AttributeError, NotImplementedError):
        return None
    size = getattr(model.config.get_text_config(), "vocab_size", None)
    plain = type(embedding) is nn.Embedding and embedding.num_embeddings == size
    return size if plain and isinstance(size, int) else None


@contextmanager
def explained(name: str, run: str = "") -> Iterator[None]:
    """Say in one line why a model fails on its inputs, in the block that runs it.

    Args: name: of its class. run: what it does, "generate"; empty: it reads.

    Raises: InputError: it failed. The error of the model is its cause.
    """
    try:
        yield
    except torch.OutOfMemoryError:
        raise
    except _OF_MODELS as error:
        if isinstance(error, HeadloomError):
            raise
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
        # `decoder_attention_mask` goes with `decoder_input_ids`.
        texts = [text for text in lengths if text.startswith("decoder_") == _of_decoder(name)]
        if not isinstance(value, Tensor):
            if not (value is None or isinstance(value, bool | int | float | str)):
                return dict(inputs), whole
            cut[name] = value
            continue
        spans = {lengths[text]: _span(inputs, text, tokens) for text in texts}
        part = next(
            (
                part
                for shape, span in spans.items()
                if (part := _part(value, shape, span)) is not None
            ),
            None,
        )
        if part is None:
            return dict(inputs), whole
        cut[name] = part
    return cut, min(whole, tokens)


def _of_decoder(name: str) -> bool:
    return name.startswith("decoder_") or name == "labels"


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


def _part(value: Tensor, shape: tuple[int, ...], span: slice) -> Tensor | None:
    """The positions of an argument that goes along with a text; None: it does not."""
    batch, length = shape
    if value.ndim == 1 and len(value) == length:
        return value[span]
    if value.ndim >= 2 and tuple(value.shape[:2]) == (batch, length):
        return value[:, span]
    if value.ndim == 4 and tuple(value.shape[2:]) == (length, length):
        return value[:, :, span, span]
    if value.ndim == 3 and tuple(value.shape[1:]) == (batch, length):
        # Rotary positions in several directions.
        return value[:, :, span]
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
