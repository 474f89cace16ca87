"""Arrays that somebody has, of any library, as tensors: one for each layer.

NumPy's arrays, torch's tensors, JAX's and TensorFlow's: whatever has `__dlpack__` or `__array__`.
"""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from functools import cached_property
from typing import Any

import numpy as np
import torch
import torch.utils.dlpack
from numpy.typing import NDArray
from torch import Tensor

from headloom.errors import InputError, ShapeError
from headloom.mechanism.shapes import describe

__all__ = ["Layers", "as_tensor", "check_numbers", "first_place", "in_words", "is_causal"]

_EXPECTED = "an array of numbers of NumPy, torch or JAX, or a list with one for each layer"


def as_tensor(name: str, array: object) -> Tensor:
    """An array as a tensor of floating-point numbers on the CPU, without its gradients.

    Args:
        name: what errors call it.
        array: what has `__dlpack__` or `__array__`.

    Raises: InputError: it is none, or holds something else.

    >>> as_tensor("queries", np.ones((1, 2), ">f4")).dtype
    torch.float32
    """
    tensor = array.detach().cpu() if isinstance(array, Tensor) else _from_other(name, array)
    if not tensor.is_floating_point():
        raise InputError(
            f"{name}: numbers of type {str(tensor.dtype).removeprefix('torch.')}; expected "
            "floating-point numbers, as the model computed them."
        )
    if tensor.is_sparse or tensor.layout != torch.strided:
        raise InputError(f"{name}: a sparse tensor; expected a dense one: tensor.to_dense().")
    # Types of eight bits are for storage; nothing computes with them.
    return tensor.float() if tensor.element_size() == 1 else tensor


def _from_other(name: str, array: object) -> Tensor:
    """What another library's array holds."""
    if isinstance(array, (str, bytes, Mapping, set)) or not (
        hasattr(array, "__array__") or hasattr(array, "__dlpack__")
    ):
        what = f"a {type(array).__name__}; expected {_EXPECTED}"
        if array is None:
            what = (
                "None, as models on fused attention give for their weights; expected an array. "
                'Load the model with attn_implementation="eager", or trace it: headloom.trace'
            )
        raise InputError(f"{name}: {what}.")
    if not isinstance(array, np.ndarray) and hasattr(array, "__dlpack__"):
        try:
            return torch.utils.dlpack.from_dlpack(array).detach().cpu()
        except (BufferError, TypeError, ValueError, RuntimeError, AttributeError):
            # Read-only memory, or a device of its own: by way of NumPy.
            pass
    try:
        return _from_numpy(name, np.asarray(array))
    except InputError:
        raise
    except Exception as error:  # whatever the other library raises
        reason = " ".join(f"{type(error).__name__}: {error}".split())[:120].rstrip(".")
        raise InputError(f"{name}: cannot be read as an array ({reason}).") from error


def _from_numpy(name: str, array: NDArray[Any]) -> Tensor:
    if array.dtype.name == "bfloat16":  # of the package ml_dtypes, as JAX has it
        bits = np.ascontiguousarray(array).view(np.int16)
        return torch.from_numpy(bits.copy()).view(torch.bfloat16)
    if array.dtype.kind not in "fiub":
        remedy = (
            "NumPy's files lose the type bfloat16: save float32, or a safetensors file"
            if array.dtype.kind == "V"
            else "give floating-point numbers"
        )
        raise InputError(
            f"{name}: an array of {array.dtype}; expected floating-point numbers: {remedy}."
        )
    if array.dtype.kind == "f" and array.dtype.itemsize > 8:
        array = array.astype(np.float64)
    # In this machine's order of bytes, and memory that may be written, as torch wants it.
    plain = array.astype(array.dtype.newbyteorder("="), copy=not array.flags.writeable)
    return torch.from_numpy(np.ascontiguousarray(plain))


class Layers:
    """The layers of a stack of arrays, or of a list of arrays: each a tensor when it is asked for.

    Args:
        name: what errors call them, as "queries".
        given: an array (..., positions, size) of `rank` dimensions, which is one layer; with one
            dimension more, its first is the layers; with two, the second is the batch. Or a
            sequence with an array for each layer, of `rank` dimensions, or with a batch before
            them. What a sequence gives is read when it is asked for, so that one that reads files
            holds one layer at a time; it may have `shapes`, and `labels`, by which errors call
            them.
        rank: dimensions of a layer.
    """

    def __init__(self, name: str, given: object, rank: int = 3) -> None:
        self.name, self._rank = name, rank
        self._given: Any = given
        self._whole: Tensor | None = None
        if _is_array(given):
            whole = as_tensor(name, given)
            if not rank <= whole.ndim <= rank + 2:
                raise ShapeError(
                    f"{name}: an array {describe(whole)}; expected {rank} dimensions for a layer, "
                    f"{rank + 1} for a stack of layers, or a list with an array for each layer."
                )
            self._whole = whole if whole.ndim > rank else whole[None]
            self._given = range(len(self._whole))
        elif isinstance(given, (str, bytes)) or not isinstance(given, Sequence):
            what = "None" if given is None else f"a {type(given).__name__}"
            raise InputError(f"{name}: {what}; expected {_EXPECTED}.")
        if not len(self._given):
            raise InputError(f"{name}: no layers; expected {_EXPECTED}.")

    def __len__(self) -> int:
        return len(self._given)

    def label(self, number: int) -> str:
        """What errors call a layer: what its list calls it, or its name and its number."""
        labels = getattr(self._given, "labels", None)
        if labels is not None:
            return str(labels[number])
        return f"{self.name} of layer {number}" if len(self) > 1 else self.name

    @cached_property
    def samples(self) -> int:
        """Inputs of the batch."""
        shape = self.shape(0)
        return shape[0] if len(shape) > self._rank else 1

    def shape(self, number: int) -> tuple[int, ...]:
        """The shape of a layer, with a batch or without: where it can be, without its numbers."""
        shapes = getattr(self._given, "shapes", None)
        shape = tuple(self._tensor(number).shape if shapes is None else shapes[number])
        self._check_rank(number, shape)
        return shape

    def _check_rank(self, number: int, shape: tuple[int, ...]) -> None:
        if len(shape) not in (self._rank, self._rank + 1):
            raise ShapeError(
                f"{self.label(number)}: an array of shape {shape}; expected {self._rank} "
                f"dimensions, or {self._rank + 1} with a batch."
            )

    def __getitem__(self, number: int) -> Tensor:
        """A layer, with a batch before its dimensions."""
        tensor = self._tensor(number)
        if len(tensor) != self.samples:
            raise ShapeError(
                f"{self.label(number)}: a batch of {len(tensor)} inputs, the first layer of "
                f"{self.samples}; expected one batch for all layers."
            )
        return tensor

    def _tensor(self, number: int) -> Tensor:
        label = self.label(number)
        if self._whole is not None:
            tensor = self._whole[number]
        else:
            entry = self._given[number]
            if isinstance(entry, (list, tuple)):
                raise InputError(
                    f"{label}: a {type(entry).__name__}; expected an array. Where there is a list "
                    "for each step, as generate() gives, give the arrays of one step, or trace "
                    "the whole text."
                )
            tensor = as_tensor(label, entry)
        self._check_rank(number, tuple(tensor.shape))
        tensor = tensor if tensor.ndim > self._rank else tensor[None]
        if not len(tensor):
            raise ShapeError(f"{label}: an empty batch, {describe(tensor)}; expected 1 or more.")
        return tensor


def _is_array(given: object) -> bool:
    return hasattr(given, "__array__") or hasattr(given, "__dlpack__")


def first_place(marked: Tensor) -> tuple[int, ...]:
    """Where the first True is."""
    flat = int(marked.flatten().to(torch.uint8).argmax())
    return tuple(int(index) for index in np.unravel_index(flat, tuple(marked.shape)))


def in_words(place: Sequence[int], names: Sequence[str], samples: int) -> str:
    """A place in an array whose first dimension is a batch, in words.

    >>> in_words((0, 2, 5), ("head", "query"), 1), in_words((1, 2), ("head",), 3)
    ('head 2, query 5', 'input 1, head 2')
    """
    words = [f"{name} {index}" for name, index in zip(names, place[1:], strict=False)]
    return ", ".join([f"input {place[0]}"] * (samples > 1) + words)


def check_numbers(label: str, tensor: Tensor, names: Sequence[str]) -> None:
    """Raise an InputError where a number is NaN or infinite, which says where the first one is.

    names: of the dimensions after the batch.
    """
    wrong = ~tensor.isfinite()
    if bool(wrong.any()):
        place = first_place(wrong)
        where = in_words(place, names, len(tensor))
        raise InputError(
            f"{label}: {float(tensor[place])} at {where}; {int(wrong.sum()):,} of "
            f"{wrong.numel():,} numbers are not finite; expected none. Cut padding off, or save "
            "what the model computed without overflow."
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
