"""Arrays of any library as tensors: whatever has `__dlpack__` or `__array__`."""

from __future__ import annotations

from collections.abc import Sequence

import numpy as np
import torch
import torch.utils.dlpack
from torch import Tensor

from headloom.errors import InputError, ShapeError
from headloom.mechanism.shapes import describe

__all__ = ["as_tensor", "check_numbers", "first_place", "is_causal", "layer_tensors"]

_EXPECTED = "an array of numbers of NumPy, torch or JAX, or a list with one for each layer"


def as_tensor(name: str, array: object) -> Tensor:
    """Return an array as a tensor of floating-point numbers on the CPU, without its gradients.

    Args:
        name: what errors call it.
        array: what has `__dlpack__` or `__array__`.

    Raises: InputError: it is none, or holds something else.

    >>> as_tensor("queries", np.ones((1, 2), ">f4")).dtype
    torch.float32
    """
    if isinstance(array, Tensor):
        tensor = array.detach().cpu()
    elif hasattr(array, "__dlpack__") and not isinstance(array, np.ndarray):
        tensor = torch.utils.dlpack.from_dlpack(array).cpu()
    elif hasattr(array, "__array__"):
        numbers = np.asarray(array)
        # In this machine's order of bytes, and memory that may be written, as torch wants it.
        plain = numbers.dtype.newbyteorder("=")
        numbers = numbers.astype(plain, copy=not numbers.flags.writeable)
        try:
            tensor = torch.from_numpy(np.ascontiguousarray(numbers))
        except TypeError:
            raise InputError(
                f"{name}: an array of {numbers.dtype}; expected floating-point numbers. NumPy's "
                "files lose the type bfloat16: save float32, or a safetensors file."
            ) from None
    else:
        fused = (
            ', as fused attention gives for its weights: load the model with attn_implementation="'
            'eager", or trace it by headloom.trace'
        ) * (array is None)
        raise InputError(f"{name}: a {type(array).__name__}{fused}; expected {_EXPECTED}.")
    if not tensor.is_floating_point():
        kind = str(tensor.dtype).removeprefix("torch.")
        raise InputError(f"{name}: numbers of type {kind}; expected floating-point numbers.")
    # Types of eight bits are for storage; nothing computes with them.
    return tensor.float() if tensor.element_size() == 1 else tensor


def layer_tensors(name: str, arrays: object) -> list[Tensor]:
    """Return the layers of a stack of arrays, or of a list, each (batch, a, b, c).

    Args:
        name: what errors call them, as "queries".
        arrays: one layer, (a, b, c); all layers, (layers, a, b, c) or (layers, batch, a, b, c); or
            a sequence with an array for each layer, with a batch before its dimensions or not.

    Raises: InputError: no arrays, or other dimensions.
    """
    if not isinstance(arrays, (list, tuple)):
        whole = as_tensor(name, arrays)
        layers = [whole] if whole.ndim == 3 else list(whole)
    else:
        layers = [as_tensor(f"{name} of layer {at}", array) for at, array in enumerate(arrays)]
    if not layers:
        raise InputError(f"{name}: no layers; expected {_EXPECTED}.")
    for number, layer in enumerate(layers):
        if layer.ndim not in (3, 4) or not layer.numel():
            raise ShapeError(
                f"{name} of layer {number}: an array {describe(layer)}; expected 3 dimensions, or "
                "4 with a batch, 1 or more of each."
            )
    batched = [layer if layer.ndim == 4 else layer[None] for layer in layers]
    sizes = {len(layer) for layer in batched}
    if len(sizes) > 1:
        raise ShapeError(f"{name}: layers of {sizes} inputs; expected one batch for all layers.")
    return batched


def first_place(marked: Tensor) -> tuple[int, ...]:
    """Return the index of the first True.

    >>> first_place(torch.tensor([[False, False], [True, True]]))
    (1, 0)
    """
    return tuple(int(index) for index in marked.nonzero()[0])


def check_numbers(label: str, tensor: Tensor, names: Sequence[str]) -> None:
    """Raise an InputError where a number is NaN or infinite.

    names: of the dimensions.
    """
    wrong = ~tensor.isfinite()
    if bool(wrong.any()):
        place = first_place(wrong)
        words = ", ".join(f"{name} {index}" for name, index in zip(names, place, strict=True))
        raise InputError(
            f"{label}: {float(tensor[place])} at {words}; {int(wrong.sum()):,} of "
            f"{wrong.numel():,} numbers are not finite; expected none."
        )


def is_causal(weights: Tensor) -> bool:
    """Whether no query of some input looks ahead; its queries are the last of as many keys.

    A row of padding before a text may look nowhere, and then has the same weight for every key.
    """
    queries, keys = weights.shape[-2:]
    ahead = weights.triu(1 + keys - queries).any(-1)
    uneven = weights.amin(-1) < weights.amax(-1)
    behind = (~ahead[..., :-1]).flatten(1).any(-1)
    return bool((behind & ~(ahead & uneven).flatten(1).any(-1)).any())
