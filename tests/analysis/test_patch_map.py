"""Maps on a grid: a vision Transformer's own weights, and the pixels of a word's map in cells."""

from __future__ import annotations

import dataclasses

import numpy as np
import pytest
import torch

import headloom
from headloom.analysis.image_map import image_map
from headloom.errors import InputError
from headloom.studio.images import _pooled

ROWS, COLUMNS = 3, 4


def grid_trace(columns: list[int] | None = None) -> headloom.Trace:
    """A class token and 3 x 4 patches, in the order of reading."""
    random = np.random.default_rng(0)
    queries, keys = random.normal(size=(2, 1, 2, 1 + ROWS * COLUMNS, 8))
    trace = headloom.from_queries_keys(queries, keys)
    assert isinstance(trace, headloom.Trace)
    known = {
        "rows": [-1] + [place // COLUMNS for place in range(ROWS * COLUMNS)],
        "columns": columns or [-1] + [place % COLUMNS for place in range(ROWS * COLUMNS)],
    }
    return dataclasses.replace(trace, positions={trace.layers[0].keys_from: known})


def test_a_grid_of_patches_has_its_weights() -> None:
    trace = grid_trace()
    dense = trace.layers[0].graph.to_dense().double()
    for head in (0, 1, None):
        rows = dense.mean(0) if head is None else dense[head]
        for query in range(1 + ROWS * COLUMNS):
            seen = image_map(trace, 0, head, query)
            expected = rows[query, 1:].reshape(ROWS, COLUMNS)
            assert torch.allclose(seen.weights, expected, atol=1e-6)
            assert seen.mass == pytest.approx(1 - float(rows[query, 0]), abs=1e-6)
            for place, (position, _, row, column, weight) in enumerate(seen.patches):
                assert weight == float(seen.weights[row, column])
                assert position == 1 + row * COLUMNS + column == 1 + place
            assert seen.outside == 0
            # Over a picture of 2 x 2 pixels a patch.
            wide = image_map(trace, 0, head, query, size=(2 * ROWS, 2 * COLUMNS)).weights
            spread = (expected / 4).repeat_interleave(2, 0).repeat_interleave(2, 1)
            assert torch.allclose(wide, spread, atol=1e-6)


@pytest.mark.parametrize("size", [(128, 128), (129, 3), (1000, 333), (5, 700)])
def test_pixels_are_put_together(size: tuple[int, int]) -> None:
    weights = torch.rand(size, dtype=torch.float64)
    pooled = _pooled(weights)
    assert pooled.shape == tuple(min(side, 128) for side in size)
    assert float(pooled.sum()) == pytest.approx(float(weights.sum()))
    # The first cell, by hand.
    ends = [[at for at in range(side) if at * min(side, 128) // side == 0] for side in size]
    first = weights[: len(ends[0]), : len(ends[1])]
    assert float(pooled[0, 0]) == pytest.approx(float(first.sum()))


def test_what_has_no_map_says_why() -> None:
    random = np.random.default_rng(0)
    plain = headloom.from_queries_keys(*random.normal(size=(2, 1, 2, 5, 8)))
    with pytest.raises(InputError, match="no token of this trace is known to be a part"):
        image_map(plain, 0, 0, 0)
    trace = grid_trace()
    with pytest.raises(InputError, match="head 2"):
        image_map(trace, 0, 2, 0)
    with pytest.raises(InputError, match="token 13"):
        image_map(trace, 0, 0, 13)
    doubled = grid_trace([-1] + [0] * (ROWS * COLUMNS))
    with pytest.raises(InputError, match="several patches of layer"):
        image_map(doubled, 0, 0, 0)
