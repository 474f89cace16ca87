"""Masks against their definitions, pair by pair."""

from __future__ import annotations

from typing import Any

import numpy as np
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


@pytest.mark.parametrize("name", ["causal", "window"])
def test_an_offset_that_is_none_names_the_mask_that_was_asked_for(name: str) -> None:
    wrong: Any = "a"
    arguments = (wrong,) if name == "causal" else (1, 1, wrong)
    with pytest.raises(
        headloom.InputError, match=f"^{name}: offset is 'a'; expected a whole number"
    ):
        getattr(headloom, name)(*arguments)


@pytest.mark.parametrize(
    ("left", "right", "offset"),
    [
        (150, 90, 0), (None, 0, 0), (None, 0, 200), (0, None, -130), (3, 5, 170), (120, 0, -100),
        (0, 0, 2**30), (None, 2, -(2**30)), (10**9, 10**9, 7),
    ],
)  # fmt: skip
def test_the_band_of_a_wide_window_is_its_definition(
    left: int | None, right: int | None, offset: int
) -> None:
    """What kernels are given: key j of query i, as j - i, and the same of the other way round."""
    queries, keys = 260, 310
    i, j = np.arange(queries)[:, None], np.arange(keys)[None]
    allowed = np.ones((queries, keys), bool)
    if left is not None:
        allowed &= j >= i + offset - left
    if right is not None:
        allowed &= j <= i + offset + right
    mask = headloom.window(left, right, offset)
    for one, there in ((mask, allowed), (mask.transposed(queries, keys), allowed.T)):
        bounds = one.bounds(*there.shape)
        assert bounds.band is not None
        assert bounds.rest is bounds.by_sequence is bounds.by_query is None
        first, last = bounds.band
        away = np.arange(there.shape[1])[None] - np.arange(there.shape[0])[:, None]
        assert np.array_equal((away >= first) & (away <= last), there)


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


def test_padding_of_one_sequence() -> None:
    expected = [[True, True, False]]
    assert headloom.padding(2).dense(1, 3)[0, 0].tolist() == expected
    assert (
        headloom.padding(torch.tensor([True, True, False])).dense(1, 3)[0, 0].tolist() == expected
    )


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


def test_neighbours_leaves_the_callers_matrix_alone() -> None:
    """A stored 0 is no edge; but it is not ours to remove."""
    matrix = scipy.sparse.csr_array(
        (np.array([1.0, 0.0, 2.0]), np.array([0, 1, 0]), np.array([0, 2, 3])), shape=(2, 2)
    )
    mask = headloom.neighbours(matrix)
    assert mask.dense(2, 2)[0, 0].tolist() == [[True, False], [True, False]]
    assert matrix.nnz == 3
    matrix.indices[0] = 1
    assert mask.dense(2, 2)[0, 0].tolist() == [[True, False], [True, False]]


def test_neighbours_adds_up_what_is_stored_twice() -> None:
    matrix = scipy.sparse.csr_array(
        (np.array([1.0, -1.0, 1.0, 1.0]), np.array([0, 0, 1, 1]), np.array([0, 4])), shape=(1, 2)
    )
    assert headloom.neighbours(matrix).dense(1, 2)[0, 0].tolist() == [[False, True]]


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


def test_both_and_either_check_both_sides() -> None:
    wrong = headloom.neighbours(torch.ones(2, 2))
    for mask in (headloom.causal() & wrong, wrong & headloom.causal(), headloom.causal() | wrong):
        with pytest.raises(headloom.ShapeError, match=r"\(2, 2\)"):
            mask.check(1, 1, 3, 3)
        mask.check(1, 1, 2, 2)


def test_a_tensor_may_stand_before_a_mask() -> None:
    allowed = torch.tensor([[True, True], [False, True]])
    assert (allowed & headloom.causal()).dense(2, 2)[0, 0].tolist() == [
        [True, False],
        [False, True],
    ]
    assert (allowed | headloom.causal()).dense(2, 2)[0, 0].tolist() == [[True, True], [True, True]]


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


def test_a_mask_of_no_queries_has_no_ranges() -> None:
    found = as_mask(torch.zeros(0, 4, dtype=torch.bool)).ranges(0, 4)
    assert found is not None and found.shape == (2, 0)


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


@pytest.mark.parametrize("lengths", [[1.0, 2.0], [1 + 0j], [[1, 2]], [[[True]]]])
def test_what_is_no_length(lengths: Any) -> None:
    with pytest.raises(headloom.InputError, match="padding: got torch"):
        headloom.padding(lengths)


@pytest.mark.parametrize("backend", ("native", "torch"))
def test_no_sequences_are_a_batch_of_none(backend: Any) -> None:
    batch, packed_tokens = torch.zeros(0, 2, 5, 4), torch.zeros(2, 0, 4)
    for lengths in ([], (), torch.zeros(0, dtype=torch.int64)):
        mask = headloom.padding(lengths) & headloom.causal()
        _, graph = headloom.attend(batch, batch, batch, mask=mask, backend=backend)
        assert graph.shape == (0, 2, 5, 5)
        mask = headloom.packed(lengths)
        _, graph = headloom.attend(
            packed_tokens, packed_tokens, packed_tokens, mask=mask, backend=backend
        )
        assert graph.shape == (2, 0, 0)
    with pytest.raises(
        headloom.ShapeError, match="padding: 0 sequences in the mask, 2 in the batch"
    ):
        headloom.attention(*[torch.zeros(2, 2, 5, 4)] * 3, mask=headloom.padding([]))


def test_packed_sequences_must_fill_the_keys_too() -> None:
    tokens = torch.zeros(1, 9, 4)
    with pytest.raises(headloom.ShapeError, match="have 17 keys, the call has 9"):
        headloom.attention(tokens, tokens, tokens, mask=headloom.packed([4, 5], [8, 9]))


@pytest.mark.filterwarnings("ignore:.torch.jit.script:DeprecationWarning")  # torch's own calls
@pytest.mark.filterwarnings("ignore:Attempted to insert a get_attr Node:UserWarning")
def test_lengths_are_traced_and_mapped_over_by_torch_func() -> None:
    generator = torch.Generator().manual_seed(0)
    queries, keys, values = (
        torch.randn(2, heads, length, 8, generator=generator)
        for heads, length in ((4, 5), (2, 7), (2, 7))
    )
    lengths = torch.tensor([7, 4])
    expected = headloom.attention(queries, keys, values, mask=headloom.padding(lengths))
    direction = torch.randn(queries.shape, generator=generator)

    def of(queries: torch.Tensor) -> torch.Tensor:
        return headloom.attention(queries, keys, values, mask=headloom.padding(lengths))

    output, linear = torch.func.linearize(of, queries)
    _, forward = torch.func.jvp(of, (queries,), (direction,))
    torch.testing.assert_close(output, expected)
    torch.testing.assert_close(linear(direction), forward)

    def of_one(q: torch.Tensor, k: torch.Tensor, v: torch.Tensor, n: torch.Tensor) -> torch.Tensor:
        return headloom.attention(q[None], k[None], v[None], mask=headloom.padding(n))[0]

    mapped = torch.vmap(of_one)(queries, keys, values, lengths[:, None])
    torch.testing.assert_close(mapped, expected)


@pytest.mark.filterwarnings("ignore:.torch.jit.script:DeprecationWarning")  # torch's own call
def test_the_mask_of_a_graph_is_made_inside_torch_func() -> None:
    generator = torch.Generator().manual_seed(0)
    adjacency = torch.rand(5, 5, generator=generator) < 0.6
    tokens = torch.randn(2, 5, 3, generator=generator).double()
    sources, targets = adjacency.T.nonzero(as_tuple=True)
    edge_index = torch.stack((sources, targets))
    leaf = tokens.clone().requires_grad_()
    headloom.attention(leaf, leaf, leaf, mask=adjacency).sum().backward()
    for graph, nodes in ((adjacency, None), (adjacency.to_sparse(), None), (edge_index, 5)):

        def output(x: torch.Tensor, graph: Any = graph, nodes: Any = nodes) -> torch.Tensor:
            return headloom.attention(x, x, x, mask=headloom.neighbours(graph, nodes))

        found = torch.func.grad(lambda x, output=output: output(x).sum())(tokens)
        torch.testing.assert_close(found, leaf.grad)
        _, forward = torch.func.jvp(output, (tokens,), (torch.ones_like(tokens),))
        torch.testing.assert_close(forward.sum(), found.sum())
