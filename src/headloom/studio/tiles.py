"""`MatrixTiles`: any part of a layer's weight matrices as small tiles, from cells to the whole.

A tile is 256 x 256 numbers. At level 0 these are cells, recomputed exactly from the stored queries,
keys and log-sum-exp; at level L blocks of 2^L x 2^L cells, of which a tile shows

    max     the largest weight
    mass    the mass that a row of the block has in it, on average

From level 4 on, above 131,072 tokens from a higher one, tiles are made of one pass over the whole
matrix of a head, which is kept for the heads looked at last. It goes from band to band of rows: a
tile waits for its own rows alone, and what was made for one that is called off stays for the next.
Where a trace has no queries and keys, tiles hold the kept edges alone.
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
#: The level from which tiles are made of one pass over the whole, and blocks of a pass at most:
#: where it would have more, the level is higher.
_BASE, _MOST_BLOCKS = 4, 2**26
#: Heads whose pass is kept.
_HEADS = 16
#: Cells of a band of a pass: some tenths of a second.
_BAND_CELLS = 2**27
#: Bytes of passes held at most, besides the last: at 131,072 tokens one takes 512 MiB.
_HELD = 2**29


def top_level(queries: int, keys: int) -> int:
    """The level at which one tile holds the whole matrix."""
    level = 0
    while max(queries, keys) > SIDE << level:
        level += 1
    return level


@dataclass(frozen=True)
class Tile:
    """Which tile of a layer: of a head, "max" or "mass", of a level, its row and column there."""

    head: int
    of: str
    level: int
    row: int
    column: int


@dataclass(frozen=True)
class _Pass:
    """Largest weights and masses of blocks of a whole matrix, of the base level; size: their side;
    tall: rows of blocks in a band; done: of which bands they are there.
    """

    largest: Array
    masses: Array
    size: int
    tall: int
    done: Array


class MatrixTiles:
    """The tiles of a trace. Safe to ask from several threads."""

    def __init__(self, layers: Layers) -> None:
        self._layers = layers
        self._passes: OrderedDict[tuple[int, int], _Pass] = OrderedDict()
        self._passing = threading.Lock()
        self._keeping = threading.Lock()
        self._working = threading.Semaphore(2)

    def tile(self, number: int, tile: Tile, go_on: Callable[[], bool] = lambda: True) -> bytes:
        """A tile as float16, little-endian, (rows, columns), cut off where the matrix ends.

        go_on: asked now and then in a pass that takes long.
        Raises: InterruptedError: it said no.
        """
        return as_tile(self.numbers(number, tile, go_on))

    def numbers(self, number: int, tile: Tile, go_on: Callable[[], bool] = lambda: True) -> Array:
        """A tile as it was worked out, float32."""
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
            return largest if tile.of == "max" else masses
        whole = self._passed(number, tile.head, down, go_on)
        blocks = whole.largest if tile.of == "max" else whole.masses
        part = blocks[down.start : down.stop, across.start : across.stop]
        return _coarser(part, size, factor, tile.of, len(rows))

    def cell(self, number: int, head: int, row: int, column: int) -> JsonObject:
        """One weight, its score, and its rank among the weights of its row, from 1."""
        arrays = self._layers[number]
        lse, count = float(arrays.lse[head, row]), int(arrays.count[head, row])
        found: JsonObject = {"count": count, "rest": None, "hidden": False, "rank": None}
        matrix = self._layers.matrix(number)
        if matrix is None:
            return found | _kept_cell(arrays, head, row, column, lse)
        # Weights below the least of float32 are 0 alike, and their scores tell them apart.
        scored = worked_row(self._layers.layer(number), head, row)
        if not bool(scored.allowed[column]):
            return found | {"weight": None, "score": None, "hidden": True}
        score = scored.scores[column]
        return found | {
            "weight": float(matrix[head, row, column]),
            "score": float(score) if bool(score.isfinite()) else None,
            "rank": int((scored.scores > score).sum()) + 1,
        }

    def _blocks(
        self, number: int, head: int, rows: range, columns: range, size: int
    ) -> tuple[Array, Array]:
        """The largest weight of each block of some rows and columns, and its mass in a row."""
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
        """The pass of a head, made for some rows of blocks."""
        whole = self._held(number, head)
        for band in range(rows.start // whole.tall, -(-rows.stop // whole.tall)):
            if whole.done[band]:
                continue
            with self._passing:
                if not go_on():
                    raise InterruptedError
                # Whoever was here before may have made it.
                if not whole.done[band]:
                    self._make(number, head, whole, band)
        return whole

    def _held(self, number: int, head: int) -> _Pass:
        """The pass of a head, as far as it is made; those of the heads looked at last are held."""
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
        """Make a band of a pass."""
        _, queries, keys = self._layers.trace.layers[number].shape
        into = slice(band * whole.tall, (band + 1) * whole.tall)
        rows = range(into.start * whole.size, min(into.stop * whole.size, queries))
        whole.largest[into], whole.masses[into] = self._blocks(
            number, head, rows, range(keys), whole.size
        )
        whole.done[band] = True


def as_tile(numbers: Array) -> bytes:
    """Numbers as the tiles of the front end: float16, little-endian."""
    return bytes(np.ascontiguousarray(numbers, dtype="<f2").tobytes())


def _base_level(queries: int, keys: int) -> int:
    level = _BASE
    while -(-queries >> level) * -(-keys >> level) > _MOST_BLOCKS:
        level += 1
    return level


def _rows_of(queries: int, size: int) -> Array:
    """How many rows each block has: the last may have fewer."""
    starts = np.arange(0, queries, size)
    return np.minimum(queries - starts, size).astype(np.float32)


def _coarser(base: Array, size: int, factor: int, of: str, queries: int) -> Array:
    """Blocks of size x size cells joined, factor x factor of them."""
    if factor == 1:
        return base
    high, wide = base.shape
    padding = ((0, -high % factor), (0, -wide % factor))
    counts = np.pad(_rows_of(queries, size), (0, -high % factor))
    joined = np.pad(base, padding).reshape(-(-high // factor), factor, -(-wide // factor), factor)
    if of == "max":
        maxima: Array = joined.max((1, 3))
        return maxima
    weighted = joined.sum(3) * counts.reshape(-1, factor)[:, :, None]
    masses: Array = weighted.sum(1) / counts.reshape(-1, factor).sum(1)[:, None]
    return masses


def _kept_blocks(
    arrays: LayerArrays, head: int, rows: range, columns: range, size: int
) -> tuple[Array, Array]:
    """The largest kept weight and the kept mass of each block of some rows and columns."""
    high, wide = -(-len(rows) // size), -(-len(columns) // size)
    keys = arrays.keys[head, rows.start : rows.stop]
    there = (keys >= columns.start) & (keys < columns.stop)
    weights = arrays.weights[head, rows.start : rows.stop][there]
    blocks = np.nonzero(there)[0] // size * wide + (keys[there] - columns.start) // size
    maxima, sums = np.zeros(high * wide, np.float32), np.zeros(high * wide, np.float32)
    np.maximum.at(maxima, blocks, weights)
    np.add.at(sums, blocks, weights)
    return maxima.reshape(high, wide), sums.reshape(high, wide)


def _kept_cell(arrays: LayerArrays, head: int, row: int, column: int, lse: float) -> JsonObject:
    """A cell as far as the kept edges tell."""
    (places,) = np.nonzero(arrays.keys[head, row] == column)
    if len(places):
        weight = float(arrays.weights[head, row, places[0]])
        score = float(np.log(weight)) + lse if weight > 0 else None
        return {"weight": weight, "score": score, "rank": int(places[0]) + 1}
    kept = int((arrays.keys[head, row] >= 0).sum())
    if kept >= int(arrays.count[head, row]):
        return {"weight": None, "score": None, "hidden": True}
    return {"weight": None, "score": None, "rest": float(arrays.rest[head, row])}
