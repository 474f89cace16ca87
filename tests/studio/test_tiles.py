from __future__ import annotations

import dataclasses

import numpy as np
import pytest
import torch

from weft.formats.trace import LayerInMemory
from weft.studio.arrays import LayerCache
from weft.studio.tiles import MatrixTiles, top_level


def tiles_of(trace) -> MatrixTiles:
    return MatrixTiles(trace, LayerCache(trace))


def whole(tiles, level, of="max", head=0, length=1_300) -> np.ndarray:
    """All tiles of a level, put together."""
    blocks = -(-length // 2**level)
    found = np.zeros((blocks, blocks), np.float32)
    for row in range(-(-blocks // 256)):
        for column in range(-(-blocks // 256)):
            high, wide = min(256, blocks - 256 * row), min(256, blocks - 256 * column)
            tile = np.frombuffer(tiles.tile(0, head, of, level, row, column), "<f2")
            assert tile.size == high * wide
            place = np.s_[256 * row : 256 * row + high, 256 * column : 256 * column + wide]
            found[place] = tile.reshape(high, wide)
    return found


@pytest.mark.parametrize("level", [0, 2, 4, 5])
def test_tiles_are_the_exact_matrix(long_trace, level) -> None:
    length = 1_300
    trace = long_trace(length)
    assert top_level(length, length) == 3
    tiles = tiles_of(trace)
    assert tiles.exact(0)
    matrix = trace.layers[0].matrix
    size = 2**level
    blocks = -(-length // size)
    padded = torch.zeros(blocks * size, blocks * size)
    padded[:length, :length] = matrix[1, 0:length, 0:length]
    parts = padded.reshape(blocks, size, blocks, size)
    # Half precision: 11 bits.
    found = whole(tiles, level, head=1)
    assert np.allclose(found, parts.amax((1, 3)).numpy(), rtol=2**-10, atol=1e-7)
    rows = torch.full((blocks,), float(size))
    rows[-1] = length - (blocks - 1) * size
    mass = parts.sum((1, 3)) / rows[:, None]
    found = whole(tiles, level, "mass", head=1)
    assert np.allclose(found, mass.numpy(), rtol=2**-9, atol=1e-6)
    # Each row's mass is 1, wherever it is.
    assert np.allclose(found.sum(1), 1, atol=0.01)


def test_cells_have_weight_score_and_rank(long_trace) -> None:
    trace = long_trace(1_000)
    tiles = tiles_of(trace)
    layer = trace.layers[0]
    for place in (0, 3, 7):
        key = int(layer.graph.keys[1, 900, place])
        found = tiles.cell(0, 1, 900, key)
        assert found["rank"] == place + 1
        assert found["count"] == 901
        assert found["weight"] == pytest.approx(float(layer.graph.weights[1, 900, place]), rel=1e-4)
        assert found["score"] == pytest.approx(float(layer.graph.scores[1, 900, place]), abs=1e-3)
    hidden = tiles.cell(0, 1, 10, 11)
    assert hidden["hidden"] and hidden["weight"] is None


def test_without_queries_and_keys_tiles_hold_the_kept_edges(long_trace) -> None:
    trace = long_trace(1_000)
    layer = dataclasses.replace(trace.layers[0], data=LayerInMemory(trace.layers[0].graph))
    bare = dataclasses.replace(trace, layers=(layer,))
    tiles = tiles_of(bare)
    assert not tiles.exact(0)
    dense = layer.graph.dense()[0]
    tile = np.frombuffer(tiles.tile(0, 0, "max", 0, 1, 1), "<f2").reshape(256, 256)
    assert np.allclose(tile, dense[256:512, 256:512].numpy(), rtol=2**-10, atol=1e-7)
    kept = int(layer.graph.keys[0, 900, 2])
    assert tiles.cell(0, 0, 900, kept)["rank"] == 3
    other = next(key for key in range(900) if key not in layer.graph.keys[0, 900].tolist())
    found = tiles.cell(0, 0, 900, other)
    assert found["weight"] is None
    assert found["below"] == pytest.approx(float(layer.graph.weights[0, 900, -1]), rel=1e-5)
