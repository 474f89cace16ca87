"""The arguments of an attention call: checked, with every default filled in."""

from __future__ import annotations

from collections.abc import Mapping

import torch
from torch import Tensor

from headloom.errors import InputError, ShapeError
from headloom.mechanism.call import AttentionCall
from headloom.mechanism.masks import Mask, as_mask
from headloom.mechanism.positions import Relative
from headloom.mechanism.scores import ScaledDot, Score
from headloom.mechanism.shapes import (
    check_attention_inputs,
    describe,
    finite_number,
    in_batch_of_one,
    in_words,
    real_tensor,
)

__all__ = ["check_tensors", "checked_call"]

#: The score of a call that names none: it has no parameters to check.
SCALED_DOT = ScaledDot()

#: The largest number of float32, in which half precision is computed too.
LARGEST = torch.finfo(torch.float32).max


def check_tensors(operation: str, *tensors: object) -> None:
    """Raise an InputError where queries, keys or values are no tensor."""
    for tensor in tensors:
        if not isinstance(tensor, Tensor):
            break
    else:
        return
    for name, tensor in zip(("queries", "keys", "values"), tensors, strict=False):
        if not isinstance(tensor, Tensor):
            raise InputError(
                f"{operation}: {name} are {type(tensor).__name__}; expected a tensor, as from "
                "torch.as_tensor."
            )


def checked_call(
    operation: str,
    queries: Tensor,
    keys: Tensor,
    values: Tensor,
    mask: Mask | Tensor | None,
    score: Score | None,
    relative: Relative | None,
    bias: Tensor | None,
    scale: float | None,
    softcap: float | None,
    sinks: Tensor | None,
    dropout: float,
    received: int | None = None,
) -> AttentionCall:
    """The call with a batch dimension and its defaults filled in, or an error that says why not."""
    # What is left out has nothing to check: a call of a few microseconds asks for little.
    if not (score is None and relative is None and bias is None and sinks is None):
        _check_kinds(
            operation,
            score,
            relative,
            {"the bias": bias, "the tensor of sinks": sinks},
            queries.device,
        )
    if scale is not None or softcap is not None or type(dropout) is not float or dropout != 0:
        _check_numbers(operation, scale, softcap, dropout)
    if queries.ndim == 3 == keys.ndim == values.ndim:
        queries, keys, values = in_batch_of_one(operation, queries, keys, values)
    same_depth = score is None or score.same_depth
    batch, heads, rows, depth, length, value_depth = check_attention_inputs(
        operation, queries, keys, values, same_depth=same_depth
    )
    if score is None:
        score = SCALED_DOT
    else:
        score.check(queries)
    if mask is not None:
        mask = as_mask(mask)
        mask.check(batch, heads, rows, length)
    if relative is not None:
        relative.check(heads, depth, value_depth)
    if bias is not None:
        bias = _fitting_bias(operation, bias, (batch, heads, rows, length))
    if sinks is not None and sinks.shape != (heads,):
        raise ShapeError(
            f"{operation}: the sinks are {describe(sinks)}; expected one logit a head, ({heads},)."
        )
    if scale is not None and queries.dtype != torch.float64 and not abs(scale) <= LARGEST:
        raise InputError(
            f"{operation}: scale={scale}; expected a number that float32 holds, {LARGEST:.2g} at "
            "most. Give float64 tensors for a larger one."
        )
    if softcap is not None and queries.dtype != torch.float64:
        # Beyond these a cap is infinite or 0 in float32. Scores under the one are 0 to a softmax,
        # the other bends none.
        softcap = None if softcap > 1e30 else max(softcap, 1e-30)
    scale = score.default_scale(depth) if scale is None else float(scale)
    return AttentionCall(
        queries, keys, values, score, scale, mask, relative, bias, softcap, sinks, dropout, received
    )


def _check_kinds(
    operation: str,
    score: object,
    relative: object,
    tensors: Mapping[str, Tensor | None],
    device: torch.device,
) -> None:
    """Raise an InputError where an argument is no score, no positions, no tensor of a device."""
    if score is not None and not isinstance(score, Score):
        raise InputError(
            f"{operation}: score={in_words(score)}; expected a score such as headloom.Dot()."
        )
    if relative is not None and not isinstance(relative, Relative):
        raise InputError(
            f"{operation}: relative={in_words(relative)}; expected headloom.Shaw, headloom.ALiBi "
            f"or "
            "headloom.Buckets."
        )
    for name, given in tensors.items():
        if given is not None and real_tensor(operation, name, given).device != device:
            raise InputError(
                f"{operation}: {name} is on {given.device}, the queries on {device}. Move all to "
                "one device."
            )


def _check_numbers(
    operation: str, scale: float | None, softcap: float | None, dropout: float
) -> None:
    """Raise an InputError where one is no finite number, or not in its range."""
    for name, number in (("scale", scale), ("softcap", softcap)):
        if number is not None:
            finite_number(operation, name, number)
    if softcap is not None and not softcap > 0:
        raise InputError(f"{operation}: softcap={softcap}; expected a number above 0, or None.")
    finite_number(operation, "dropout", dropout, 0, 1)


def _fitting_bias(operation: str, bias: Tensor, expected: tuple[int, int, int, int]) -> Tensor:
    """A bias with four dimensions, each that of the scores or 1."""
    if bias.dtype == torch.bool:
        raise InputError(f"{operation}: the bias is bool. Give it as mask=.")
    sizes = (1,) * (4 - bias.ndim) + tuple(bias.shape)
    if bias.ndim > 4 or any(
        size not in (1, want) for size, want in zip(sizes, expected, strict=True)
    ):
        raise ShapeError(
            f"{operation}: the bias is {describe(bias)}, which does not broadcast to (batch, "
            f"heads, queries, keys) = {expected}."
        )
    return bias.reshape(sizes)
