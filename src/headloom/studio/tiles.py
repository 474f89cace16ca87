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
import torch
from torch import Tensor

from headloom.analysis.worked_row import worked_row
from headloom.formats.files import JsonObject
from headloom.studio.arrays import Array, LayerArrays, Layers

__all__ = ["SIDE", "MatrixTiles", "Tile", "as_tile", "top_level"]

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

    def missing(self, rows: range) -> list[int]:
        """The bands that some rows of blocks wait for."""
        bands = range(rows.start // self.tall, -(-rows.stop // self.tall))
        return [band for band in bands if not self.done[band]]

    @property
    def nbytes(self) -> int:
        """Bytes of memory."""
        return self.largest.nbytes + self.masses.nbytes


class MatrixTiles:
    """The tiles of a trace. Safe to ask from several threads."""

    def __init__(self, layers: Layers) -> None:
        self._trace = layers.trace
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
        _, queries, keys = self._trace.layers[number].shape
        base = _base_level(queries, keys)
        if tile.level >= base:
            found = self._held(number, tile.head)
            factor = 2 ** (tile.level - base)
            down, across = (
                range(place * SIDE * factor, min((place + 1) * SIDE * factor, blocks))
                for place, blocks in zip((tile.row, tile.column), found.largest.shape, strict=True)
            )
            self._pass(number, tile.head, found, down, go_on)
            whole = found.largest if tile.of == "max" else found.masses
            part = whole[down.start : down.stop, across.start : across.stop]
            last = min(down.stop * found.size, queries)
            return _coarser(part, found.size, factor, tile.of, last - down.start * found.size)
        size = 2**tile.level
        rows = range(tile.row * SIDE * size, min((tile.row + 1) * SIDE * size, queries))
        columns = range(tile.column * SIDE * size, min((tile.column + 1) * SIDE * size, keys))
        with self._working:
            maxima, sums = self._blocks(number, tile.head, rows, columns, size)
            if tile.of == "max":
                largest: Array = maxima.numpy()
                return largest
            masses: Array = sums.numpy() / _rows_of(len(rows), size)[:, None]
            return masses

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
    ) -> tuple[Tensor, Tensor]:
        """The largest weight and the sum of each block of some rows and columns."""
        matrix = self._layers.matrix(number)
        if matrix is None:
            return _kept_blocks(self._layers[number], head, rows, columns, size)
        queries, keys = slice(rows.start, rows.stop), slice(columns.start, columns.stop)
        return matrix.block_summaries(head, size, queries, keys)

    def _held(self, number: int, head: int) -> _Pass:
        """The pass of a head, as far as it is made; those of the heads looked at last are held."""
        with self._keeping:
            if (number, head) not in self._passes:
                _, queries, keys = self._trace.layers[number].shape
                size = 2 ** _base_level(queries, keys)
                high, wide = -(-queries // size), -(-keys // size)
                tall = max(1, _BAND_CELLS // (size * max(keys, 1)))
                largest, masses = (np.zeros((high, wide), np.float32) for _ in range(2))
                done = np.zeros(-(-high // tall), bool)
                self._passes[number, head] = _Pass(largest, masses, size, tall, done)
                self._forget()
            self._passes.move_to_end((number, head))
            return self._passes[number, head]

    def _pass(
        self, number: int, head: int, found: _Pass, rows: range, go_on: Callable[[], bool]
    ) -> None:
        """Make a pass for some rows of blocks."""
        for band in found.missing(rows):
            with self._passing:
                if not go_on():
                    raise InterruptedError
                # Whoever was here before may have made it.
                if not found.done[band]:
                    self._make(number, head, found, band)

    def _make(self, number: int, head: int, found: _Pass, band: int) -> None:
        """Make a band of a pass."""
        _, queries, keys = self._trace.layers[number].shape
        first = band * found.tall
        into = slice(first, first + found.tall)
        rows = range(first * found.size, min((first + found.tall) * found.size, queries))
        maxima, sums = self._blocks(number, head, rows, range(keys), found.size)
        found.largest[into] = maxima.numpy()
        found.masses[into] = sums.numpy() / _rows_of(len(rows), found.size)[:, None]
        found.done[band] = True

    def _forget(self) -> None:
        """Let go of the passes that were begun first, where they are many or large."""
        total = sum(found.nbytes for found in self._passes.values())
        while len(self._passes) > 1 and (len(self._passes) > _HEADS or total > _HELD):
            total -= self._passes.popitem(last=False)[1].nbytes


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
) -> tuple[Tensor, Tensor]:
    """The largest kept weight and the kept mass of each block of some rows and columns."""
    high, wide = -(-len(rows) // size), -(-len(columns) // size)
    keys = arrays.keys[head, rows.start : rows.stop]
    there = (keys >= columns.start) & (keys < columns.stop)
    weights = arrays.weights[head, rows.start : rows.stop][there]
    blocks = np.nonzero(there)[0] // size * wide + (keys[there] - columns.start) // size
    maxima, sums = np.zeros(high * wide, np.float32), np.zeros(high * wide, np.float32)
    np.maximum.at(maxima, blocks, weights)
    np.add.at(sums, blocks, weights)
    return torch.from_numpy(maxima.reshape(high, wide)), torch.from_numpy(sums.reshape(high, wide))


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
