"""Follows a softmax that is written out, and not called: exponentials over their sum."""

from __future__ import annotations

from dataclasses import dataclass
from typing import Any, Literal

from torch import Tensor, nn
from torch.utils.weak import WeakIdKeyDictionary

__all__ = ["PRODUCTS", "QUOTIENTS", "WrittenSoftmax"]

#: Functions of torch by name.
QUOTIENTS = ("__truediv__", "__itruediv__", "div", "div_", "true_divide")
PRODUCTS = ("matmul", "__matmul__", "__rmatmul__", "bmm", "baddbmm", "einsum")
_EXPONENTIALS = ("exp", "exp_")
_LOGARITHMS = ("logsumexp", "log_softmax", "_log_softmax")
_DIFFERENCES = ("sub", "sub_", "__sub__", "__isub__", "subtract")


@dataclass(frozen=True)
class _Part:
    """What a tensor is in a softmax that is written out.

    role: exp(scores); their sum over the keys; logarithms of weights, or of that sum; exp(scores)
    times values.
    """

    role: Literal["exponentials", "sum", "logarithms", "product"]
    module: tuple[str, str]
    keys: int


class WrittenSoftmax:
    """Told of each function of torch, says which results are weights, or already weights times V.

    Followed are, with e = exp(s): e / sum(e), (e V) / sum(e), exp(s - logsumexp(s)) and
    exp(log_softmax(s)). Masks, dropout and small numbers that are added change nothing.
    """

    def __init__(self) -> None:
        self._parts: Any = WeakIdKeyDictionary()

    def concerns(self, name: str) -> bool:
        """Whether a function can be part of such a softmax: the others need not be looked at."""
        return name in _EXPONENTIALS or name in _LOGARITHMS or bool(self._parts)

    def note(
        self, name: str, tensors: list[Tensor], axis: Any, result: Any, module: tuple[str, str]
    ) -> tuple[tuple[str, str], int | None] | None:
        """Look at a function and its result.

        Args: axis: the axis that it was given; None: none. module: that runs, path and class.

        Returns: the module, and over how many keys the result is weights (None: it is weights times
        values already); None: it is neither.
        """
        if not isinstance(result, Tensor) or not tensors or not tensors[0].ndim:
            return None
        parts = [self._parts.get(tensor) for tensor in tensors]
        roles = [part and part.role for part in parts]
        if name in _EXPONENTIALS:
            if roles[0] == "logarithms":
                return module, parts[0].keys
            self._parts[result] = _Part("exponentials", module, 0)
        elif name in _LOGARITHMS:
            self._parts[result] = _Part("logarithms", module, _length(tensors[0], axis))
        elif not any(parts):
            return None
        elif name == "sum" and roles[0] == "exponentials" and result.ndim:
            self._parts[result] = _Part("sum", module, _length(tensors[0], axis))
        elif name in QUOTIENTS and roles[1:] == ["sum"] and roles[0] is not None:
            if roles[0] == "exponentials":
                return parts[0].module, parts[1].keys
            return (parts[0].module, None) if roles[0] == "product" else None
        elif name in PRODUCTS:
            if any(
                role is None and tensor.ndim > 1 and not isinstance(tensor, nn.Parameter)
                for role, tensor in zip(roles, tensors, strict=True)
            ):
                self._parts[result] = _Part("product", module, 0)
        elif name in _DIFFERENCES and roles[1:] == ["logarithms"]:
            self._parts[result] = parts[1]
        else:
            self._keep(tensors, parts, result)
        return None

    def _keep(self, tensors: list[Tensor], parts: list[_Part | None], result: Tensor) -> None:
        """What keeps the number of cells keeps what they are."""
        for tensor, part in zip(tensors, parts, strict=True):
            if part is not None and result.numel() == tensor.numel():
                self._parts[result] = part
                return


def _length(tensor: Tensor, axis: Any) -> int:
    """The length of an axis; of the last one, where none or several are given."""
    several = isinstance(axis, list | tuple)
    axis = axis[0] if several and len(axis) == 1 else axis
    return tensor.shape[axis if isinstance(axis, int) else -1]
