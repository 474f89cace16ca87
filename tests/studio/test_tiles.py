from __future__ import annotations

import dataclasses
import tracemalloc

import numpy as np
import pytest
import torch

import headloom
from headloom.formats.trace import LayerInMemory
from headloom.studio.arrays import Layers
from headloom.studio.tiles import MatrixTiles, Tile, top_level


def tiles_of(trace) -> MatrixTiles:
    return MatrixTiles(Layers(trace))


def whole(tiles, level, of="max", head=0, length=1_300) -> np.ndarray:
    """All tiles of a level, put together."""
    blocks = -(-length // 2**level)
    found = np.zeros((blocks, blocks), np.float32)
    for row in range(-(-blocks // 256)):
        for column in range(-(-blocks // 256)):
            high, wide = min(256, blocks - 256 * row), min(256, blocks - 256 * column)
            tile = np.frombuffer(tiles.tile(0, Tile(head, of, level, row, column)), "<f2")
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
    dense = layer.graph.to_dense()[0]
    tile = np.frombuffer(tiles.tile(0, Tile(0, "max", 0, 1, 1)), "<f2").reshape(256, 256)
    assert np.allclose(tile, dense[256:512, 256:512].numpy(), rtol=2**-10, atol=1e-7)
    kept = int(layer.graph.keys[0, 900, 2])
    assert tiles.cell(0, 0, 900, kept)["rank"] == 3
    other = next(key for key in range(900) if key not in layer.graph.keys[0, 900].tolist())
    found = tiles.cell(0, 0, 900, other)
    assert found["weight"] is None
    assert found["rest"] == pytest.approx(float(layer.graph.rest[0, 900]), rel=1e-5)


@pytest.mark.parametrize("level", [0, 3, 4, 5, 6])
@pytest.mark.parametrize("queries_keys", [True, False])
def test_of_too_many_blocks_the_pass_begins_higher(
    long_trace, monkeypatch: pytest.MonkeyPatch, level: int, queries_keys: bool
) -> None:
    # 41 x 41 blocks of 2^5 cells are as many as may be.
    monkeypatch.setattr("headloom.studio.tiles._MOST_BLOCKS", 41 * 41)
    length, size = 1_300, 2**level
    trace = long_trace(length)
    layer = trace.layers[0]
    dense = layer.matrix[1, 0:length, 0:length].double().numpy()
    if not queries_keys:
        chosen = layer.graph.keys[1].numpy()
        kept = np.zeros_like(dense)
        rows, places = np.nonzero(chosen >= 0)
        kept[rows, chosen[rows, places]] = 1
        dense *= kept
        layer = dataclasses.replace(layer, data=LayerInMemory(layer.graph))
        trace = dataclasses.replace(trace, layers=(layer,))
    tiles = tiles_of(trace)
    blocks = -(-length // size)
    padded = np.zeros((blocks * size, blocks * size))
    padded[:length, :length] = dense
    parts = padded.reshape(blocks, size, blocks, size)
    rows = np.minimum(length - np.arange(blocks) * size, size)
    found = whole(tiles, level, head=1)
    np.testing.assert_allclose(found, parts.max((1, 3)), rtol=2**-10, atol=1e-6)
    found = whole(tiles, level, "mass", head=1)
    np.testing.assert_allclose(found, parts.sum((1, 3)) / rows[:, None], rtol=2**-9, atol=1e-5)
    assert (level < 5) == (not tiles._passes)


@pytest.mark.parametrize("of", ["max", "mass"])
def test_a_pass_is_made_for_the_rows_in_sight_and_goes_on_from_there(
    long_trace, monkeypatch: pytest.MonkeyPatch, of
) -> None:
    trace = long_trace(5_000)
    coarse, fine = Tile(1, of, 5, 0, 0), Tile(1, of, 4, 1, 0)
    expected = tiles_of(trace).numbers(0, coarse)
    lower = tiles_of(trace).numbers(0, fine)
    monkeypatch.setattr("headloom.studio.tiles._BAND_CELLS", 16 * 5_000 * 10)
    tiles = tiles_of(trace)
    np.testing.assert_array_equal(tiles.numbers(0, fine), lower)
    found = tiles._passes[0, 1]
    # Rows of blocks 256 to 312 are in bands 25 to 31 of ten.
    assert np.flatnonzero(found.done).tolist() == list(range(25, 32))
    left = iter([True] * 3 + [False])
    with pytest.raises(InterruptedError):
        tiles.tile(0, coarse, lambda: next(left))
    assert np.flatnonzero(found.done).tolist() == [0, 1, 2, *range(25, 32)]
    np.testing.assert_array_equal(tiles.numbers(0, coarse), expected)
    assert found.done.all()


def test_a_very_long_text_takes_little_memory() -> None:
    length = 200_000
    queries, keys = torch.randn(2, 1, length, 4)
    mask = headloom.window(1, 0)
    tiles = tiles_of(
        headloom.from_queries_keys(
            queries, keys, mask=mask, keep=headloom.Top(2), kind="decoder", queries_keys=False
        )
    )
    top = top_level(length, length)
    tiles.tile(0, Tile(0, "max", 0, 0, 0))  # the edges are read
    tracemalloc.start()
    found = {
        level: np.frombuffer(tiles.tile(0, Tile(0, "mass", level, 0, 0)), "<f2").astype(float)
        for level in (top, 4)
    }
    _, most = tracemalloc.get_traced_memory()
    tracemalloc.stop()
    # Blocks of 16 x 16 cells would be 1.2 GB.
    assert most < 8e8
    # A row looks at itself and the one before: of its own block it has nearly all.
    wide = -(-length // 2**top)
    of_rows = found[top].reshape(wide, wide)
    np.testing.assert_allclose(of_rows.sum(1), 1, atol=2e-3)
    assert (of_rows.diagonal() > 0.99).all()
    scores = (queries[0, 1:].double() * (keys[0, 1:] - keys[0, :-1]).double()).sum(-1) / 2
    before = (-scores).sigmoid().numpy()  # the weight of the token before, for rows 1, 2, ...
    of_rows = found[4].reshape(256, 256)
    expected = before[16 * np.arange(1, 256) - 1] / 16
    np.testing.assert_allclose(of_rows[np.arange(1, 256), np.arange(255)], expected, atol=1e-4)
