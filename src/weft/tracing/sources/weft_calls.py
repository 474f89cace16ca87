"""Calls of `weft.attention` and `weft.attend` in somebody's own module, by their arguments."""

from __future__ import annotations

import inspect
from collections.abc import Callable
from dataclasses import dataclass
from typing import Any

import torch
from torch import Tensor

from weft.mechanism.masks import Mask, as_mask
from weft.mechanism.positions import ALiBi, Relative, Shaw
from weft.mechanism.scores import Score
from weft.tracing.recording.layer_call import LayerCall

__all__ = ["WeftCall"]


@dataclass(frozen=True, eq=False)
class WeftCall:
    """The arguments of `weft.attention`; those of `weft.attend` but what it is to keep."""

    queries: Tensor
    keys: Tensor
    values: Tensor
    mask: Mask | Tensor | None
    score: Score | None
    relative: Relative | None
    bias: Tensor | None
    scale: float | None
    softcap: float | None
    sinks: Tensor | None
    dropout: float
    backend: str | None

    @classmethod
    def of(cls, function: Callable[..., Any], args: Any, kwargs: Any) -> WeftCall:
        """The call that a function of weft was given."""
        bound = inspect.signature(function).bind(*args, **kwargs)
        bound.apply_defaults()
        kept = ("keep", "received")
        return cls(**{name: value for name, value in bound.arguments.items() if name not in kept})

    @property
    def has_formula(self) -> bool:
        """Whether the call can be held against the formula in float64."""
        plain = self.bias is None and self.softcap is None and self.sinks is None
        return plain and (self.relative is None or isinstance(self.relative, ALiBi | Shaw))

    @property
    def ahead(self) -> bool | None:
        """Whether some query may look at a key after it; None: it cannot be said."""
        queries, keys = self.queries.shape[-2], self.keys.shape[-2]
        if self.mask is None or queries != keys or queries < 2:
            return None
        ranges = as_mask(self.mask).ranges(queries, keys)
        return None if ranges is None else bool((ranges[1] > torch.arange(queries) + 1).any())

    def recorded(self, path: str, kind: str) -> LayerCall:
        """The call as the recorder takes it."""
        queries, keys, values = (
            tensor if tensor.ndim == 4 else tensor[None]
            for tensor in (self.queries, self.keys, self.values)
        )
        depth, bias = queries.shape[-1], self.bias
        factor = self.scale
        if factor is None:
            factor = (
                max(depth, 1) ** -0.5 if self.score is None else self.score.default_scale(depth)
            )
        return LayerCall(
            path=path,
            kind=kind,
            queries=queries,
            keys=keys,
            values=values,
            scale=float(factor),
            mask=None if self.mask is None else as_mask(self.mask),
            bias=None if bias is None else bias.reshape((1,) * (4 - bias.ndim) + bias.shape),
            relative=self.relative,
            softcap=self.softcap,
            sinks=self.sinks,
            positions=self._positions(),
            is_causal=self.ahead is False,
            by_formula=self.has_formula,
        )

    def _positions(self) -> str:
        """The kind of positions that enter the scores, as a trace says it."""
        if isinstance(self.relative, ALiBi):
            return "alibi"
        if isinstance(self.relative, Shaw):
            return "shaw"
        return "none" if self.relative is None and self.bias is None else "bias"
