"""The beginning of a model's inputs: short enough to be run twice."""

from __future__ import annotations

import copy
from collections.abc import Mapping
from typing import Any

from torch import Tensor

from weft.errors import InputError
from weft.tracing.options import whole_number

__all__ = ["TOKENS", "Verify", "copied", "hidden_positions", "prefix_of", "tokens_to_verify"]

#: How many tokens are verified where nothing else is asked for. Twice 64 of 8,192 are 1.6 percent.
TOKENS = 64

#: How much is verified: a number of tokens, "all", True or None for `TOKENS`, False for nothing.
Verify = int | str | None

#: The arguments that hold the tokens of a text, with those that go by position along with them.
_IDS = ("input_ids", "decoder_input_ids", "inputs_embeds", "decoder_inputs_embeds")


def tokens_to_verify(verify: Verify) -> int | None:
    """How many tokens are to be verified: 0 of none, None of all.

    >>> tokens_to_verify(None), tokens_to_verify(True), tokens_to_verify(9), tokens_to_verify("all")
    (64, 64, 9, None)

    Raises: InputError: it is none of what `Verify` says.
    """
    if verify is None or verify is True:
        return TOKENS
    if verify is False:
        return 0
    if verify == "all":
        return None
    tokens = whole_number(verify)
    if tokens is not None and tokens > 0:
        return tokens
    raise InputError(
        f"trace: verify={verify!r}; expected a number of tokens, 1 or more, 'all', True (the first "
        f"{TOKENS}) or False (nothing is verified)."
    )


def prefix_of(inputs: Mapping[str, Any], tokens: int | None) -> tuple[dict[str, Any], int]:
    """The inputs cut to so many positions of each text, and the positions that are left.

    Left is the longest of the texts; 0 where there is no text. Where the inputs hold more than
    texts, as an image whose places stand in the text, they are whole.
    """
    lengths = {name: value.shape[:2] for name, value in inputs.items()
               if name in _IDS and isinstance(value, Tensor) and value.ndim >= 2}  # fmt: skip
    whole = max((length for _, length in lengths.values()), default=0)
    if tokens is None or whole <= tokens:
        return dict(inputs), whole
    cut: dict[str, Any] = {}
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


def _span(inputs: Mapping[str, Any], text: str, tokens: int) -> slice:
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


def copied(inputs: Mapping[str, Any]) -> dict[str, Any]:
    """The inputs for one run: a cache among them is a copy, for the run changes it."""
    return {
        name: copy.deepcopy(value) if hasattr(value, "get_seq_length") else value
        for name, value in inputs.items()
    }


def hidden_positions(inputs: Mapping[str, Any]) -> list[Tensor]:
    """The masks of the inputs that say which positions are padding, (batch, length)."""
    return [
        value == 0
        for name, value in inputs.items()
        if name.endswith("attention_mask") and isinstance(value, Tensor) and value.ndim == 2
    ]
