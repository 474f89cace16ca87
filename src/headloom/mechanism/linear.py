"""Linear maps of one input, by torch, with errors that say what does not fit."""

from __future__ import annotations

from collections.abc import Callable, Sequence

from torch import Tensor, nn

from headloom.errors import InputError, ShapeError
from headloom.mechanism.shapes import describe

__all__ = ["LinearMaps", "linear_maps", "why_unfit"]

#: How a layer multiplies: several linear maps of one input.
LinearMaps = Callable[[Tensor, Sequence[nn.Linear]], list[Tensor]]


def linear_maps(inputs: Tensor, maps: Sequence[nn.Linear]) -> list[Tensor]:
    """Several linear maps of one input.

        y_m = x W_m^T + b_m

    Args: inputs: (..., width); maps: from that width to any.
    Returns: (..., out_features) for each map.
    Raises: ShapeError: another width. InputError: another type, or device.
    """
    try:
        return [linear(inputs) for linear in maps]
    except (RuntimeError, TypeError) as error:
        raise why_unfit(inputs, maps) or error from None


def why_unfit(inputs: object, maps: Sequence[nn.Linear]) -> InputError | None:
    """Why torch could not multiply an input; None where it fits the maps."""
    if not isinstance(inputs, Tensor):
        return InputError(
            f"linear maps: the input is {type(inputs).__name__}; expected a tensor of real "
            "numbers, as from torch.as_tensor."
        )
    for linear in maps:
        if inputs.ndim == 0 or inputs.shape[-1] != linear.in_features:
            return ShapeError(
                f"linear maps: the input is {describe(inputs)}; the layer was made for (..., "
                f"{linear.in_features})."
            )
        weight = linear.weight
        alike = (inputs.dtype, inputs.device) == (weight.dtype, weight.device)
        if weight.is_floating_point() and not alike:
            return InputError(
                f"linear maps: the input is {inputs.dtype} on {inputs.device}, the layer "
                f"{weight.dtype} on {weight.device}. Convert one of them, as in layer.to(x)."
            )
    return None
