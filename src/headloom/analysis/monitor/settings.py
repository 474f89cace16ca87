"""What is asked of a monitor, checked."""

from __future__ import annotations

import math
from collections.abc import Iterable, Sequence
from dataclasses import dataclass
from typing import Any

from headloom.analysis.effects.ablation import head_place
from headloom.errors import InputError
from headloom.tracing.options import checked_layers, whole_number

__all__ = ["Settings"]


@dataclass(frozen=True)
class Settings:
    """See `headloom.analysis.monitor.monitor.monitor`."""

    every: int = 100
    budget: float | None = None
    sequences: int = 1
    tokenizer: Any = None
    layers: Sequence[int | str] | None = None
    heads: Any = None
    matrices: bool | None = None
    growth: float = 2.0
    step: int | None = None
    least_evenness: float = 0.02
    largest_score: float = 100.0

    def __post_init__(self) -> None:
        """Raise an InputError for what cannot be asked."""
        for name, least in (("every", 1), ("sequences", 1), ("step", 0)):
            value = getattr(self, name)
            number = whole_number(value)
            if (value is not None or name != "step") and (number is None or number < least):
                raise InputError(
                    f"monitor: {name}={value!r}; expected a whole number, {least} or more."
                )
        if not _is_number(self.growth) or not 1 < self.growth < math.inf:
            raise InputError(f"monitor: growth={self.growth!r}; expected a number above 1.")
        if self.budget is not None and not (_is_number(self.budget) and self.budget > 0):
            raise InputError(
                f"monitor: budget={self.budget!r}; expected a share of the training's time, as "
                "0.02, or None."
            )
        if not _is_number(self.least_evenness) or not 0 <= self.least_evenness <= 1:
            raise InputError(
                f"monitor: least_evenness={self.least_evenness!r}; expected a number from 0 to 1."
            )
        if not _is_number(self.largest_score) or not self.largest_score > 0:
            raise InputError(
                f"monitor: largest_score={self.largest_score!r}; expected a number above 0."
            )
        if self.matrices not in (None, True, False):
            raise InputError(
                f"monitor: matrices={self.matrices!r}; expected True, False, or None, which keeps "
                "them where they are small."
            )
        object.__setattr__(self, "layers", checked_layers(self.layers, "monitor"))
        object.__setattr__(self, "heads", _checked_heads(self.heads))

    def check_heads(self, heads: Sequence[int]) -> None:
        """Raise an InputError where heads are asked for that the layers do not have."""
        if self.heads is None or self.heads == "all":
            return
        for layer, head in sorted(self.heads):
            if not (0 <= layer < len(heads) and 0 <= head < heads[layer]):
                raise InputError(
                    f"monitor: heads has {(layer, head)}; there are {len(heads)} layers, of "
                    f"{min(heads, default=0)} to {max(heads, default=0)} heads, both from 0."
                )

    def wants(self, layer: int, head: int) -> bool:
        """Whether sinks are told of a head by itself."""
        return self.heads == "all" or (self.heads is not None and (layer, head) in self.heads)


def _is_number(value: Any) -> bool:
    return isinstance(value, int | float) and not isinstance(value, bool)


def _checked_heads(heads: Any) -> Any:
    """The pairs of layer and head that are asked for, "all" or None."""
    if heads is None or (isinstance(heads, str) and heads == "all"):
        return heads
    pairs = list(heads) if isinstance(heads, Iterable) and not isinstance(heads, str) else [heads]
    places = [head_place(pair) for pair in pairs]
    if None in places:
        raise InputError(
            f'monitor: heads={heads!r}; expected [(layer, head), ...], both from 0, or "all".'
        )
    return frozenset(places)
