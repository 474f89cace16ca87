"""`Comparison`: two traces side by side, for the view Compare.

The measures are those of `headloom compare`: see `headloom.analysis.compare`. They are computed
layer by layer, while requests come in.
"""

from __future__ import annotations

import threading
import time
from collections.abc import Callable
from typing import TYPE_CHECKING

from headloom.analysis.compare import changed_edges, distance, first_difference, matched_layers
from headloom.errors import InputError
from headloom.formats.files import JsonObject, finite
from headloom.formats.trace import TraceLayer
from headloom.studio.tiles import Tile, as_tile

if TYPE_CHECKING:
    from headloom.studio.collection import Example

#: Listed edges of a head; seconds after which an answer starts no further layer.
_EDGES, _PATIENCE = 12, 0.3


class Comparison:
    """Comparison of two examples.

    layers: pairs of layer numbers, first and second; empty where they cannot be compared.
    """

    def __init__(self, first: Example, second: Example) -> None:
        self._examples = first, second
        self.problem = ""
        try:
            self.layers = matched_layers(first.trace, second.trace)
        except InputError as error:
            self.layers, self.problem = [], str(error).removeprefix("compare: ")
        self.difference = first_difference(first.trace, second.trace, (first.name, second.name))
        self._changes: list[JsonObject] = []
        self._measuring = threading.Lock()

    def summary(self, wait: float = _PATIENCE) -> JsonObject:
        """Return the results so far, after `wait` seconds of work.

        names       of both
        difference  the first token that differs, in a sentence; "": none
        problem     why the two cannot be compared; "": they can
        layers      pairs of layers: their numbers in both, whether both have whole matrices, how
                    much each head changed, and by how much its mean entropy grew; null: not yet
        whole       whether all of them are known
        """
        end = time.monotonic() + wait
        with self._measuring:
            while len(self._changes) < len(self.layers):
                self._changes.append(self._measured(self.layers[len(self._changes)]))
                if time.monotonic() > end:
                    break
        unknown = {"change": None, "entropy": None}
        return {
            "names": [example.name for example in self._examples],
            "difference": self.difference,
            "problem": self.problem,
            "layers": [
                {
                    "numbers": list(pair),
                    "exact": all(
                        example.trace.layers[number].data.has_matrix
                        for example, number in zip(self._examples, pair, strict=True)
                    ),
                    **(self._changes[place] if place < len(self._changes) else unknown),
                }
                for place, pair in enumerate(self.layers)
            ],
            "whole": len(self._changes) == len(self.layers),
        }

    def edges(self, pair: tuple[int, int], head: int) -> JsonObject:
        """Return the edges of a head that changed most, in order."""
        edges = changed_edges(*self._layers(pair), head, _EDGES)[:_EDGES]
        names = ("query", "key", "before", "after")
        content: JsonObject = finite(
            {"edges": [{name: getattr(edge, name) for name in names} for edge in edges]}
        )
        return content

    def tile(
        self, layers: tuple[int, int], tile: Tile, go_on: Callable[[], bool] = lambda: True
    ) -> bytes:
        """Return a tile of the second matrix minus the first: see `MatrixTiles.tile`.

        Where a trace has kept edges only, others count as 0.
        """
        before, after = (
            example.matrix.numbers(number, tile, go_on)
            for example, number in zip(self._examples, layers, strict=True)
        )
        return as_tile(after - before)

    def _layers(self, pair: tuple[int, int]) -> tuple[TraceLayer, TraceLayer]:
        first, second = self._examples
        return first.layers.layer(pair[0]), second.layers.layer(pair[1])

    def _measured(self, pair: tuple[int, int]) -> JsonObject:
        ours, theirs = self._layers(pair)
        grown = theirs.graph.entropy.mean(-1) - ours.graph.entropy.mean(-1)
        content: JsonObject = finite(
            {"change": distance(ours, theirs)[0].tolist(), "entropy": grown.tolist()}
        )
        return content
