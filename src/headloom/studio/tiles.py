"""`MatrixTiles`: any part of a layer's weight matrices as small tiles, from cells to the whole.

A tile is 256 x 256 numbers. At level 0 these are cells, recomputed exactly from the stored queries,
keys and log-sum-exp; at level L blocks of 2^L x 2^L cells, of which a tile shows

    max     the largest weight
    mass    the mean mass of the block's rows in it

From level 4 on (a higher one above 131,072 tokens), tiles come from one pass over the whole matrix
of a head; passes of the last heads stay in memory. A pass goes band by band of rows: a tile waits
only for its own rows, and the bands of a cancelled request are reused. Where a trace has no queries
and keys, tiles show the kept edges only.
"""

from __future__ import annotations

import threading
from collections import OrderedDict
from collections.abc import Callable
from dataclasses import dataclass

import numpy as np

from headloom.analysis.worked_row import worked_row
from headloom.formats.files import JsonObject
from headloom.studio.arrays import Array, LayerArrays, Layers

SIDE = 256
#: The level from which tiles come from one pass over the whole; a higher one where a pass would
#: have more than so many blocks.
_BASE, _MOST_BLOCKS = 4, 2**26
#: Heads whose pass stays in memory.
_HEADS = 16
#: Cells of a band of a pass: some tenths of a second.
_BAND_CELLS = 2**27
#: Bytes of passes at most, besides the last: at 131,072 tokens one takes 512 MiB.
_HELD = 2**29


def top_level(queries: int, keys: int) -> int:
    """Return the level at which one tile shows the whole matrix."""
    level = 0
    while max(queries, keys) > SIDE << level:
        level += 1
    return level


@dataclass(frozen=True)
class Tile:
    """Coordinates of a tile in a layer; summary: "max" or "mass" of the cells of a block."""

    head: int
    summary: str
    level: int
    row: int
    column: int


@dataclass(frozen=True)
class _Pass:
    """Largest weights and masses of the blocks of a whole matrix, at the base level.

    size: side of a block. tall: rows of blocks in a band. done: which bands are computed.
    """

    largest: Array
    masses: Array
    size: int
    tall: int
    done: Array


class MatrixTiles:
    """Tiles of a trace; thread-safe."""

    def __init__(self, layers: Layers) -> None:
        self._layers = layers
        self._passes: OrderedDict[tuple[int, int], _Pass] = OrderedDict()
        self._passing = threading.Lock()
        self._keeping = threading.Lock()
        self._working = threading.Semaphore(2)

    def tile(self, number: int, tile: Tile, go_on: Callable[[], bool] = lambda: True) -> bytes:
        """Return a tile as float16, little-endian, (rows, columns), cut off at the matrix's end.

        go_on: called now and then in a long pass. Raises: InterruptedError: it returned False.
        """
        return as_tile(self.numbers(number, tile, go_on))

    def numbers(self, number: int, tile: Tile, go_on: Callable[[], bool] = lambda: True) -> Array:
        """Return a tile, float32."""
        _, queries, keys = self._layers.trace.layers[number].shape
        base = _base_level(queries, keys)
        factor = 1 << max(tile.level - base, 0)
        size = 1 << min(tile.level, base)
        #: Blocks of the tile's level, or of the base level where the tile's is coarser.
        down, across = (
            range(place * SIDE * factor, min((place + 1) * SIDE * factor, -(-length // size)))
            for place, length in ((tile.row, queries), (tile.column, keys))
        )
        rows = range(down.start * size, min(down.stop * size, queries))
        if tile.level < base:
            columns = range(across.start * size, min(across.stop * size, keys))
            with self._working:
                largest, masses = self._blocks(number, tile.head, rows, columns, size)
            return largest if tile.summary == "max" else masses
        whole = self._passed(number, tile.head, down, go_on)
        blocks = whole.largest if tile.summary == "max" else whole.masses
        part = blocks[down.start : down.stop, across.start : across.stop]
        return _coarser(part, size, factor, tile.summary, len(rows))

    def cell(self, number: int, head: int, row: int, column: int) -> JsonObject:
        """Return one weight, its score, and its rank in its row, from 1."""
        arrays = self._layers[number]
        lse, count = float(arrays.lse[head, row]), int(arrays.count[head, row])
        known: JsonObject = {"count": count, "rest": None, "hidden": False, "rank": None}
        matrix = self._layers.matrix(number)
        if matrix is None:
            return known | _kept_cell(arrays, head, row, column, lse)
        # Weights below the smallest float32 are all 0: rank by scores.
        scored = worked_row(self._layers.layer(number), head, row)
        if not bool(scored.allowed[column]):
            return known | {"weight": None, "score": None, "hidden": True}
        score = scored.scores[column]
        return known | {
            "weight": float(matrix[head, row, column]),
            "score": float(score) if bool(score.isfinite()) else None,
            "rank": int((scored.scores > score).sum()) + 1,
        }

    def _blocks(
        self, number: int, head: int, rows: range, columns: range, size: int
    ) -> tuple[Array, Array]:
        """Return the largest weight and the mean row mass of each block of rows and columns."""
        matrix = self._layers.matrix(number)
        if matrix is None:
            maxima, sums = _kept_blocks(self._layers[number], head, rows, columns, size)
        else:
            queries, keys = slice(rows.start, rows.stop), slice(columns.start, columns.stop)
            maxima, sums = (
                part.numpy() for part in matrix.block_summaries(head, size, queries, keys)
            )
        return maxima, sums / _rows_of(len(rows), size)[:, None]

    def _passed(self, number: int, head: int, rows: range, go_on: Callable[[], bool]) -> _Pass:
        """Return the pass of a head, computed for some rows of blocks."""
        whole = self._held(number, head)
        for band in range(rows.start // whole.tall, -(-rows.stop // whole.tall)):
            if whole.done[band]:
                continue
            with self._passing:
                if not go_on():
                    raise InterruptedError
                # Another thread may have computed it.
                if not whole.done[band]:
                    self._make(number, head, whole, band)
        return whole

    def _held(self, number: int, head: int) -> _Pass:
        """Return the pass of a head as far as computed; the last ones stay in memory."""
        with self._keeping:
            if (number, head) not in self._passes:
                _, queries, keys = self._layers.trace.layers[number].shape
                size = 1 << _base_level(queries, keys)
                high, wide = -(-queries // size), -(-keys // size)
                tall = max(1, _BAND_CELLS // (size * max(keys, 1)))
                largest, masses = (np.zeros((high, wide), np.float32) for _ in range(2))
                done = np.zeros(-(-high // tall), bool)
                self._passes[number, head] = _Pass(largest, masses, size, tall, done)
                total = sum(2 * held.largest.nbytes for held in self._passes.values())
                while len(self._passes) > 1 and (len(self._passes) > _HEADS or total > _HELD):
                    total -= 2 * self._passes.popitem(last=False)[1].largest.nbytes
            self._passes.move_to_end((number, head))
            return self._passes[number, head]

    def _make(self, number: int, head: int, whole: _Pass, band: int) -> None:
        _, queries, keys = self._layers.trace.layers[number].shape
        into = slice(band * whole.tall, (band + 1) * whole.tall)
        rows = range(into.start * whole.size, min(into.stop * whole.size, queries))
        whole.largest[into], whole.masses[into] = self._blocks(
            number, head, rows, range(keys), whole.size
        )
        whole.done[band] = True


def as_tile(numbers: Array) -> bytes:
    """Encode numbers for the front end: float16, little-endian."""
    return bytes(np.ascontiguousarray(numbers, dtype="<f2").tobytes())


def _base_level(queries: int, keys: int) -> int:
    level = _BASE
    while -(-queries >> level) * -(-keys >> level) > _MOST_BLOCKS:
        level += 1
    return level


def _rows_of(queries: int, size: int) -> Array:
    """Return the number of rows of each block; the last may have fewer."""
    starts = np.arange(0, queries, size)
    return np.minimum(queries - starts, size).astype(np.float32)


def _coarser(base: Array, size: int, factor: int, summary: str, queries: int) -> Array:
    """Join blocks of size x size cells, factor x factor of them."""
    if factor == 1:
        return base
    high, wide = base.shape
    padding = ((0, -high % factor), (0, -wide % factor))
    counts = np.pad(_rows_of(queries, size), (0, -high % factor))
    joined = np.pad(base, padding).reshape(-(-high // factor), factor, -(-wide // factor), factor)
    if summary == "max":
        maxima: Array = joined.max((1, 3))
        return maxima
    weighted = joined.sum(3) * counts.reshape(-1, factor)[:, :, None]
    masses: Array = weighted.sum(1) / counts.reshape(-1, factor).sum(1)[:, None]
    return masses


def _kept_blocks(
    arrays: LayerArrays, head: int, rows: range, columns: range, size: int
) -> tuple[Array, Array]:
    """Return the largest kept weight and the kept mass of each block of rows and columns."""
    high, wide = -(-len(rows) // size), -(-len(columns) // size)
    keys = arrays.keys[head, rows.start : rows.stop]
    visible = (keys >= columns.start) & (keys < columns.stop)
    weights = arrays.weights[head, rows.start : rows.stop][visible]
    blocks = np.nonzero(visible)[0] // size * wide + (keys[visible] - columns.start) // size
    maxima, sums = np.zeros(high * wide, np.float32), np.zeros(high * wide, np.float32)
    np.maximum.at(maxima, blocks, weights)
    np.add.at(sums, blocks, weights)
    return maxima.reshape(high, wide), sums.reshape(high, wide)


def _kept_cell(arrays: LayerArrays, head: int, row: int, column: int, lse: float) -> JsonObject:
    """Return a cell as far as the kept edges have it."""
    (places,) = np.nonzero(arrays.keys[head, row] == column)
    if len(places):
        weight = float(arrays.weights[head, row, places[0]])
        score = float(np.log(weight)) + lse if weight > 0 else None
        return {"weight": weight, "score": score, "rank": int(places[0]) + 1}
    kept = int((arrays.keys[head, row] >= 0).sum())
    if kept >= int(arrays.count[head, row]):
        return {"weight": None, "score": None, "hidden": True}
    return {"weight": None, "score": None, "rest": float(arrays.rest[head, row])}
