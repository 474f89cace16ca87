"""Every score against its formula, written pair by pair in the reference."""

from __future__ import annotations

from typing import Any

import pytest
import torch
from hypothesis import given, settings
from hypothesis import strategies as st
from torch import Tensor

import headloom
from headloom.mechanism.reference import attention
from headloom.mechanism.reference import scores as formulas


@st.composite
def pairs(draw: st.DrawFn) -> tuple[Tensor, Tensor, torch.Generator]:
    """Queries (..., queries, depth) and keys (..., keys, depth), of any size from 0."""
    generator = torch.Generator().manual_seed(draw(st.integers(0, 2**20)))
    leading = draw(st.sampled_from(((), (2,), (2, 3), (1, 1))))
    rows, length, depth = draw(st.tuples(*[st.integers(0, 4)] * 2, st.integers(1, 5)))
    size = draw(st.sampled_from((1.0, 1e4, 1e-4)))
    queries = torch.randn(*leading, rows, depth, dtype=torch.float64, generator=generator) * size
    keys = torch.randn(*leading, length, depth, dtype=torch.float64, generator=generator)
    return queries, keys, generator


def check(ours: Tensor, queries: Tensor, keys: Tensor, formula: Any) -> None:
    """`formula` gives the scores of one (queries, keys); `ours` has leading dimensions."""
    rows, length = queries.shape[-2], keys.shape[-2]
    assert ours.shape == (*queries.shape[:-1], length)
    flat_queries = queries.reshape(queries[..., 0, 0].numel() if rows else -1, *queries.shape[-2:])
    for own, q, k in zip(
        ours.reshape(len(flat_queries), rows, length),
        flat_queries,
        keys.reshape(len(flat_queries), *keys.shape[-2:]),
        strict=True,
    ):
        torch.testing.assert_close(own, formula(q, k), rtol=1e-11, atol=1e-11)


@settings(max_examples=25, deadline=None)
@given(pairs())
def test_dot_and_scaled_dot(drawn: tuple[Tensor, Tensor, torch.Generator]) -> None:
    queries, keys, _ = drawn
    if 0 in queries.shape:
        assert headloom.Dot()(queries, keys).shape == (*queries.shape[:-1], keys.shape[-2])
        return
    depth = queries.shape[-1]
    check(headloom.Dot()(queries, keys), queries, keys, formulas.dot)
    scale = headloom.ScaledDot().default_scale(depth)
    check(
        scale * headloom.ScaledDot()(queries, keys),
        queries,
        keys,
        lambda q, k: attention.scale(attention.score(q, k), depth),
    )


@settings(max_examples=25, deadline=None)
@given(pairs(), st.integers(1, 4))
def test_bilinear(drawn: tuple[Tensor, Tensor, torch.Generator], key_depth: int) -> None:
    queries, keys, generator = drawn
    if 0 in queries.shape:
        return
    depth = queries.shape[-1]
    A = torch.randn(depth, key_depth, dtype=torch.float64, generator=generator)
    other = torch.randn(*keys.shape[:-1], key_depth, dtype=torch.float64, generator=generator)
    check(
        headloom.Bilinear(A)(queries, other),
        queries,
        other,
        lambda q, k: formulas.bilinear(q, k, A),
    )
    square = torch.randn(depth, depth, dtype=torch.float64, generator=generator)
    check(
        headloom.Bilinear(square, symmetric=True)(queries, keys),
        queries,
        keys,
        lambda q, k: formulas.symmetric_bilinear(q, k, square),
    )


@settings(max_examples=25, deadline=None)
@given(pairs(), st.integers(1, 4), st.integers(1, 4))
def test_additive(
    drawn: tuple[Tensor, Tensor, torch.Generator], hidden: int, key_depth: int
) -> None:
    queries, keys, generator = drawn
    if 0 in queries.shape:
        return
    W = torch.randn(hidden, queries.shape[-1], dtype=torch.float64, generator=generator)
    U = torch.randn(hidden, key_depth, dtype=torch.float64, generator=generator)
    v = torch.randn(hidden, dtype=torch.float64, generator=generator)
    other = torch.randn(*keys.shape[:-1], key_depth, dtype=torch.float64, generator=generator)
    check(
        headloom.Additive(W, U, v)(queries, other),
        queries,
        other,
        lambda q, k: formulas.additive(q, k, W, U, v),
    )


@settings(max_examples=25, deadline=None)
@given(pairs(), st.sampled_from((0.0, 0.2, 1.0)))
def test_graph_attention(drawn: tuple[Tensor, Tensor, torch.Generator], slope: float) -> None:
    queries, keys, generator = drawn
    if 0 in queries.shape:
        return
    depth = queries.shape[-1]
    a = torch.randn(2 * depth, dtype=torch.float64, generator=generator)
    check(
        headloom.GraphAttention(a[:depth], a[depth:], slope)(queries, keys),
        queries,
        keys,
        lambda q, k: formulas.graph_attention(q, k, a, slope=slope),
    )
    check(
        headloom.GraphAttentionV2(a[:depth], slope)(queries, keys),
        queries,
        keys,
        lambda q, k: formulas.graph_attention_v2(q, k, a[:depth], slope=slope),
    )


def test_only_version_2_ranks_keys_by_the_query() -> None:
    """Version 1 ranks the keys alike for every query (Brody et al. 2022, theorem 1)."""
    torch.manual_seed(0)
    queries, keys, a = torch.randn(40, 3), torch.randn(6, 3), torch.randn(2, 3)
    best = headloom.GraphAttention(a[0], a[1])(queries, keys).argmax(-1)
    assert len(set(best.tolist())) == 1
    best = headloom.GraphAttentionV2(a[0])(queries, keys).argmax(-1)
    assert len(set(best.tolist())) > 1


def test_a_symmetric_form_makes_a_symmetric_matrix() -> None:
    x, A = torch.randn(2, 5, 3, dtype=torch.float64), torch.randn(3, 3, dtype=torch.float64)
    matrix = headloom.Bilinear(A, symmetric=True)(x, x)
    torch.testing.assert_close(matrix, matrix.mT, rtol=0, atol=1e-14)
    free = headloom.Bilinear(A)(x, x)
    assert not torch.allclose(free, free.mT)
    form = headloom.Bilinear(A, symmetric=True).form()
    assert torch.equal(form, form.T)


@pytest.mark.parametrize("dtype", [torch.float16, torch.bfloat16])
def test_parameters_of_half_precision(dtype: torch.dtype) -> None:
    queries = torch.zeros(1, 2, 3, 4, dtype=dtype)
    for taken in (torch.float16, torch.bfloat16, torch.float32):
        headloom.Bilinear(torch.zeros(4, 4, dtype=taken)).check(queries, queries)
    with pytest.raises(headloom.InputError, match=r"matrix is torch.float64, the queries are"):
        headloom.Bilinear(torch.zeros(4, 4, dtype=torch.float64)).check(queries, queries)
    with pytest.raises(
        headloom.InputError, match=f"matrix is {dtype}, the queries are torch.float32"
    ):
        headloom.Bilinear(torch.zeros(4, 4, dtype=dtype)).check(queries.float(), queries.float())
    with pytest.raises(headloom.InputError, match="matrix is list, the queries are"):
        headloom.Bilinear([[1.0]]).check(queries, queries)  # type: ignore[arg-type]
