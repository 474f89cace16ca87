"""`flex_attention`: its mask and score functions, read as masks and numbers, or refused.

A `mask_mod` is read cell by cell. A `score_mod` may be any function; it is read if it is a bias,
    score_mod(score, batch, head, query, key) = score + bias(batch, head, query, key),
where minus infinity hides a key, or a soft cap, c tanh(score / c). This is tested in every cell,
for several scores.
"""

from __future__ import annotations

from collections.abc import Callable, Mapping
from dataclasses import dataclass
from math import prod
from typing import Any

import torch
from torch import Tensor

from headloom.mechanism.parts import in_float64
from headloom.tracing.arguments import Arguments
from headloom.tracing.recording.score_terms import score_mask

#: Scores on which a `score_mod` is tested, beside 0.
_TEST_SCORES = (-3.0, 0.5, 7.0)
#: A score that a soft cap cuts to its limit.
_HUGE = 1e9
#: Maximal number of cells of a mask or a bias.
_MOST_CELLS = 2**30


class UnreadableRuleError(Exception):
    """Error for a `score_mod` or `mask_mod` that a trace cannot keep, with the reason."""


@dataclass(frozen=True, eq=False)
class FlexCall:
    """Call of torch's operator `flex_attention`, by the names of its arguments."""

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
        self, rule: Callable[..., Tensor], name: str, scores: tuple[Tensor, ...],
        rows: Tensor | None, buffers: tuple[object, ...],
    ) -> Tensor:  # fmt: skip
        """Evaluate a function in every cell of some rows, (batch, heads, queries, keys)."""
        device = self.query.device
        ranges = [torch.arange(size, device=device) for size in self._sizes]
        if rows is not None:
            ranges[2] = rows.to(device)
        sizes = [len(part) for part in ranges]
        places = [part.reshape([-1 if axis == dim else 1 for axis in range(4)])
                  for dim, part in enumerate(ranges)]  # fmt: skip
        try:
            cells = rule(*scores, *places, *buffers)
        except Exception as error:
            raise UnreadableRuleError(
                f"its {name} fails on tensors of indices, {type(error).__name__}"
            ) from error
        cells = torch.as_tensor(cells, device=device)
        return cells.reshape((1,) * (4 - cells.ndim) + cells.shape).expand(sizes)

    def _allowed(self, rows: Tensor | None = None) -> Tensor:
        return self._cells(self.block_mask[-1], "mask_mod", (), rows, self.mask_mod_other_buffers)

    def _scored(self, score: Tensor, rows: Tensor | None = None) -> Tensor:
        """Apply the `score_mod` to scores, (batch, heads, queries, keys), or one for all cells."""
        buffers = self.score_mod_other_buffers
        return self._cells(self.score_mod, "score_mod", (score,), rows, buffers)

    @torch.no_grad()
    def terms(self) -> Arguments:
        """Return mask, bias and soft cap of the call, as arguments of a `LayerCall`.

        Raises: UnreadableRuleError: a trace cannot keep its functions.
        """
        queries, keys = self._sizes[2:]
        if prod(self._sizes) > _MOST_CELLS:
            raise UnreadableRuleError(
                f"its mask has {' x '.join(map(str, self._sizes))} cells, too many to read one by "
                "one; trace a shorter input"
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
        """Return the bias of the `score_mod`, or its soft cap; None and None: the identity."""
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
        for score in _TEST_SCORES:
            expected = bias + score if cap is None else bias + cap * float(
                torch.tanh(torch.tensor(score / cap, dtype=torch.float64))
            )  # fmt: skip
            result = self._scored(zero + score)
            close = (result - expected).abs() <= 1e-5 * (1 + expected.abs())
            if not bool((close | (hidden & (result == -torch.inf))).all()):
                raise UnreadableRuleError(
                    "its score_mod is neither a bias added to every score nor a soft cap "
                    "c tanh(score / c)"
                )
        return (bias, None) if bool(bias.any()) else (None, cap)

    @torch.no_grad()
    def own_rows(self, rows: Tensor) -> Tensor:
        """Return the output of some rows by the formula, with the original functions."""
        query, key, value = map(in_float64, (self.query[:, :, rows], self.key, self.value))
        groups = query.shape[1] // key.shape[1]
        key, value = (tensor.repeat_interleave(groups, 1) for tensor in (key, value))
        products = ((query @ key.mT) * self.scale).float().to(self.query.device)
        scores = self._scored(products, rows).masked_fill(~self._allowed(rows), -torch.inf)
        scores = in_float64(scores)
        return (scores.softmax(-1).nan_to_num(0) @ value).float().to(self.query.device)


def beside_output() -> int:
    """Return the number of tensors beside the output of torch's operator: 2; 1 before torch 2.9."""
    from torch.nn.attention import flex_attention

    return 2 if hasattr(flex_attention, "AuxRequest") else 1


def _without_repeats(cells: Tensor) -> Tensor:
    """Return cells with one input and one head where all inputs and all heads are equal."""
    for axis in (0, 1):
        first = cells.narrow(axis, 0, 1)
        if cells.shape[axis] > 1 and (cells.stride(axis) == 0 or bool((cells == first).all())):
            cells = first
    return cells
