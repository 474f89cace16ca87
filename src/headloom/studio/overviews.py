"""`Overviews`: every head of a trace as a small picture of block means.

A picture is uint8, (blocks of queries, blocks of keys), at most 128 x 128 of them, or 32 x 32 where
thousands of heads are seen at once:

    shade = 255 mass^(1/4)      mass = mean weight of the block's cells times the keys of a block

so mass is the share of a row that such a block holds, 0 to 1, and the same in every block where a
row is even. With at most 128 tokens a block is a cell. The shade `NONE` is of blocks with a weight
that is not a number.

There are two kinds. `kept` are made of the kept edges, at once; what was not kept counts as 0.
`means` are of all cells: of kept edges where none was left out, else from queries and keys, in the
background where that takes long.
"""

from __future__ import annotations

import threading
import time
from typing import Literal

import numpy as np

from headloom.analysis.overview import block_sizes, edge_means, layer_means, matrix_means
from headloom.formats.trace import TraceData
from headloom.studio.arrays import Array, LayerCache
from headloom.studio.tiles import MatrixTiles

__all__ = ["MOST", "SMALL", "Overviews", "State", "many_dots", "shades"]

#: Blocks of a picture along each side, at most.
MOST = 128
#: The shade of a block with a weight that is not a number.
NONE = 1
#: Likewise where there are many heads, and dots of pictures of `MOST` from which there are.
SMALL, _MANY_DOTS = 32, 2**23
#: Cells of a layer up to which the means of all its heads are made in one pass.
_AT_ONCE = 2**24
#: Cells of a trace up to which its pictures are exact from the start: a tenth of a second.
_CHEAP_CELLS = 2**26

#: means: exact when they are asked for; later: exact after a while; kept: never exact.
State = Literal["means", "later", "kept"]


def shades(means: Array, keys_of_a_block: int) -> Array:
    """Block means as the numbers of a picture; one that is not a number is `NONE`."""
    mass = means.astype(np.float32) * np.float32(keys_of_a_block)
    none = np.isnan(mass)
    mass[~(mass > 0)] = 0
    np.minimum(mass, 1, out=mass)
    found: Array = np.rint(255 * np.sqrt(np.sqrt(mass))).astype(np.uint8)
    found[found == NONE] = 0  # less than 2e-9 of a row
    found[none] = NONE
    return found


def many_dots(trace: TraceData) -> bool:
    """Whether a trace has so many heads that all of their pictures are made small."""
    dots = 0
    for layer in trace.layers:
        heads, queries, keys = layer.shape
        rows, columns = block_sizes(queries, keys, MOST)
        dots += heads * -(-queries // rows) * -(-keys // columns)
    return dots > _MANY_DOTS


class Overviews:
    """The pictures of a trace, at most `most` blocks a side. Safe to ask from several threads."""

    def __init__(
        self, trace: TraceData, layers: LayerCache, matrix: MatrixTiles, most: int = MOST
    ) -> None:
        self._trace = trace
        self._most = most
        self._arrays = layers
        self._matrix = matrix
        self._kept: dict[int, bytes] = {}
        # By layer the pictures of its first heads.
        self._means: dict[int, list[bytes]] = {}
        self._queue: list[int] = []
        self._working = threading.Lock()
        self._queueing = threading.Lock()
        self._thread: threading.Thread | None = None
        self._stopped = threading.Event()
        # By layer what went wrong; whoever asks for it next is told, and asking again tries again.
        self._problems: dict[int, Exception] = {}
        self._complete = [layer.data.keeps_every_edge for layer in trace.layers]
        exact = [layer for number, layer in enumerate(trace.layers) if self._passes(number)]
        cells = sum(layer.shape[0] * layer.shape[1] * layer.shape[2] for layer in exact)
        self._cheap = cells <= _CHEAP_CELLS

    @property
    def layers(self) -> int:
        """How many layers there are."""
        return len(self._trace.layers)

    def state(self, number: int) -> State:
        """Which pictures of a layer there are to be."""
        if self._complete[number]:
            return "means"
        if self._passes(number):
            return "means" if self._cheap else "later"
        return "kept"

    def kept(self, number: int) -> bytes:
        """The pictures of the kept edges, of all heads."""
        if number not in self._kept:
            arrays = self._arrays[number]
            sizes = self._sizes(number)
            means = edge_means(arrays.keys, arrays.weights, arrays.length, sizes)
            none = np.isnan(arrays.lse)
            matrix = self._matrix.matrix(number) if none.any() and self._complete[number] else None
            if matrix is not None:
                means = layer_means(matrix, sizes).numpy()
            else:
                # Of such a row no edge was kept, and which keys the mask hides is not known.
                means[np.logical_or.reduceat(none, np.arange(0, none.shape[1], sizes[0]), 1)] = (
                    np.nan
                )
            self._kept[number] = shades(means, sizes[1]).tobytes()
        return self._kept[number]

    def means(self, number: int, wait: bool = False) -> tuple[bytes, bool]:
        """The exact pictures of a layer: those of its first heads so far, and whether that is all.

        wait: for all of them; else those that take long are begun, this layer's next.
        """
        state = self.state(number)
        assert state != "kept", number
        if self._complete[number]:
            return self.kept(number), True
        if not self._done(number):
            if wait or state == "means":
                self._work(number)
            else:
                self._begin(number)
        if (problem := self._problems.pop(number, None)) is not None:
            raise problem
        # One copy, as another thread may be adding to them.
        made = tuple(self._means.get(number, ()))
        return b"".join(made), len(made) == self._trace.layers[number].heads

    def quick(self, first: int, seconds: float = 0.1) -> tuple[bytes, bool]:
        """The pictures of a layer and of those after it that are made in so many seconds, and
        whether these are all: exact where that takes no longer, else of the kept edges.
        """
        found: list[bytes] = []
        end = time.monotonic() + seconds
        for number in range(first, self.layers):
            if found and time.monotonic() > end:
                return b"".join(found), False
            exact = self.state(number) == "means"
            found.append(self.means(number)[0] if exact else self.kept(number))
        return b"".join(found), True

    def best(self, first: int) -> tuple[bytes, bool]:
        """Likewise the best there are to be of a layer and of those after it, as far as they are
        known by now; the others are being worked out.
        """
        found: list[bytes] = []
        for number in range(first, self.layers):
            if self.state(number) == "kept":
                found.append(self.kept(number))
                continue
            exact, whole = self.means(number)
            if not whole:
                for later in reversed(range(number, self.layers)):
                    if self.state(later) == "later":
                        self.means(later)
                return b"".join(found), False
            found.append(exact)
        return b"".join(found), True

    def settle(self) -> None:
        """End what is being worked out."""
        self._stopped.set()
        if self._thread is not None:
            self._thread.join()

    def _passes(self, number: int) -> bool:
        """Whether a layer's pictures come from a pass over its matrix."""
        return not self._complete[number] and self._matrix.exact(number)

    def _sizes(self, number: int) -> tuple[int, int]:
        _, queries, keys = self._trace.layers[number].shape
        return block_sizes(queries, keys, self._most)

    def _done(self, number: int) -> bool:
        return len(self._means.get(number, ())) == self._trace.layers[number].heads

    def _begin(self, number: int) -> None:
        with self._queueing:
            # What was asked for last is seen now.
            self._queue = [number, *(other for other in self._queue if other != number)]
            if self._thread is None:
                self._thread = threading.Thread(target=self._run, daemon=True)
                self._thread.start()

    def _run(self) -> None:
        while True:
            with self._queueing:
                waiting = [number for number in self._queue if not self._done(number)]
                if not waiting or self._stopped.is_set():
                    self._thread = None if not self._stopped.is_set() else self._thread
                    return
            try:
                self._work(waiting[0], heads=1)
            except InterruptedError:
                return
            except Exception as error:
                with self._queueing:
                    self._problems[waiting[0]] = error
                    self._queue.remove(waiting[0])

    def _work(self, number: int, heads: int | None = None) -> None:
        """The next heads of a layer; None: all that there are."""
        layer = self._trace.layers[number]
        sizes = self._sizes(number)
        with self._working:
            made = self._means.setdefault(number, [])
            matrix = self._matrix.matrix(number)
            assert matrix is not None, number
            _, queries, keys = layer.shape
            if not made and layer.heads * queries * keys <= _AT_ONCE:
                every = shades(layer_means(matrix, sizes).numpy(), sizes[1])
                self._means[number] = [of_head.tobytes() for of_head in every]
                return
            last = layer.heads if heads is None else min(len(made) + heads, layer.heads)
            for head in range(len(made), last):
                means = matrix_means(matrix, head, sizes, lambda: not self._stopped.is_set())
                made.append(shades(means.numpy(), sizes[1]).tobytes())
