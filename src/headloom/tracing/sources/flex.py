"""`flex_attention`, whose masks and scores are functions: read as masks and numbers, or refused.

A `mask_mod` is a rule, and is read cell by cell. A `score_mod` may be anything; read are a bias,
    score_mod(score, batch, head, query, key) = score + bias(batch, head, query, key),
of which minus infinity hides a key, and a soft cap, c tanh(score / c). That it is one of them is
tried in every cell, for several scores.
"""

from __future__ import annotations

from collections.abc import Callable, Mapping
from dataclasses import dataclass
from math import prod
from typing import Any

import torch
from torch import Tensor

from headloom.mechanism.parts import in_float64
from headloom.tracing.recording.score_terms import score_mask

#: Scores for which a `score_mod` is tried, beside 0.
_TRIED = (-3.0, 0.5, 7.0)
#: A score that a soft cap cuts to its limit.
_HUGE = 1e9
#: Cells of a mask or a bias that are read.
_MOST_CELLS = 2**30


class UnreadableRuleError(Exception):
    """A `score_mod` or `mask_mod` that is no rule which a trace can keep; says why."""


@dataclass(frozen=True, eq=False)
class FlexCall:
    """A call of torch's operator `flex_attention`, by the names of its arguments."""

    query: Tensor
    key: Tensor
    value: Tensor
    score_mod: Callable[..., Tensor]
    block_mask: tuple[Any, ...]
    scale: float
    kernel_options: Mapping[str, object]
    score_mod_other_buffers: tuple[object, ...] = ()
    mask_mod_other_buffers: tuple[object, ...] = ()

    @property
    def _sizes(self) -> tuple[int, int, int, int]:
        batch, heads, queries, _ = self.query.shape
        return batch, heads, queries, self.key.shape[2]

    def _cells(
        self,
        rule: Callable[..., Tensor],
        name: str,
        scores: tuple[Tensor, ...],
        rows: Tensor | None,
        buffers: tuple[object, ...],
    ) -> Tensor:
        """A rule for every cell of some rows, (batch, heads, queries, keys)."""
        device = self.query.device
        ranges = [torch.arange(size, device=device) for size in self._sizes]
        if rows is not None:
            ranges[2] = rows.to(device)
        sizes = [len(part) for part in ranges]
        places = [part.reshape([-1 if axis == own else 1 for axis in range(4)])
                  for own, part in enumerate(ranges)]  # fmt: skip
        try:
            cells = rule(*scores, *places, *buffers)
        except Exception as error:
            raise UnreadableRuleError(
                f"its {name} fails on tensors of places, {type(error).__name__}"
            ) from error
        cells = torch.as_tensor(cells, device=device)
        return cells.reshape((1,) * (4 - cells.ndim) + cells.shape).expand(sizes)

    def _allowed(self, rows: Tensor | None = None) -> Tensor:
        return self._cells(self.block_mask[-1], "mask_mod", (), rows, self.mask_mod_other_buffers)

    def _scored(self, score: Tensor, rows: Tensor | None = None) -> Tensor:
        """The `score_mod` of scores, (batch, heads, queries, keys), or one for all cells."""
        buffers = self.score_mod_other_buffers
        return self._cells(self.score_mod, "score_mod", (score,), rows, buffers)

    @torch.no_grad()
    def terms(self) -> dict[str, Any]:
        """The rules of the call, as arguments of a `LayerCall`.

        Raises: UnreadableRuleError: they are none that a trace can keep.
        """
        queries, keys = self._sizes[2:]
        if prod(self._sizes) > _MOST_CELLS:
            raise UnreadableRuleError(
                f"its rules have {' x '.join(map(str, self._sizes))} cells, too many to read one "
                "by one; trace a shorter input"
            )
        cells = _without_repeats(self._allowed())
        bias, softcap = self._bias_or_softcap()
        if bias is not None:
            cells = cells & (bias > -torch.inf)
            bias = _without_repeats(bias.masked_fill(bias == -torch.inf, 0))
            bias = bias if bool(bias.any()) else None
        read = score_mask(cells.expand(-1, -1, queries, keys), queries, keys)
        return {
            "mask": read.mask, "bias": bias, "softcap": softcap,
            "positions": "none" if bias is None else "bias",
            "is_causal": read.mask is not None and read.ahead is False,
        }  # fmt: skip

    def _bias_or_softcap(self) -> tuple[Tensor | None, float | None]:
        """The bias of the `score_mod`, or its soft cap; None and None: it changes nothing."""
        zero = torch.zeros((), device=self.query.device)
        bias = self._scored(zero)
        hidden = bias == -torch.inf
        if bool((bias == torch.inf).any()) or bool(bias.isnan().any()):
            raise UnreadableRuleError("its score_mod gives scores that are not finite")
        cap = None
        if not bool(hidden.any()) and not bool(bias.any()):
            limit = self._scored(zero + _HUGE)
            first = float(limit.flatten()[0]) if limit.numel() else _HUGE
            if first < _HUGE / 2 and bool((limit == first).all()):
                cap = first
        for score in _TRIED:
            expected = bias + score if cap is None else bias + cap * float(
                torch.tanh(torch.tensor(score / cap, dtype=torch.float64))
            )  # fmt: skip
            own = self._scored(zero + score)
            close = (own - expected).abs() <= 1e-5 * (1 + expected.abs())
            if not bool((close | (hidden & (own == -torch.inf))).all()):
                raise UnreadableRuleError(
                    "its score_mod is neither a bias that is added to the score, whatever the "
                    "score is, nor a soft cap c tanh(score / c)"
                )
        return (bias, None) if bool(bias.any()) else (None, cap)

    @torch.no_grad()
    def own_rows(self, rows: Tensor) -> Tensor:
        """The output of some rows by the formula, with the functions themselves."""
        query, key, value = map(in_float64, (self.query[:, :, rows], self.key, self.value))
        groups = query.shape[1] // key.shape[1]
        key, value = (tensor.repeat_interleave(groups, 1) for tensor in (key, value))
        products = ((query @ key.mT) * self.scale).float().to(self.query.device)
        scores = self._scored(products, rows).masked_fill(~self._allowed(rows), -torch.inf)
        scores = in_float64(scores)
        return (scores.softmax(-1).nan_to_num(0) @ value).float().to(self.query.device)


def beside_output() -> int:
    """How many tensors torch's operator gives beside the output: 2, before torch 2.9 one."""
    from torch.nn.attention import flex_attention

    return 2 if hasattr(flex_attention, "AuxRequest") else 1


def _without_repeats(cells: Tensor) -> Tensor:
    """Cells with a batch and heads of one, where every input and every head has the same."""
    for axis in (0, 1):
        first = cells.narrow(axis, 0, 1)
        if cells.shape[axis] > 1 and (cells.stride(axis) == 0 or bool((cells == first).all())):
            cells = first
    return cells
