"""`Comparisons`: two traces of a collection side by side, for the studio's view of them.

The measures are those of `headloom compare`: see `headloom.analysis.compare`. They are worked out
layer by layer while somebody looks; where all weights are not at hand or too many, they are
intervals.
"""

from __future__ import annotations

import dataclasses
import threading
from collections import OrderedDict
from collections.abc import Callable

import numpy as np

from headloom.analysis.compare import changed_edges, distance, first_difference, matched_layers
from headloom.analysis.interval import left_out
from headloom.errors import InputError
from headloom.formats.files import JsonObject, finite
from headloom.formats.trace import TraceLayer
from headloom.studio.arrays import Array
from headloom.studio.collection import Example
from headloom.studio.tiles import SIDE, Tile, as_tile

__all__ = ["Comparison", "Comparisons"]

#: Comparisons that are held; edges of a head that are listed.
_HELD, _EDGES = 8, 12
#: Layers whose rows are held: what each row left out.
_LAYERS = 2


class Comparison:
    """Two examples.

    layers: the numbers of the layers that are compared, in the first and in the second; none where
    they cannot be.
    """

    def __init__(self, first: Example, second: Example, turn: threading.Lock) -> None:
        self._examples = first, second
        self.problem = ""
        try:
            self.layers = matched_layers(first.trace, second.trace)
        except InputError as error:
            self.layers, self.problem = [], str(error).removeprefix("compare: ")
        self.difference = first_difference(first.trace, second.trace, (first.name, second.name))
        self.tiles = DifferenceTiles(first, second)
        self._turn = turn
        self._changes: list[JsonObject] = []
        self._state = "measuring" if self.layers else "known"
        self._measuring: threading.Thread | None = None
        self._stopped = threading.Event()
        self._starting = threading.Lock()
        self._reading = threading.Lock()
        self._pair: tuple[tuple[int, int], tuple[TraceLayer, TraceLayer]] | None = None

    def summary(self, wait: bool = False) -> JsonObject:
        """What is known of the pair.

            names       of both
            difference  the first token that differs, in a sentence; "": they are the same
            problem     why the two cannot be compared; "": they can
            layers      pairs of layers that are compared: their numbers in both, whether the
                        pictures of both are of whole matrices, how much each head changed:
                        [at least, at most], and by how much its mean entropy grew; null: not yet
            state       "measuring", "known", or "failed: ..." and why

        wait: until all is known, which may take a while.
        """
        with self._starting:
            if self._measuring is None and self.layers:
                self._measuring = threading.Thread(target=self._measure, daemon=True)
                self._measuring.start()
        if wait and self._measuring is not None:
            self._measuring.join()
        known = list(self._changes)
        return {
            "names": [example.name for example in self._examples],
            "difference": self.difference,
            "problem": self.problem,
            "layers": [
                {
                    "numbers": list(pair),
                    "exact": [
                        example.matrix.exact(number)
                        for example, number in zip(self._examples, pair, strict=True)
                    ],
                    **(known[place] if place < len(known) else {"change": None, "entropy": None}),
                }
                for place, pair in enumerate(self.layers)
            ],
            "state": self._state,
        }

    def edges(self, pair: tuple[int, int], head: int) -> JsonObject:
        """The edges of a head that changed most: what both weights lie between, in order."""
        with self._reading:
            if self._pair is None or self._pair[0] != pair:
                self._pair = pair, self._layers(pair)
            ours, theirs = self._pair[1]
            found = changed_edges(pair[0], ours, theirs, head, _EDGES)[:_EDGES]
        edges = [
            {"query": edge.query, "key": edge.key, "before": before, "after": after}
            for edge in found
            for before, after in [edge.bounds]
        ]
        content: JsonObject = finite({"edges": edges})
        return content

    def other(self, number: int) -> int | None:
        """The layer of the second that a layer of the first is compared with."""
        return dict(self.layers).get(number)

    def stop(self) -> None:
        """Work out no further layer."""
        self._stopped.set()

    def settle(self) -> None:
        """End what is worked out."""
        self.stop()
        if self._measuring is not None:
            self._measuring.join()

    def _layers(self, pair: tuple[int, int]) -> tuple[TraceLayer, TraceLayer]:
        """Layers of their own, so that what they read can be let go."""
        first, second = self._examples
        ours, theirs = first.trace.layers[pair[0]], second.trace.layers[pair[1]]
        return dataclasses.replace(ours), dataclasses.replace(theirs)

    def _measure(self) -> None:
        try:
            for pair in self.layers:
                # One after the other: several pairs at once would need the memory of all.
                with self._turn:
                    if self._stopped.is_set():
                        return
                    ours, theirs = self._layers(pair)
                    change = distance(ours, theirs)
                    grown = theirs.graph.entropy.mean(-1) - ours.graph.entropy.mean(-1)
                ends = zip(change.lower.tolist(), change.upper.tolist(), strict=True)
                found = {"change": [list(end) for end in ends], "entropy": grown.tolist()}
                self._changes.append(finite(found))
            self._state = "known"
        except Exception as error:
            # A layer that cannot be read must not take the pictures with it.
            self._state = f"failed: {error}"


class Comparisons:
    """The pairs that were asked for last."""

    def __init__(self) -> None:
        self._held: OrderedDict[tuple[str, str], Comparison] = OrderedDict()
        self._asking = threading.Lock()
        self._turn = threading.Lock()

    def of(self, numbers: tuple[str, str], examples: tuple[Example, Example]) -> Comparison:
        """The comparison of two examples by their numbers."""
        with self._asking:
            found = self._held.get(numbers)
            if found is None:
                found = self._held[numbers] = Comparison(*examples, self._turn)
                while len(self._held) > _HELD:
                    self._held.popitem(last=False)[1].stop()
            self._held.move_to_end(numbers)
            return found

    def settle(self) -> None:
        """End what is worked out."""
        for comparison in list(self._held.values()):
            comparison.settle()


class DifferenceTiles:
    """How the matrices of two traces differ, the second less the first, and how much is sure.

    Of each dot, a cell or the largest weight or the mass in a block of cells, both traces say what
    it lies between: one number where the trace has its whole matrix, else

        largest weight   from the largest kept one to at most the largest that one of its rows left
                         out
        mass             from the kept mass to that, and of each row what it left out in these keys,
                         at most min(all that it left out, keys times the largest weight left out)

    So the difference lies between low' - high and high' - low. A tile holds the number of these
    that is nearest to 0: how much the dot changed at least, with its sign; 0: that it changed is
    not sure, as where a weight is no number (NaN). Safe to ask from several threads.
    """

    def __init__(self, first: Example, second: Example) -> None:
        self._sides = tuple(_Bounds(example) for example in (first, second))

    def tile(
        self, layers: tuple[int, int], tile: Tile, go_on: Callable[[], bool] = lambda: True
    ) -> bytes:
        """A tile as `headloom.studio.tiles.MatrixTiles.tile`; layers: their numbers in both."""
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
