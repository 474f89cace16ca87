"""The mask of eager attention, whose numbers are made when somebody computes with it.

Transformers gives a model with eager attention a matrix of numbers that are added to the scores,
(batch, 1, queries, keys): four bytes a cell. Most models hand it to their attention function as it
is, and there headloom needs the rule alone. Some compute with it, and need the numbers.
"""

from __future__ import annotations

from typing import Any

import torch
from torch import Tensor
from torch.utils._pytree import tree_map_only

__all__ = ["LazyMask", "eager_mask"]

aten: Any = torch.ops.aten


class LazyMask(Tensor):
    """Numbers to add to scores: 0 where a query may look, the lowest number elsewhere.

    allowed: (batch, 1, queries, keys), True = may look; None: no query looks ahead.

    A tensor of that shape to everybody. Every operation on it makes the numbers and computes with
    them; what gets it untouched may ask for `allowed` instead.
    """

    allowed: Tensor | None

    @staticmethod
    def __new__(
        cls,
        shape: tuple[int, ...],
        dtype: torch.dtype,
        device: torch.device | str,
        allowed: Tensor | None,
    ) -> LazyMask:
        mask: LazyMask = torch.Tensor._make_wrapper_subclass(
            cls, shape, dtype=dtype, device=torch.device(device)
        )
        mask.allowed = allowed
        return mask

    def numbers(self) -> Tensor:
        """The matrix itself."""
        allowed = self.allowed
        if allowed is None:
            whole = torch.ones(self.shape[-2:], dtype=torch.bool, device=self.device)
            allowed = whole.tril().expand(self.shape)
        zero = torch.zeros((), dtype=self.dtype, device=self.device)
        return torch.where(allowed, zero, torch.finfo(self.dtype).min)

    def same(self) -> LazyMask:
        """The mask once more: what a view of all of it gives."""
        return LazyMask(tuple(self.shape), self.dtype, self.device, self.allowed)

    def __repr__(self, *, tensor_contents: object = None) -> str:  # type: ignore[override]
        return f"LazyMask(shape={tuple(self.shape)}, dtype={self.dtype})"

    @classmethod
    def __torch_dispatch__(  # type: ignore[override]
        cls, function: Any, types: object, args: tuple[Any, ...] = (), options: Any = None
    ) -> Any:
        """Compute with the numbers; what changes nothing gives the mask back."""
        options = options or {}
        first = args[0] if args else None
        if isinstance(first, LazyMask):
            if function is aten.detach.default or function is aten.alias.default:
                return first.same()
            if function is aten.slice.Tensor and _is_whole(first, *args[1:], **options):
                return first.same()
        args, options = tree_map_only(LazyMask, LazyMask.numbers, (args, options))
        return function(*args, **options)


def _is_whole(
    mask: Tensor, dim: int = 0, start: int | None = None, end: int | None = None, step: int = 1
) -> bool:
    """Whether a slice of a mask is all of it."""
    return not start and step == 1 and (end is None or end >= mask.shape[dim])


def eager_mask(masking: Any, **asked: Any) -> Tensor | None:
    """What `masking_utils.eager_mask` gives, without its numbers as long as nobody asks for them.

    masking: the module of Transformers. asked: as its mask functions are asked.
    """
    allowed = masking.sdpa_mask(**asked)
    if allowed is None:
        # Fused attention needs no mask: a flag says the same, or nothing is hidden.
        if not asked.get("allow_is_causal_skip", True):
            return None
        same = asked["q_length"] == asked["kv_length"] and bool(
            asked.get("q_offset", 0) == asked.get("kv_offset", 0)
        )
        if not same or asked.get("allow_is_bidirectional_skip", False):
            allowed = masking.sdpa_mask(**{**asked, "allow_is_causal_skip": False})
            if allowed is None:
                return None
    return LazyMask(
        (asked["batch_size"], 1, asked["q_length"], asked["kv_length"]),
        asked.get("dtype", torch.float32),
        asked.get("device", "cpu"),
        allowed,
    )
