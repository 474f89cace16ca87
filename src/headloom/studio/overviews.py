"""`Overviews`: every head of a trace as a small picture of block means.

A picture is uint8, (blocks of queries, blocks of keys), at most 128 x 128, or 32 x 32 where
thousands of heads are shown at once:

    shade = 255 mass^(1/4)      mass = mean weight of the block's cells times the keys of a block

so mass is a row's share in a block, 0 to 1, equal in all blocks for a uniform row. With at most
128 tokens a block is a cell. The shade `NONE` marks blocks with a weight that is not a number.

There are two kinds. `kept` use the kept edges and are ready at once; other edges count as 0.
`means` use all cells: the kept edges where all were kept, else queries and keys.
"""

from __future__ import annotations

import math
import threading
from collections.abc import Callable
from typing import Literal

import numpy as np

from headloom.analysis.overview import block_sizes, edge_means, layer_means, matrix_means
from headloom.studio.arrays import Array, Layers

#: The shade of a block with a weight that is not a number.
NONE = 1
#: Blocks of a picture along each side at most; SMALL where there would be more than _MANY_DOTS.
MOST, SMALL, _MANY_DOTS = 128, 32, 2**23
#: Layers of up to this many cells have the means of all heads computed in one pass.
_AT_ONCE = 2**24
#: Traces of up to this many cells have exact pictures from the start: a tenth of a second.
_CHEAP_CELLS = 2**26

#: means: exact at once; later: the kept edges at once, exact after a while; kept: never exact.
State = Literal["means", "later", "kept"]


def shades(means: Array, keys_of_a_block: int) -> Array:
    """Convert block means to the shades of a picture; NaN becomes `NONE`."""
    mass = means.astype(np.float32) * np.float32(keys_of_a_block)
    none = np.isnan(mass)
    mass[~(mass > 0)] = 0
    np.minimum(mass, 1, out=mass)
    picture: Array = np.rint(255 * np.sqrt(np.sqrt(mass))).astype(np.uint8)
    picture[picture == NONE] = 0  # less than 2e-9 of a row
    picture[none] = NONE
    return picture


class Overviews:
    """Pictures of a trace; thread-safe.

    side: blocks along a side at most.
    """

    def __init__(self, layers: Layers) -> None:
        self._layers = layers
        self._kept: dict[int, bytes] = {}
        self._means: dict[int, bytes] = {}
        self._working = threading.Lock()
        known = layers.trace.layers
        dots = 0
        for layer in known:
            heads, queries, keys = layer.shape
            rows, columns = block_sizes(queries, keys, MOST)
            dots += heads * -(-queries // rows) * -(-keys // columns)
        self.side = SMALL if dots > _MANY_DOTS else MOST
        self._complete = [layer.data.keeps_every_edge for layer in known]
        passes = [
            math.prod(layer.shape)
            for layer, complete in zip(known, self._complete, strict=True)
            if layer.data.has_matrix and not complete
        ]
        self._cheap = sum(passes) <= _CHEAP_CELLS

    def state(self, number: int) -> State:
        """Return which pictures a layer gets."""
        if self._complete[number]:
            return "means"
        if self._layers.trace.layers[number].data.has_matrix:
            return "means" if self._cheap else "later"
        return "kept"

    def kept(self, number: int) -> bytes:
        """Return the pictures of all heads from the kept edges."""
        if number not in self._kept:
            arrays, sizes = self._layers[number], self._sizes(number)
            means = edge_means(arrays.keys, arrays.weights, arrays.length, sizes)
            none = np.isnan(arrays.lse)
            matrix = None
            if none.any() and self._complete[number]:
                matrix = self._layers.matrix(number)
            if matrix is not None:
                means = layer_means(matrix, sizes).numpy()
            else:
                # Such a row kept no edge, and its mask is not known.
                starts = np.arange(0, none.shape[1], sizes[0])
                means[np.logical_or.reduceat(none, starts, 1)] = np.nan
            self._kept[number] = shades(means, sizes[1]).tobytes()
        return self._kept[number]

    def means(self, number: int, go_on: Callable[[], bool] = lambda: True) -> bytes:
        """Return the exact pictures of all heads of a layer whose state is not "kept".

        go_on: called now and then. Raises: InterruptedError: it returned False.
        """
        if self._complete[number]:
            return self.kept(number)
        with self._working:
            if number not in self._means:
                self._means[number] = self._made(number, go_on)
            return self._means[number]

    def _made(self, number: int, go_on: Callable[[], bool]) -> bytes:
        matrix, sizes = self._layers.matrix(number), self._sizes(number)
        assert matrix is not None, number
        if math.prod(matrix.shape) <= _AT_ONCE:
            return shades(layer_means(matrix, sizes).numpy(), sizes[1]).tobytes()
        heads = range(matrix.shape[0])
        means = (matrix_means(matrix, head, sizes, go_on).numpy() for head in heads)
        return b"".join(shades(of_head, sizes[1]).tobytes() for of_head in means)

    def _sizes(self, number: int) -> tuple[int, int]:
        _, queries, keys = self._layers.trace.layers[number].shape
        return block_sizes(queries, keys, self.side)
