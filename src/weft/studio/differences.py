"""`DifferenceTiles`: how the matrices of two traces differ, and how much of that is sure.

Of each dot, a cell or the largest weight or the mass in a block of cells, both traces say what it
lies between: one number where the trace has its whole matrix, else

    largest weight   from the largest kept one to at most the largest that one of its rows left out
    mass             from the kept mass to that, and of each row what it left out in these keys,
                     at most min(all that it left out, keys times the largest weight left out)

So the difference lies between low' - high and high' - low. A tile holds the number of these that is
nearest to 0: how much the dot changed at least, with its sign; 0: that it changed is not sure, as
where a weight is no number (NaN).
"""

from __future__ import annotations

import threading
from collections import OrderedDict
from collections.abc import Callable

import numpy as np

from weft.analysis.interval import left_out
from weft.studio.arrays import Array
from weft.studio.collection import Example
from weft.studio.tiles import SIDE, Tile, as_tile

__all__ = ["DifferenceTiles"]

#: Layers whose rows are held: what each row left out.
_LAYERS = 2


class DifferenceTiles:
    """The tiles of two traces, of the second less the first. Safe to ask from several threads."""

    def __init__(self, first: Example, second: Example) -> None:
        self._sides = tuple(_Bounds(example) for example in (first, second))

    def tile(
        self, layers: tuple[int, int], tile: Tile, go_on: Callable[[], bool] = lambda: True
    ) -> bytes:
        """A tile as `weft.studio.tiles.MatrixTiles.tile`; layers: their numbers in both."""
        (low, high), (later_low, later_high) = (
            side.tile(number, tile, go_on) for side, number in zip(self._sides, layers, strict=True)
        )
        return as_tile(nearest(later_low - high, later_high - low))

    def takes_long(self, layers: tuple[int, int], tile: Tile) -> bool:
        """Whether a tile waits for a pass over a whole matrix: see `MatrixTiles`."""
        pairs = zip(self._sides, layers, strict=True)
        return any(side.matrix.takes_long(number, tile) for side, number in pairs)


def nearest(low: Array, high: Array) -> Array:
    """The number of an interval that is nearest to 0.

    >>> nearest(np.array([-2.0, -1.0, 1.0]), np.array([-1.0, 1.0, 2.0])).tolist()
    [-1.0, 0.0, 1.0]
    """
    found: Array = np.maximum(low, 0) + np.minimum(high, 0)
    return np.nan_to_num(found, copy=False, nan=0.0)


class _Bounds:
    """What the tiles of a trace lie between."""

    def __init__(self, example: Example) -> None:
        self._example = example
        self.matrix = example.matrix
        self._rows: OrderedDict[int, tuple[Array, Array]] = OrderedDict()
        self._reading = threading.Lock()

    def tile(self, number: int, tile: Tile, go_on: Callable[[], bool]) -> tuple[Array, Array]:
        """The least and the most that the numbers of a tile can be."""
        low = self.matrix.numbers(number, tile, go_on)
        if self.matrix.exact(number):
            return low, low
        size = 2**tile.level
        masses, largest = (
            part[tile.head, tile.row * SIDE * size :][: len(low) * size]
            for part in self._left_out(number)
        )
        starts = np.arange(0, len(masses), size)
        if tile.of == "max" or tile.level == 0:
            return low, np.maximum(low, np.maximum.reduceat(largest, starts)[:, None])
        counts = np.minimum(len(masses) - starts, size)
        more = np.add.reduceat(np.minimum(masses, size * largest), starts) / counts
        return low, low + more[:, None]

    def _left_out(self, number: int) -> tuple[Array, Array]:
        """Of each row of a layer the mass that was left out, and its largest weight at most."""
        with self._reading:
            if number not in self._rows:
                graph = self._example.trace.layers[number].data.graph().detach().cpu()
                masses, largest = (part.float().numpy() for part in left_out(graph))
                self._rows[number] = masses, largest
                while len(self._rows) > _LAYERS:
                    self._rows.popitem(last=False)
            self._rows.move_to_end(number)
            return self._rows[number]
