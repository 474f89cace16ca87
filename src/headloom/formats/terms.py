"""`Terms`: mask, biases and sinks that determine a layer's weights beside queries and keys.

A trace keeps them, in memory linear in the length, so that the exact weights can be recomputed:

    scores = softcap(scale * (queries . keys + relative key scores)) + relative bias + bias

with minus infinity where the mask hides a key, and a sink beside them.
"""

from __future__ import annotations

from collections.abc import Callable, Mapping
from dataclasses import dataclass, replace
from typing import Any, NamedTuple

import torch
from torch import Tensor

from headloom.formats.files import JsonMapping, JsonObject
from headloom.mechanism.masks import Mask, Ranges, Window, causal
from headloom.mechanism.positions import ALiBi, ByDistance, Relative, Shaw

#: Tensors of terms by their names on disk, with their shapes: "h" heads, "q" queries,
#: "k" keys, "d" depth, "t" the rows of a table, "n" queries + keys - 1, 1 one for all.
TENSORS = {
    "ranges": ("2", "q"),
    "key_table": ("1h", "t", "d"),
    "slopes": ("h",),
    "by_distance": ("1h", "n"),
    "bias": ("1h", "1q", "1k"),
    "sinks": ("h",),
}

#: Distance in keys beyond the length of any trace.
_FAR = 2**31 - 1


class Form(NamedTuple):
    """Storage of a kind of mask or position: name of its tensor, and the two conversions."""

    name: str
    to_tensor: Callable[[Any], Tensor]
    #: From the tensor, the number of queries and the offset.
    from_tensor: Callable[[Tensor, int, int], Any]


#: Masks stored as a tensor; a window is stored as numbers.
MASKS: dict[type, Form] = {
    Ranges: Form(
        "ranges",
        lambda mask: torch.stack((mask.first, mask.end)).int(),
        lambda tensor, queries, offset: Ranges(*tensor.long()),
    )
}

#: Positions stored as they are; others are stored by distance where possible.
POSITIONS: dict[type, Form] = {
    Shaw: Form(
        "key_table",
        lambda shaw: shaw.key_table if shaw.key_table.ndim == 3 else shaw.key_table[None],
        lambda table, _, offset: Shaw(table, None, offset),
    ),
    ALiBi: Form(
        "slopes", lambda alibi: alibi.slopes, lambda slopes, _, offset: ALiBi(slopes, offset)
    ),
    ByDistance: Form(
        "by_distance",
        lambda bias: bias.values,
        lambda values, queries, offset: ByDistance(values, queries - 1, offset),
    ),
}


@dataclass(frozen=True, eq=False)
class Terms:
    """Inputs of a layer's weights besides scale, softcap, queries and keys.

    mask        a `Window`, a range of keys for each query (`Ranges`), or None: all keys
    relative    one of `POSITIONS`, or None
    bias        added to the scores, broadcastable to (heads, queries, keys), or None
    sinks       (heads,), or None
    missing     other inputs that are not kept, with the reason; None: nothing
    mask_known  whether `mask` is the mask (it may be among the missing inputs)
    """

    mask: Mask | None = None
    relative: Relative | None = None
    bias: Tensor | None = None
    sinks: Tensor | None = None
    missing: str | None = None
    mask_known: bool = True

    @property
    def rule(self) -> str | None:
        """Name of the mask: "all", "causal", "window" or "ranges"; None: unknown."""
        if self.mask is None:
            return "all" if self.mask_known else None
        if self.mask == causal():
            return "causal"
        return "window" if self.window is not None else MASKS[type(self.mask)].name

    @property
    def window(self) -> list[int | None] | None:
        """Window as [left, right, offset], null where a side is open; None: no window."""
        if not isinstance(self.mask, Window):
            return None
        sides = (self.mask.left, self.mask.right)
        left, right = (None if side is None else min(side, _FAR) for side in sides)
        return [left, right, self.mask.offset]

    def of_edges(self) -> Terms:
        """Return the terms to keep without queries and keys: the mask and the sinks."""
        if self.relative is None and self.bias is None:
            return self
        missing = self.missing or "what is added to its scores is kept only with queries and keys"
        return replace(self, relative=None, bias=None, missing=missing)

    def tensors(self) -> dict[str, Tensor]:
        """Return the tensors by their names on disk."""
        tensors: dict[str, Tensor] = {}
        for name, tensor in (("bias", self.bias), ("sinks", self.sinks)):
            if tensor is not None:
                tensors[name] = tensor.float()
        if type(self.mask) in MASKS:
            form = MASKS[type(self.mask)]
            tensors[form.name] = form.to_tensor(self.mask)
        if self.relative is not None:
            form = POSITIONS[type(self.relative)]
            tensors[form.name] = form.to_tensor(self.relative).float()
        return tensors

    def to_manifest(self) -> JsonObject:
        """Return the manifest entry of the terms, without the window."""
        return {
            "missing": self.missing,
            "offset": 0 if self.relative is None else self.relative.offset,
            "tensors": sorted(self.tensors()),
        }

    @classmethod
    def from_manifest(
        cls, entry: JsonMapping, tensors: Mapping[str, Tensor], queries: int
    ) -> Terms:
        """Restore terms from the layer's entry in the manifest and its tensors."""
        terms = entry["terms"]

        def part(forms: Mapping[Any, Form]) -> Any:
            for name, _, from_tensor in forms.values():
                if name in tensors:
                    return from_tensor(tensors[name], queries, terms["offset"])
            return None

        window = entry.get("window")
        mask = part(MASKS) if window is None else Window(window[0], window[1], window[2] or 0)
        return cls(
            mask, part(POSITIONS), tensors.get("bias"), tensors.get("sinks"), terms["missing"],
            mask_known=entry["mask"] is not None,
        )  # fmt: skip
