"""`Terms`: what the weights of a layer come from besides its queries and keys.

A trace keeps them, in memory linear in the length, so that the exact weight matrix comes back:

    scores = softcap(scale * (queries . keys + relative key scores)) + relative bias + bias

with minus infinity where the mask hides a key, and a sink beside them.
"""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass
from typing import Any

import torch
from torch import Tensor

from weft.mechanism.masks import Mask, Window, causal
from weft.mechanism.packed import Ranges
from weft.mechanism.positions import ALiBi, Relative, Shaw
from weft.mechanism.transposed import ByDistance

__all__ = ["TENSORS", "Terms"]

#: Tensors that terms may have, by their names on disk, and their shapes: "h" heads, "q" queries,
#: "k" keys, "d" depth, "t" the rows of a table, "n" queries + keys - 1, 1 one for all.
TENSORS = {
    "ranges": ("2", "q"),
    "key_table": ("1h", "t", "d"),
    "slopes": ("h",),
    "by_distance": ("1h", "n"),
    "bias": ("1h", "1q", "1k"),
    "sinks": ("h",),
}

#: Keys away; no trace is longer.
_FAR = 2**31 - 1


@dataclass(frozen=True, eq=False)
class Terms:
    """What enters the weights of a layer besides scale, softcap, queries and keys.

    mask      a `Window`, a range of keys for each query (`Ranges`), or None: all keys
    relative  `Shaw` (keys), `ALiBi`, a bias by distance, or None
    bias      added to the scores, broadcastable to (heads, queries, keys), or None
    sinks     (heads,), or None
    missing   what else enters and is not kept, with the reason; None: nothing
    """

    mask: Mask | None = None
    relative: Relative | None = None
    bias: Tensor | None = None
    sinks: Tensor | None = None
    missing: str | None = None

    @property
    def rule(self) -> str | None:
        """The mask's name: "all", "causal", "window" or "ranges"; None: it is not known."""
        if self.mask is None:
            # A mask that was not kept is missing; so may be something else.
            return None if self.missing is not None and "mask" in self.missing else "all"
        if isinstance(self.mask, Window):
            return "causal" if self.mask == causal() else "window"
        return "ranges"

    @property
    def window(self) -> list[int | None] | None:
        """The window as [left, right, offset], null where it is open; None: it is no window."""
        if not isinstance(self.mask, Window):
            return None
        sides = (self.mask.left, self.mask.right)
        left, right = (None if side is None else min(side, _FAR) for side in sides)
        return [left, right, self.mask.offset]

    def tensors(self) -> dict[str, Tensor]:
        """Its tensors by their names on disk."""
        found: dict[str, Tensor | None] = {"bias": self.bias, "sinks": self.sinks}
        if isinstance(self.mask, Ranges):
            found["ranges"] = torch.stack((self.mask.first, self.mask.end)).int()
        if isinstance(self.relative, Shaw):
            table = self.relative.key_table
            found["key_table"] = table if table.ndim == 3 else table[None]
        elif isinstance(self.relative, ALiBi):
            found["slopes"] = self.relative.slopes
        elif isinstance(self.relative, ByDistance):
            found["by_distance"] = self.relative.values
        return {
            name: tensor if name == "ranges" else tensor.float()
            for name, tensor in found.items()
            if tensor is not None
        }

    def said(self) -> dict[str, Any]:
        """What the manifest says of them, besides the window."""
        return {
            "missing": self.missing,
            "offset": 0 if self.relative is None else self.relative.offset,
            "tensors": sorted(self.tensors()),
        }

    @classmethod
    def stored(
        cls,
        said: Mapping[str, Any],
        window: list[int | None] | None,
        tensors: Mapping[str, Tensor],
        queries: int,
    ) -> Terms:
        """Made again from what lies on disk."""
        mask: Mask | None = None
        if window is not None:
            left, right, offset = window
            mask = Window(left, right, offset or 0)
        elif "ranges" in tensors:
            mask = Ranges(*tensors["ranges"].long())
        relative: Relative | None = None
        if "key_table" in tensors:
            relative = Shaw(tensors["key_table"], None, said["offset"])
        elif "slopes" in tensors:
            relative = ALiBi(tensors["slopes"], said["offset"])
        elif "by_distance" in tensors:
            relative = ByDistance(tensors["by_distance"], queries - 1, said["offset"])
        return cls(mask, relative, tensors.get("bias"), tensors.get("sinks"), said["missing"])
