"""Masks against their definitions, pair by pair."""

from __future__ import annotations

from typing import Any

import pytest
import scipy.sparse
import torch
from hypothesis import given, settings
from hypothesis import strategies as st
from torch import Tensor

import headloom
from headloom.mechanism.masks import Mask, Ranges, as_mask, packed

sizes = st.integers(0, 6)
sides = st.one_of(st.none(), st.integers(0, 7))


def pairs(queries: int, keys: int, allow: Any) -> Tensor:
    cells = [[bool(allow(i, j)) for j in range(keys)] for i in range(queries)]
    return torch.tensor(cells, dtype=torch.bool).reshape(queries, keys)


def check(mask: Mask, expected: Tensor, queries: int, keys: int) -> None:
    """The mask whole, and taken in blocks of rows."""
    shape = (*expected.shape[:2], queries, keys) if expected.ndim == 4 else (1, 1, queries, keys)
    expected = expected.expand(shape)
    assert torch.equal(mask.dense(queries, keys).expand(shape), expected)
    for start in range(queries):
        rows = range(start, min(start + 2, queries))
        block = mask.block(rows, keys, torch.device("cpu"))
        block = block.expand(*shape[:2], len(rows), keys)
        assert torch.equal(block, expected[:, :, rows.start : rows.stop])


@settings(max_examples=60, deadline=None)
@given(sizes, sizes, sides, sides, st.integers(-3, 3))
def test_window(queries: int, keys: int, left: int | None, right: int | None, offset: int) -> None:
    def allow(i: int, j: int) -> bool:
        after = left is None or i + offset - left <= j
        before = right is None or j <= i + offset + right
        return after and before

    check(headloom.window(left, right, offset), pairs(queries, keys, allow), queries, keys)


@settings(max_examples=30, deadline=None)
@given(sizes, sizes, st.integers(-3, 3))
def test_causal(queries: int, keys: int, offset: int) -> None:
    expected = pairs(queries, keys, lambda i, j: j <= i + offset)
    check(headloom.causal(offset), expected, queries, keys)


@settings(max_examples=30, deadline=None)
@given(st.lists(st.integers(0, 6), min_size=1, max_size=3), sizes, sizes)
def test_padding(lengths: list[int], queries: int, keys: int) -> None:
    expected = torch.stack([pairs(queries, keys, lambda i, j, n=n: j < n) for n in lengths])[
        :, None
    ]
    check(headloom.padding(lengths), expected, queries, keys)
    check(headloom.padding(torch.tensor(lengths)), expected, queries, keys)
    real = torch.stack([torch.arange(keys) < n for n in lengths])
    check(headloom.padding(real), expected, queries, keys)


@settings(max_examples=40, deadline=None)
@given(sizes, sizes, st.integers(0, 2**20))
def test_neighbours_in_every_format(queries: int, keys: int, seed: int) -> None:
    generator = torch.Generator().manual_seed(seed)
    adjacency = torch.randint(-1, 2, (queries, keys), generator=generator).float()
    expected = adjacency != 0
    for given_as in (
        adjacency,
        adjacency.bool(),
        adjacency.numpy(),
        adjacency.to_sparse(),
        scipy.sparse.csr_array(adjacency.numpy()),
        scipy.sparse.coo_array(adjacency.numpy()),
        scipy.sparse.csc_matrix(adjacency.numpy()),
    ):
        check(headloom.neighbours(given_as), expected, queries, keys)


@settings(max_examples=40, deadline=None)
@given(st.integers(1, 5), st.integers(1, 5), st.integers(0, 2**20))
def test_and_or_obey_logic(queries: int, keys: int, seed: int) -> None:
    generator = torch.Generator().manual_seed(seed)
    a, b = torch.rand(2, queries, keys, generator=generator) < 0.5
    rules = headloom.neighbours(a), headloom.neighbours(b)
    causal = pairs(queries, keys, lambda i, j: j <= i)
    check(rules[0] & rules[1], a & b, queries, keys)
    check(rules[0] | rules[1], a | b, queries, keys)
    check(rules[0] & b, a & b, queries, keys)
    check(rules[0] | b, a | b, queries, keys)
    check((headloom.causal() | rules[0]) & rules[1], (causal | a) & b, queries, keys)
    lengths = torch.tensor([1, keys])
    real = (torch.arange(keys) < lengths[:, None])[:, None, None, :]
    check(headloom.causal() & headloom.padding(lengths), causal & real, queries, keys)


@pytest.mark.parametrize("shape", [(3, 4), (2, 3, 4), (5, 2, 3, 4), (5, 1, 1, 4), (1, 4), (3, 1)])
def test_a_bool_tensor_is_a_mask(shape: tuple[int, ...]) -> None:
    torch.manual_seed(0)
    allowed = torch.rand(shape) < 0.5
    mask = as_mask(allowed)
    mask.check(5, 2, 3, 4)
    full = allowed.expand(5, 2, 3, 4)
    assert torch.equal(mask.dense(3, 4).expand(5, 2, 3, 4), full)
    block = mask.block(range(1, 3), 4, torch.device("cpu"))
    assert torch.equal(block.expand(5, 2, 2, 4), full[:, :, 1:3])


@pytest.mark.parametrize("far", (2**60, 2**63 - 1, 2**64, 10**30))
def test_windows_of_any_size_are_open(far: int) -> None:
    check(headloom.window(far, far), torch.ones(4, 6, dtype=torch.bool), 4, 6)
    check(headloom.window(far, 0), torch.ones(4, 6, dtype=torch.bool).tril(), 4, 6)
    check(headloom.window(0, far, 1), torch.ones(4, 6, dtype=torch.bool).triu(1), 4, 6)
    x = torch.randn(1, 5, 4, generator=torch.Generator().manual_seed(0))
    expected = headloom.attention(x, x, x, backend="torch")
    backends: tuple[Any, ...] = (None, "torch")
    for backend in backends:
        found = headloom.attention(x, x, x, mask=headloom.window(far, far), backend=backend)
        torch.testing.assert_close(found, expected)


def test_an_edge_index_is_read_as_pytorch_geometric_does() -> None:
    sources, targets = [1, 2, 2, 3, 1], [0, 0, 1, 2, 0]  # messages flow from sources to targets
    expected = torch.zeros(6, 6, dtype=torch.bool)
    for source, target in zip(sources, targets, strict=True):
        expected[target, source] = True  # the target looks at the source
    edges = torch.tensor([sources, targets])
    for given_as in (edges, edges.int(), edges.numpy()):
        check(headloom.neighbours(given_as, nodes=6), expected, 6, 6)
    check(headloom.neighbours(edges[:, :0], nodes=3), torch.zeros(3, 3, dtype=torch.bool), 3, 3)
    both = torch.tensor([[0, 1, 1], [1, 0, 1]])
    with pytest.raises(headloom.InputError, match="may be an edge_index or the adjacency"):
        headloom.neighbours(both)
    check(headloom.neighbours(both != 0), both != 0, 2, 3)
    check(headloom.neighbours(both, nodes=2), torch.tensor([[False, True], [True, True]]), 2, 2)


def test_packed_sequences_of_any_length_see_themselves_alone() -> None:
    """The second has queries and no key, the third keys and no query."""
    expected = torch.zeros(4, 7, dtype=torch.bool)
    expected[0, :2] = expected[3, 6:] = True
    check(packed([1, 2, 0, 1], [2, 0, 4, 1]), expected, 4, 7)
    square = torch.block_diag(*[torch.ones(n, n) for n in (2, 3)]).bool()
    check(packed([2, 0, 3]), square, 5, 5)
    check(packed([0, 0]), torch.zeros(0, 0, dtype=torch.bool), 0, 0)


def test_real_keys_side_by_side_are_ranges() -> None:
    """Kernels skip what ranges leave out; of keys with holes between them they ask the mask."""
    marked = torch.tensor([[0, 1, 1], [0, 0, 0], [1, 1, 1], [1, 0, 0]]).bool()
    bounds = headloom.padding(marked).bounds(2, 3)
    assert bounds.rest is None
    assert bounds.by_sequence is not None
    assert bounds.by_sequence.tolist() == [[1, 0, 0, 0], [3, 0, 3, 1]]
    holes = headloom.padding(torch.tensor([[1, 0, 1], [1, 1, 1]]).bool())
    assert holes.bounds(2, 3).rest is holes
    assert holes.bounds(2, 3).by_sequence is None


def test_ranges_that_rise_turn_into_ranges() -> None:
    """Also where neighbours begin or end at the same key; the definition is cell by cell."""
    ranges = Ranges(torch.tensor([0, 0, 1, 1]), torch.tensor([2, 3, 3, 5]))
    turned = ranges.transposed(4, 5)
    assert isinstance(turned, Ranges)
    assert torch.equal(turned.dense(5, 4), ranges.dense(4, 5).mT)
