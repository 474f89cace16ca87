"""The norms of Transformers."""

from __future__ import annotations

from torch import Tensor, nn

from headloom.errors import InputError, ShapeError
from headloom.mechanism.shapes import describe, real_tensor
from headloom.models.configuration import Architecture, checked_architecture

__all__ = ["closing_norm", "norm_of", "normed"]


def norm_of(architecture: Architecture) -> nn.LayerNorm | nn.RMSNorm:
    """A new norm.

        layer:  (x - mean(x)) / sqrt(var(x) + epsilon) g + b
        rms:    x / sqrt(mean(x^2) + epsilon) g

    Source: Ba et al. 2016; Zhang and Sennrich 2019, equation 4.
    """
    kind = nn.RMSNorm if checked_architecture(architecture).normalisation == "rms" else nn.LayerNorm
    return kind(architecture.width, eps=architecture.norm_epsilon)


def normed(norm: nn.Module, inputs: Tensor) -> Tensor:
    """A norm of what a caller gives.

    Args: norm: as `norm_of` makes it; inputs: (..., width).
    Raises: ShapeError: another width. InputError: no tensor, or another type, or device.
    """
    try:
        result: Tensor = norm(inputs)
    except (RuntimeError, TypeError) as error:
        raise _why_unfit(norm, inputs) or error from None
    return result


def _why_unfit(norm: nn.Module, inputs: object) -> InputError | None:
    """Why a norm could not be computed; None where the inputs fit it."""
    inputs = real_tensor("norm", "the input", inputs)
    weight = norm.get_parameter("weight")
    if inputs.ndim == 0 or inputs.shape[-1] != len(weight):
        return ShapeError(
            f"norm: the input is {describe(inputs)}; the layer was made for (..., {len(weight)})."
        )
    if (inputs.dtype, inputs.device) != (weight.dtype, weight.device):
        return InputError(
            f"norm: the input is {inputs.dtype} on {inputs.device}, the layer {weight.dtype} on "
            f"{weight.device}. Convert one of them, as in layer.to(x)."
        )
    return None


def closing_norm(architecture: Architecture) -> nn.Module:
    """What follows the last block: pre-norm blocks leave their sum unnormalised."""
    return norm_of(architecture) if architecture.norm == "pre" else nn.Identity()
