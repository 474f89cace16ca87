"""`Weighted`: the weights of one layer, weighed by the gradient of a prediction.

    A = mean over heads of max(0, dy/dP * P)    elementwise

A model need not form its weights for that: their gradient is what the output's gradient says,

    dy/dp_ij = (dy/do_i) . v_j

so cells are made of queries, keys, values and dy/do, a tile at a time, in memory linear in the
length.
Source: Chefer, Gur and Wolf 2021, equation 5.
"""

from __future__ import annotations

from collections.abc import Iterator
from dataclasses import dataclass, field

import torch
from torch import Tensor

from headloom.analysis.effects.head_outputs import Reached
from headloom.mechanism.masks import causal
from headloom.mechanism.matrix.attention_matrix import AttentionMatrix
from headloom.mechanism.positions import Shaw
from headloom.mechanism.shapes import repeat_kv_heads

__all__ = ["Weighted"]

#: Cells of a layer that are kept, where there are no more; of longer ones they are made again.
KEPT_CELLS = 2**24
#: Rows and columns of a tile: two of them stay in the second cache of a core.
TILE = (256, 1024)


@dataclass(eq=False)
class Weighted:
    """A of one layer, (queries, keys), never formed whole.

    name, kind: as a trace names them.
    matrix: the weights; values: (heads, keys, value_depth); gradient: dy/do, (heads, queries,
    value_depth).
    causal: whether no query looks ahead, by the rule of its mask.
    value_table: of relative positions that are added to values, and their offset.
    """

    name: str
    kind: str
    matrix: AttentionMatrix
    values: Tensor
    gradient: Tensor
    causal: bool = False
    value_table: tuple[Tensor, int] | None = None
    _kept: Tensor | None = field(default=None, repr=False)

    @classmethod
    def of(cls, reached: Reached, gradient: Tensor) -> Weighted:
        """The layer of one call, which was asked how it scores.

        gradient: dy/do, (1, heads, queries, value_depth).
        """
        how = reached.scoring
        assert how is not None
        matrix = reached.matrix()
        table = None
        if isinstance(how.relative, Shaw) and how.relative.value_table is not None:
            table = how.relative.value_table.detach(), how.relative.offset
        values = reached.heads.values.detach().to(matrix.queries.dtype)
        return cls(
            reached.path,
            reached.kind,
            matrix,
            repeat_kv_heads(values, matrix.shape[0])[0],
            gradient[0].detach().to(values.dtype),
            how.mask == causal(),
            table,
        )

    @property
    def shape(self) -> tuple[int, int]:
        """(queries, keys)."""
        return self.matrix.shape[1:]

    def dense(self) -> Tensor:
        """The whole of A."""
        found = self.values.new_zeros(self.shape)
        for rows, columns, tile in self._tiles(range(self.shape[0])):
            found[rows, columns] = tile
        return found

    def __matmul__(self, vectors: Tensor) -> Tensor:
        """``A x``; vectors: (keys, columns)."""
        found = vectors.new_zeros(self.shape[0], vectors.shape[1])
        for rows, columns, tile in self._kept_tiles(range(self.shape[0])):
            found[rows] += tile @ vectors[columns]
        return found

    def transposed(self, vectors: Tensor) -> Tensor:
        """``A^T y``; vectors: (queries, columns)."""
        found = vectors.new_zeros(self.shape[1], vectors.shape[1])
        # Rows that nobody asks about are not made: of a last layer, mostly all but one.
        asked = vectors.any(1).nonzero()[:, 0]
        if len(asked):
            for rows, columns, tile in self._kept_tiles(range(int(asked[0]), int(asked[-1]) + 1)):
                found[columns] += tile.T @ vectors[rows]
        return found

    def _kept_tiles(self, wanted: range) -> Iterator[tuple[slice, slice, Tensor]]:
        queries, keys = self.shape
        if queries * keys > KEPT_CELLS:
            yield from self._tiles(wanted)
            return
        if self._kept is None:
            self._kept = self.dense()
        yield slice(0, queries), slice(0, keys), self._kept

    def _tiles(self, wanted: range) -> Iterator[tuple[slice, slice, Tensor]]:
        """A in tiles, those alone that hold something."""
        heads, _, keys = self.matrix.shape
        high, wide = TILE
        for top in range(wanted.start, wanted.stop, high):
            rows = range(top, min(top + high, wanted.stop))
            # Nothing that is causal is ahead of its row.
            width = min(keys, rows.stop) if self.causal else keys
            for left in range(0, width, wide):
                columns = range(left, min(left + wide, width))
                tile = self._tile(rows, columns)
                here, there = slice(rows.start, rows.stop), slice(columns.start, columns.stop)
                yield here, there, tile.div_(max(heads, 1))

    def _tile(self, rows: range, columns: range) -> Tensor:
        """The sum over heads of the cells of A, times the heads."""
        here, there = slice(rows.start, rows.stop), slice(columns.start, columns.stop)
        total = self.values.new_zeros(len(rows), len(columns))
        for head in range(len(self.values)):
            given = self.gradient[head, here]
            slope = given @ self.values[head, there].T
            if self.value_table is not None:
                slope += self._of_positions(head, given, rows, columns)
            total.addcmul_(self.matrix[head, here, there], slope.clamp_(min=0))
        return total

    def _of_positions(self, head: int, given: Tensor, rows: range, columns: range) -> Tensor:
        """What the values that relative positions add to say of each cell."""
        assert self.value_table is not None
        table, offset = self.value_table
        tables = table.to(given.dtype).reshape(-1, *table.shape[-2:])
        own = tables[min(head, len(tables) - 1)]
        clip = len(own) // 2
        distance = self._places(columns) - (self._places(rows)[:, None] + offset)
        slopes: Tensor = given @ own.T
        return slopes.gather(1, distance.clamp(-clip, clip) + clip)

    def _places(self, places: range) -> Tensor:
        return torch.arange(places.start, places.stop, device=self.values.device)
