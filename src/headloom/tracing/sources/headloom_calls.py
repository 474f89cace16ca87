"""Calls of `headloom.attention` and `headloom.attend` in somebody's own module, by their
arguments.
"""

from __future__ import annotations

import inspect
from collections.abc import Callable
from dataclasses import dataclass
from functools import cached_property
from typing import Any

import torch
from torch import Tensor

from headloom.mechanism.masks import Mask, as_mask
from headloom.mechanism.positions import ALiBi, Relative, Shaw
from headloom.mechanism.relative import DistanceBias
from headloom.mechanism.scores import Bilinear, Dot, ScaledDot, Score
from headloom.tracing.recording.layer_call import LayerCall
from headloom.tracing.sources.score_masks import without_hidden

__all__ = ["HeadloomCall"]


@dataclass(frozen=True, eq=False)
class HeadloomCall:
    """The arguments of `headloom.attention`; those of `headloom.attend` but what it is to keep."""

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
    def of(cls, function: Callable[..., Any], args: Any, kwargs: Any) -> HeadloomCall:
        """The call that a function of headloom was given."""
        bound = inspect.signature(function).bind(*args, **kwargs)
        bound.apply_defaults()
        kept = ("keep", "received")
        return cls(**{name: value for name, value in bound.arguments.items() if name not in kept})

    @property
    def has_formula(self) -> bool:
        """Whether the call can be held against the formula in float64."""
        return self.relative is None or isinstance(self.relative, ALiBi | Shaw)

    @property
    def has_products(self) -> bool:
        """Whether the scores are products of queries and keys, as these were given."""
        return self.score is None or type(self.score) in (Dot, ScaledDot)

    @property
    def ahead(self) -> bool | None:
        """Whether some query may look at a key after it; None: it cannot be said."""
        queries, keys = self.queries.shape[-2], self.keys.shape[-2]
        mask, _ = self._mask_and_bias
        if mask is None or queries != keys or queries < 2:
            return None
        ranges = mask.ranges(queries, keys)
        return None if ranges is None else bool((ranges[1] > torch.arange(queries) + 1).any())

    @cached_property
    def _mask_and_bias(self) -> tuple[Mask | None, Tensor | None]:
        """The mask, which says whom minus infinities of the bias hide, and the bias."""
        mask = None if self.mask is None else as_mask(self.mask)
        bias = self.bias
        if bias is None or bias.ndim > 4:
            return mask, bias
        bias = bias.reshape((1,) * (4 - bias.ndim) + tuple(bias.shape))
        inputs = len(self.queries) if self.queries.ndim == 4 else 1
        heads, queries, _ = self.queries.shape[-3:]
        return without_hidden(mask, bias, (inputs, heads, queries, self.keys.shape[-2]))

    def recorded(self, path: str, kind: str) -> LayerCall:
        """The call as the recorder takes it."""
        queries, keys, values = (
            tensor if tensor.ndim == 4 else tensor[None]
            for tensor in (self.queries, self.keys, self.values)
        )
        depth, (mask, bias) = queries.shape[-1], self._mask_and_bias
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
            mask=mask,
            bias=bias,
            relative=self.relative,
            softcap=self.softcap,
            sinks=self.sinks,
            score=None if self.has_products else self.score,
            missing=self._no_product(),
            positions=self._positions(),
            is_causal=self.ahead is False,
            by_formula=self.has_formula,
        )

    def _no_product(self) -> str | None:
        """Why the scores are no products of what a trace keeps; None: they are."""
        if self.has_products:
            return None
        name = type(self.score).__name__
        if not isinstance(self.score, Bilinear):
            return f"its score, {name}, is no product of queries and keys"
        if self.relative is None or isinstance(self.relative, DistanceBias):
            return None
        # The matrix makes other queries of them, which positions must not meet.
        return f"its positions meet the queries before the matrix of its score, {name}, does"

    def _positions(self) -> str:
        """The kind of positions that enter the scores, as a trace says it."""
        if isinstance(self.relative, ALiBi):
            return "alibi"
        if isinstance(self.relative, Shaw):
            return "shaw"
        none = self.relative is None and self._mask_and_bias[1] is None
        return "none" if none else "bias"
