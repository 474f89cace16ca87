"""`Relative`: positions that enter the scores by the distance, and what can be asked of them all.

The kinds that headloom knows by name are in `headloom.mechanism.positions`.
"""

from __future__ import annotations

from abc import ABC, abstractmethod
from dataclasses import dataclass
from typing import ClassVar, NamedTuple, Self

import torch
from torch import Tensor

from headloom.errors import InputError
from headloom.mechanism.parts import changed
from headloom.mechanism.shapes import whole_number

__all__ = ["ByDistance", "DistanceBias", "DistanceTables", "Relative", "distances"]


def distances(rows: range, keys: int, offset: int, device: torch.device) -> Tensor:
    """The distance ``j - (i + offset)`` from each query to each key, (rows, keys).

    >>> distances(range(2), 3, 0, torch.device("cpu"))
    tensor([[ 0,  1,  2],
            [-1,  0,  1]])
    """
    position = torch.arange(rows.start, rows.stop, device=device) + offset
    return torch.arange(keys, device=device)[None, :] - position[:, None]


class DistanceTables(NamedTuple):
    """Embeddings of distances, clipped to [-clip, clip]: q . a^K joins q . k, and a^V the values.

    keys: a^K, (2 clip + 1, depth) or (heads, 2 clip + 1, depth). values: a^V, likewise, or None.
    Source: Shaw et al. 2018.
    """

    keys: Tensor
    values: Tensor | None


class Relative(ABC):
    """Relative positions as `headloom.attention` takes them: what they add to scores and output.

    A new kind is a frozen dataclass with an `offset`. One whose scores take a bias by distance
    derives from `DistanceBias` and says the bias of a distance, and of one head; the kernels, the
    weight matrix and traces then know it. Any other overrides what it adds.
    """

    offset: int

    def __post_init__(self) -> None:
        offset = whole_number(type(self).__name__, "offset", self.offset)
        object.__setattr__(self, "offset", offset)  # NumPy's whole numbers become Python's

    def check(self, heads: int, depth: int, value_depth: int) -> None:  # noqa: B027
        """Raise a ShapeError where the tables do not fit a call of these sizes."""

    def key_scores(self, queries: Tensor, rows: range, keys: int) -> Tensor | None:
        """What is added to the raw scores and scaled with them.

        queries: (batch, heads, rows, depth). Returns: (batch, heads, rows, keys), or None.
        """
        return None

    def bias(self, rows: range, keys: int, device: torch.device) -> Tensor | None:
        """What is added to the scaled scores, (heads or 1, rows, keys), or None."""
        return None

    def value_output(self, weights: Tensor, rows: range) -> Tensor | None:
        """What is added to the output.

        weights: (batch, heads, rows, keys). Returns: (batch, heads, rows, value_depth), or None.
        """
        return None

    @property
    def only_bias(self) -> bool:
        """Whether a bias by distance is all they add: `by_distance` then gives it."""
        return False

    def by_distance(self, queries: int, keys: int) -> ByDistance | None:
        """All they add, as a bias for each distance; None: it depends on more than the distance."""
        return None

    def tables(self) -> DistanceTables | None:
        """All they add, as embeddings of distances; None: it is something else."""
        return None

    def in_scores(self) -> Relative:
        """What of them enters the scores, for an `AttentionMatrix`.

        Raises: InputError: they are no bias, and say nothing of it.
        """
        if self.only_bias:
            return self
        raise self._says_not("in_scores")

    def moved(self, by: int) -> Self:
        """The same for queries whose positions are so many higher."""
        return changed(self, offset=self.offset + by)

    def of_head(self, head: int, heads: int) -> Relative:
        """Those of one of so many heads, for a call of that head alone.

        Raises: InputError: they say nothing of it.
        """
        raise self._says_not("of_head")

    def _says_not(self, method: str) -> InputError:
        name = type(self).__name__
        return InputError(
            f"{name}: it has no {method}, which a matrix asks for. Write {name}.{method}."
        )


class DistanceBias(Relative):
    """Relative positions that add a bias to the scores, which the distance alone decides.

    looked_up: whether every bias is one of the numbers of a table, and none is made of a number and
        the distance, which multiplies the number's gradient.
    """

    looked_up: ClassVar[bool] = False

    @abstractmethod
    def bias_of(self, distance: Tensor) -> Tensor:
        """The bias of distances ``j - i``, integers (...); (heads or 1, ...)."""

    def bias(self, rows: range, keys: int, device: torch.device) -> Tensor:
        """See Relative.bias."""
        return self.bias_of(distances(rows, keys, self.offset, device))

    @property
    def only_bias(self) -> bool:
        """Yes: see Relative.only_bias."""
        return True

    def by_distance(self, queries: int, keys: int) -> ByDistance:
        """See Relative.by_distance."""
        # In the order of the keys, the last query sees distances from 1 - queries on.
        distance = torch.arange(1 - queries, max(keys, 1 - queries)) - self.offset
        return ByDistance(self.bias_of(distance), queries - 1)

    def of_head(self, head: int, heads: int) -> Relative:
        """See Relative.of_head."""
        return _BiasOfHead(self, head, self.offset)


@dataclass(frozen=True, eq=False)
class _BiasOfHead(DistanceBias):
    """The bias of one head among those of a call."""

    relative: DistanceBias
    head: int
    offset: int = 0

    def bias_of(self, distance: Tensor) -> Tensor:
        """See DistanceBias.bias_of."""
        bias = self.relative.bias_of(distance)
        return bias if len(bias) == 1 else bias[self.head, None]


@dataclass(frozen=True, eq=False)
class ByDistance(DistanceBias):
    """A bias for each distance: ``bias_ij = values[zero + j - i - offset]``.

    values: (heads or 1, distances).
    """

    looked_up: ClassVar[bool] = True

    values: Tensor
    zero: int
    offset: int = 0

    def bias_of(self, distance: Tensor) -> Tensor:
        """See DistanceBias.bias_of."""
        return self.values.to(distance.device)[:, distance + self.zero]

    def transposed(self) -> ByDistance:
        """The bias of (j, i) for (i, j), of a call whose distances are those of the values."""
        return ByDistance(self.values.flip(1), self.values.shape[1] - 1 - self.zero, -self.offset)
