"""What is lost where keys are thrown away, from exact weights a block of rows at a time.

With S the keys that a query may still look at, of all that it would see:

    lost_i = sum_{j not in S} P_ij                        the mass that goes
    P'_ij = P_ij / (sum of those left) for j in S, else 0 what the softmax then gives
    change_i = |o'_i - o_i| / |o_i|,  o = P V, o' = P' V  of the head's output; of the layer's
                                                          output with o W_O in place of o

All of one layer at a time: its queries and keys are those that the whole cache gave. What earlier
layers would have handed on after their own losses is not in it.
"""

from __future__ import annotations

from collections.abc import Iterator, Sequence

import numpy as np
import torch
from torch import Tensor

from weft.mechanism.matrix.attention_matrix import AttentionMatrix

__all__ = ["OutputChange", "best_sets_lost", "lost_mass", "renormalised", "row_blocks"]

#: Cells of the weights of all heads that are formed at a time: 16 MiB of float32.
BLOCK_CELLS = 2**22


def row_blocks(matrix: AttentionMatrix, rows: range) -> Iterator[range]:
    """Rows of a layer, so many at a time that the weights of all heads stay small."""
    heads, _, keys = matrix.shape
    size = max(1, BLOCK_CELLS // max(1, heads * keys))
    for start in range(rows.start, rows.stop, size):
        yield range(start, min(start + size, rows.stop))


def lost_mass(weights: Tensor, held: Tensor) -> Tensor:
    """The mass that queries have on keys that are gone.

    Args:
        weights: (heads, rows, keys), of the heads that share keys.
        held: (..., keys) bool, for each choice the keys that are there.

    Returns: (..., heads, rows).
    """
    heads, rows, keys = weights.shape
    gone = (~held).reshape(-1, keys).to(weights.dtype)
    lost = weights.reshape(-1, keys) @ gone.T
    return lost.T.reshape(*held.shape[:-1], heads, rows)


def best_sets_lost(weights: Tensor, budgets: Sequence[int]) -> Tensor:
    """What each query loses where it keeps its best set of keys, chosen anew for it alone.

        S_i = the b keys with the largest sum of P_ij over the heads that share keys

    No cache of b keys for these heads loses less in their sum: a bound for every policy.

    Args:
        weights: (heads, rows, keys), of the heads that share keys.
        budgets: keys that stay.

    Returns: (budgets, heads, rows).
    """
    heads, rows, keys = weights.shape
    together = weights.sum(0)
    losses = weights.new_zeros(len(budgets), heads, rows)
    fewer = [budget for budget in budgets if budget < keys]
    if not fewer:
        return losses
    # The least weight that stays, by selection: NumPy's is many times as fast as a sort.
    places = [keys - budget for budget in fewer]
    partly = torch.from_numpy(np.partition(together.numpy(), sorted(set(places)), -1))
    for place, budget in enumerate(budgets):
        if budget >= keys:
            continue
        least = partly[:, keys - budget, None]
        gone = together < least
        # Keys of one weight with the last that stays: as many go as are too many, the first ones.
        # Of weight 0 they may all stay.
        tied = (together == least) & (least > 0)
        many = keys - gone.sum(-1) - budget
        rows_tied = (many > 0) & tied.any(-1)
        if bool(rows_tied.any()):
            some = tied[rows_tied]
            gone[rows_tied] |= some & (some.cumsum(-1) <= many[rows_tied, None])
        losses[place] = (weights * gone).sum(-1)
    return losses


class OutputChange:
    """How far outputs move, for the rows of a block.

    Args:
        weights: (heads, rows, keys), whole.
        values: (kv_heads, keys, value_depth).
        projection: W_O, (heads, value_depth, width); None: it is not known.
        beside: (heads, rows), the weight of a sink, which no key has; None: there is none.
    """

    def __init__(
        self, weights: Tensor, values: Tensor, projection: Tensor | None, beside: Tensor | None
    ) -> None:
        self._weights, self._projection, self._beside = weights, projection, beside
        self._values = values[:, : weights.shape[2]].to(weights.dtype)
        self._output = self._of(weights)

    def _of(self, weights: Tensor) -> Tensor:
        """(heads, rows, keys) -> (heads, rows, value_depth)."""
        heads, rows, keys = weights.shape
        grouped = weights.reshape(len(self._values), -1, keys) @ self._values
        return grouped.reshape(heads, rows, -1)

    def __call__(self, gone: Tensor) -> tuple[Tensor, Tensor | None]:
        """The relative change of each head's output, (heads, rows), and of the layer's, (rows,).

        gone: bool, (kv_heads, keys) or (kv_heads, rows, keys).
        """
        by_heads = gone.repeat_interleave(len(self._weights) // len(gone), 0)
        mask = by_heads if by_heads.ndim == 3 else by_heads[:, None]
        left = renormalised(self._weights.masked_fill(mask, 0), self._beside)
        moved = self._of(left) - self._output
        heads = _relative(moved, self._output)
        if self._projection is None:
            return heads, None
        projected = [
            torch.einsum("hrd,hdw->rw", part, self._projection) for part in (moved, self._output)
        ]
        return heads, _relative(*projected)


def renormalised(left: Tensor, beside: Tensor | None) -> Tensor:
    """The weights that the softmax gives over the keys that are left.

        P'_ij = P_ij / (sum over the keys left + the sink's)

    Not by 1 less the mass lost, of which few digits are right where nearly all is lost.

    Args: left: (..., keys), 0 where a key is gone; beside: (...), the sink's, or None.
    """
    share = left.sum(-1)
    share = share if beside is None else share + beside
    # Where even a query's own key has a weight that float32 rounds to 0, nothing is left.
    return left / share.clamp(min=torch.finfo(share.dtype).tiny)[..., None]


def _relative(moved: Tensor, whole: Tensor) -> Tensor:
    """|moved| / |whole| of the last dimension; 0 where nothing moved."""
    size = moved.norm(dim=-1)
    return torch.where(size == 0, size, size / whole.norm(dim=-1))
