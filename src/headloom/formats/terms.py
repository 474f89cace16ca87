"""`Terms`: what the weights of a layer come from besides its queries and keys.

A trace keeps them, in memory linear in the length, so that the exact weight matrix comes back:

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


class Form(NamedTuple):
    """How a kind of mask or position lies on disk: the name of its tensor, to it and from it."""

    name: str
    to_tensor: Callable[[Any], Tensor]
    #: From the tensor, the number of queries and the offset.
    from_tensor: Callable[[Tensor, int, int], Any]


#: Masks that are kept as a tensor; a window is kept as numbers.
MASKS: dict[type, Form] = {
    Ranges: Form(
        "ranges",
        lambda mask: torch.stack((mask.first, mask.end)).int(),
        lambda tensor, queries, offset: Ranges(*tensor.long()),
    ),
}

#: Positions that are kept as they are; others are kept by distance, where that says them.
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
    """What enters the weights of a layer besides scale, softcap, queries and keys.

    mask        a `Window`, a range of keys for each query (`Ranges`), or None: all keys
    relative    one of `POSITIONS`, or None
    bias        added to the scores, broadcastable to (heads, queries, keys), or None
    sinks       (heads,), or None
    missing     what else enters and is not kept, with the reason; None: nothing
    mask_known  whether `mask` is the mask: it may be among what is missing
    """

    mask: Mask | None = None
    relative: Relative | None = None
    bias: Tensor | None = None
    sinks: Tensor | None = None
    missing: str | None = None
    mask_known: bool = True

    @property
    def rule(self) -> str | None:
        """The mask's name: "all", "causal", "window" or "ranges"; None: it is not known."""
        if self.mask is None:
            return "all" if self.mask_known else None
        if self.mask == causal():
            return "causal"
        return "window" if self.window is not None else MASKS[type(self.mask)].name

    @property
    def window(self) -> list[int | None] | None:
        """The window as [left, right, offset], null where it is open; None: it is no window."""
        if not isinstance(self.mask, Window):
            return None
        sides = (self.mask.left, self.mask.right)
        left, right = (None if side is None else min(side, _FAR) for side in sides)
        return [left, right, self.mask.offset]

    def of_edges(self) -> Terms:
        """What a layer keeps without its queries and keys: the mask and the sinks."""
        if self.relative is None and self.bias is None:
            return self
        missing = self.missing or "what is added to its scores is kept with queries and keys alone"
        return replace(self, relative=None, bias=None, missing=missing)

    def tensors(self) -> dict[str, Tensor]:
        """Its tensors by their names on disk."""
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

    def said(self) -> JsonObject:
        """What the manifest says of them, besides the window."""
        return {
            "missing": self.missing,
            "offset": 0 if self.relative is None else self.relative.offset,
            "tensors": sorted(self.tensors()),
        }

    @classmethod
    def stored(cls, entry: JsonMapping, tensors: Mapping[str, Tensor], queries: int) -> Terms:
        """Made again from what lies on disk: the layer's entry in the manifest, and its tensors."""
        terms = entry["terms"]

        def part(forms: Mapping[Any, Form]) -> Any:
            for name, _, from_tensor in forms.values():
                if name in tensors:
                    return from_tensor(tensors[name], queries, terms["offset"])
            return None

        window = entry.get("window")
        mask = part(MASKS) if window is None else Window(window[0], window[1], window[2] or 0)
        return cls(
            mask,
            part(POSITIONS),
            tensors.get("bias"),
            tensors.get("sinks"),
            terms["missing"],
            mask_known=entry["mask"] is not None,
        )
