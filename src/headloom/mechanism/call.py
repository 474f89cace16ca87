"""One attention call, checked: what every backend receives."""

from __future__ import annotations

from dataclasses import dataclass

from torch import Tensor

from headloom.mechanism.mask import Mask
from headloom.mechanism.relative import Relative
from headloom.mechanism.scores import Score
from headloom.mechanism.shapes import Keys, Queries, Scores, Values

__all__ = ["AttentionCall"]


@dataclass(eq=False, slots=True)
class AttentionCall:
    """The arguments of one attention call, with a batch dimension and every default filled in.

    Never changed; not frozen, since a frozen class takes three times as long to make.

    The scores of a call are

        softcap(scale * (score(q, k) + relative key scores)) + relative bias + bias

    with minus infinity where the mask hides a key. A cap comes before the biases, so that a bias
    of minus infinity hides a key for good.
    """

    queries: Queries
    keys: Keys
    values: Values
    score: Score
    scale: float
    mask: Mask | None = None
    relative: Relative | None = None
    bias: Scores | None = None  # each dimension whole or 1
    softcap: float | None = None
    sinks: Tensor | None = None  # (heads,)
    dropout: float = 0.0
    # None: nobody asks what keys receive; else of how many last queries by themselves, 0 for none.
    received: int | None = None

    @property
    def heads(self) -> int:
        """Heads of the queries."""
        return self.queries.shape[1]

    @property
    def symmetric(self) -> bool:
        """Whether score(i, j) = score(j, i): one sequence looks at itself by a symmetric score."""
        return (
            self.queries is self.keys
            and self.score.symmetric
            and self.relative is None
            and self.bias is None
        )
