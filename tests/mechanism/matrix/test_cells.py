"""Cells, tiles and limits of AttentionMatrix against softmax written out in NumPy, float64."""

from __future__ import annotations

import math
from typing import Any

import numpy as np
import pytest
import torch

import headloom
from headloom.mechanism.matrix import calls as cells

HEADS, ROWS, KEYS, DEPTH = 2, 11, 9, 3


def numbers(*shape: int, seed: int = 0) -> np.ndarray:
    return np.random.default_rng(seed).normal(size=shape)


def softmax(scores: np.ndarray) -> np.ndarray:
    exponentials = np.exp(scores - scores.max(-1, keepdims=True))
    return exponentials / exponentials.sum(-1, keepdims=True)


def pair(rows: int = ROWS, keys: int = KEYS, **options: Any) -> Any:
    """A matrix, and the same by hand."""
    q, k = numbers(HEADS, rows, DEPTH), numbers(HEADS, keys, DEPTH, seed=1)
    matrix = headloom.AttentionMatrix(torch.tensor(q), torch.tensor(k), **options)
    return matrix, softmax(np.einsum("hid,hjd->hij", q, k) / math.sqrt(DEPTH))


def close(found: Any, expected: np.ndarray) -> None:
    np.testing.assert_allclose(np.asarray(found), expected, rtol=0, atol=1e-12)
    assert np.asarray(found).shape == np.asarray(expected).shape


def test_any_part_is_that_of_numpy() -> None:
    matrix, dense = pair()
    every = slice(None)
    for index in (
        (0, 3, every), (1, every, 2), (1, 4, 5), (-1, -2, -3), (-2, every, every), (0, 0, every),
        (1, slice(2, 5), slice(None, -4)), (1, slice(5, 2), every), (0, every, slice(4, 4)),
        (1, slice(-3, None, 1), 8), (0, slice(1, 2), slice(3, 4)), (0, 10, slice(8, 99)),
    ):  # fmt: skip
        close(matrix[index], dense[index])
    for index in (
        (2, 0, 0), (-3, 0, 0), (0, -12, 0), (0, 0, 9), (0, 11, 0), ([0, 2], 0, 0), (0, [11], 0),
        (0, [[1]], 0), (True, 0, 0), (0, np.array([True, False]), 0),
        (0, [0.5], 0), (0, 0, 0, 0), (0, ..., 0),
    ):  # fmt: skip
        with pytest.raises(headloom.InputError, match=r"^matrix\["):
            matrix[index]


def test_several_heads_steps_and_lists() -> None:
    """Slices as numpy has them; lists choose rows and columns, as numpy.ix_."""
    matrix, dense = pair(softcap=None)
    every = slice(None)
    for index in (
        (every, 3, 4), (slice(1), every, every), (slice(None, None, -1), 2, every),
        (0, slice(None, None, 3), slice(8, 1, -2)), (every, slice(None, None, -1), every),
        (slice(2, 2), every, 0), (every, every, slice(1, None, 5)),
    ):  # fmt: skip
        close(matrix[index], dense[index])
    for heads, rows, columns in (
        ([1, 0], [3, 4, 5, 1], [8, 0]), ([1], [], [2]), ([0], [2, 2], [3, 3, 1]),
        ([-1, 0], [-1], [4, 5, 6]),
    ):  # fmt: skip
        expected = dense[np.ix_(heads, rows, columns)]
        close(matrix[heads, rows, columns], expected)
        close(matrix[heads, np.array(rows, dtype=int), torch.tensor(columns)], expected)
    close(matrix[1, [4, 2], 3], dense[1, [4, 2], 3])
    close(matrix[0, range(2, 6), range(8, 2, -3)], dense[0, 2:6, 8:2:-3])
    some = np.arange(ROWS) % 3 == 1
    for flags in (some, list(some), some.tolist(), torch.tensor(some)):
        close(matrix[1, flags, 2], dense[1, some, 2])


@pytest.mark.parametrize(("rows", "keys"), [(600, 550), (300, 700)])
def test_diagonals_of_a_long_matrix(rows: int, keys: int) -> None:
    matrix, dense = pair(rows, keys)
    for offset in (0, 1, -1, 255, -256, 257, keys - 1, keys, 1 - rows, -rows):
        expected = np.zeros((HEADS, rows))
        for i in range(rows):
            if 0 <= i + offset < keys:
                expected[:, i] = dense[:, i, i + offset]
        close(matrix.mass(offset), expected)


def test_mass_of_chosen_keys() -> None:
    matrix, dense = pair()
    close(matrix.mass([]), np.zeros((HEADS, ROWS)))
    close(matrix.mass([1, -1]), dense[..., 1] + dense[..., -1])
    close(matrix.mass(torch.tensor([2, 2])), dense[..., 2])
    chosen = np.arange(KEYS) % 2 == 0
    close(matrix.mass(torch.tensor(chosen)), dense[..., chosen].sum(-1))


def test_edges_of_exactly_the_weight_are_kept() -> None:
    """Four equal keys, then one alone: weights of 1/4 and of 1, with no rounding."""
    mask = torch.tensor([[True] * 4 + [False], [False] * 4 + [True], [False] * 5])
    matrix = headloom.AttentionMatrix(torch.zeros(1, 3, 2), torch.zeros(1, 5, 2), mask=mask)
    assert matrix.to_dense().tolist() == [[[0.25] * 4 + [0], [0] * 4 + [1], [0] * 5]]
    quarter = matrix.above(0.25)
    assert quarter.keys.tolist() == [[[0, 1, 2, 3], [4, -1, -1, -1], [-1] * 4]]
    assert quarter.weights.tolist() == [[[0.25] * 4, [1, 0, 0, 0], [0] * 4]]
    assert quarter.rest.tolist() == [[0, 0, 0]]
    whole = matrix.above(1)
    assert whole.keys.tolist() == [[[-1], [4], [-1]]]
    assert whole.weights.tolist() == [[[0], [1], [0]]]
    assert whole.scores.tolist() == [[[-math.inf], [0], [-math.inf]]]
    assert whole.rest.tolist() == [[1, 0, 0]]
    none = headloom.AttentionMatrix(torch.zeros(1, 2, 2), torch.zeros(1, 5, 2)).above(0.5)
    assert none.keys.shape == (1, 2, 0) and none.rest.tolist() == [[1, 1]]


@pytest.mark.parametrize("mask", ["causal", "window", "ahead", "holes"])
def test_summaries_of_a_part_in_many_tiles(mask: str, monkeypatch: pytest.MonkeyPatch) -> None:
    """Rows and columns that begin in the middle; where the mask begins no block begins."""
    monkeypatch.setattr(cells, "_ROWS", 4)
    monkeypatch.setattr(cells, "_COLUMNS", 5)
    rows, keys = 40, 50
    i, j = np.arange(rows)[:, None], np.arange(keys)
    rules = {
        "causal": (headloom.causal(), j <= i),
        "window": (headloom.window(3, 2, 4), (j >= i + 1) & (j <= i + 6)),
        "ahead": (headloom.causal(-5), j <= i - 5),
        "holes": (torch.tensor((i + j) % 3 > 0), (i + j) % 3 > 0),
    }
    rule, allowed = rules[mask]
    q, k = numbers(1, rows, DEPTH), numbers(1, keys, DEPTH, seed=1)
    scores = np.where(allowed, np.einsum("hid,hjd->hij", q, k) / math.sqrt(DEPTH), -np.inf)
    with np.errstate(invalid="ignore"):
        dense = np.nan_to_num(softmax(scores))[0]
    matrix = headloom.AttentionMatrix(torch.tensor(q), torch.tensor(k), mask=rule)
    for size in (1, 3, 7):
        for first, last, left, right in ((0, 40, 0, 50), (5, 33, 8, 47), (30, 40, 2, 9)):
            largest, sums = matrix.block_summaries(0, size, slice(first, last), slice(left, right))
            for found, how in ((largest, np.max), (sums, np.sum)):
                expected = [
                    [
                        how(dense[a : min(a + size, last), b : min(b + size, right)])
                        for b in range(left, right, size)
                    ]
                    for a in range(first, last, size)
                ]
                close(found, np.array(expected))


def test_some_rows_of_a_head_are_a_matrix() -> None:
    for options in ({}, {"mask": headloom.window(3, 2)}, {"sinks": torch.tensor([0.5, 1.5])}):
        matrix, _ = pair(**options)
        part = matrix.of_rows(1, 4, 9)
        assert part is not None
        close(part[0, :, :], matrix[1, 4:9, :].numpy())
    for options in (
        {"mask": headloom.padding(torch.tensor([7]))},
        {"bias": torch.zeros(HEADS, ROWS, KEYS)},
        {"relative": headloom.ALiBi(torch.ones(HEADS))},
    ):
        assert pair(**options)[0].of_rows(1, 4, 9) is None
