"""Every score against its formula, written pair by pair in the reference."""

from __future__ import annotations

from typing import Any

import pytest
import torch
from hypothesis import given, settings
from hypothesis import strategies as st
from torch import Tensor

import headloom
from headloom.mechanism import scores
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


@pytest.mark.parametrize(
    ("score", "scale", "cells"),
    [
        (headloom.Dot(), 1.0, 1),
        (headloom.ScaledDot(), 0.5, 1),
        (headloom.Bilinear(torch.eye(4)), 1.0, 1),
        (headloom.Additive(torch.ones(7, 4), torch.ones(7, 4), torch.ones(7)), 1.0, 7),
        (headloom.GraphAttention(torch.ones(4), torch.ones(4)), 1.0, 1),
        (headloom.GraphAttentionV2(torch.ones(4)), 1.0, 4),
    ],
)
def test_default_scale_and_cost(score: scores.Score, scale: float, cells: int) -> None:
    assert score.default_scale(4) == scale
    assert score.cells_per_score(4) == cells


def test_depth_zero_has_a_scale() -> None:
    assert headloom.ScaledDot().default_scale(0) == 1.0


def test_a_bilinear_form_for_each_head() -> None:
    torch.manual_seed(3)
    queries, keys = torch.randn(2, 3, 4, 5).double(), torch.randn(2, 3, 6, 7).double()
    A = torch.randn(3, 5, 7).double()
    expected = torch.stack([queries[:, h] @ A[h] @ keys[:, h].mT for h in range(3)], 1)
    torch.testing.assert_close(headloom.Bilinear(A)(queries, keys), expected, rtol=0, atol=1e-12)


@pytest.mark.parametrize(
    ("score", "field", "by_head"),
    [
        (lambda heads: headloom.Bilinear(torch.randn(heads, 4, 4)), "matrix", True),
        (lambda heads: headloom.Bilinear(torch.randn(4, 4)), "matrix", False),
        (lambda heads: headloom.GraphAttentionV2(torch.randn(heads, 4)), "vector", True),
        (lambda heads: headloom.GraphAttentionV2(torch.randn(heads)), "vector", False),
    ],
)
def test_the_score_of_one_head(score: Any, field: str, by_head: bool) -> None:
    for heads in (1, 2, 5):
        whole = score(heads)
        parameter = getattr(whole, field)
        for head in range(5 if heads == 1 else heads):
            own = getattr(whole.of_head(head), field)
            # One for all heads stays; of several, that of the head, which keeps its dimension.
            assert torch.equal(own, parameter[head][None] if by_head and heads > 1 else parameter)


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


@pytest.mark.parametrize(
    "score",
    [
        headloom.Bilinear(torch.randn(3, 5)),
        headloom.Additive(torch.randn(7, 3), torch.randn(7, 5), torch.randn(7)),
        headloom.GraphAttention(torch.randn(3), torch.randn(5)),
    ],
)
def test_queries_and_keys_of_two_depths(score: scores.Score) -> None:
    queries, keys, values = torch.randn(1, 2, 3), torch.randn(1, 4, 5), torch.randn(1, 4, 2)
    expected = torch.stack(
        [
            sum(
                weight * value
                for weight, value in zip(
                    torch.stack([score(q[None], k[None])[0, 0] for k in keys[0]]).softmax(0),
                    values[0],
                    strict=True,
                )
            )
            for q in queries[0]
        ]
    )
    torch.testing.assert_close(
        headloom.attention(queries, keys, values, score=score)[0], expected, rtol=1e-5, atol=1e-5
    )


def test_the_slope_of_the_papers() -> None:
    """LeakyReLU with a negative slope of 0.2 (Velickovic et al. 2018; Brody et al. 2022)."""
    one = torch.ones(1)
    assert headloom.GraphAttention(one, one)(-one[None], -one[None]).item() == pytest.approx(-0.4)
    assert headloom.GraphAttentionV2(one)(-one[None], -one[None]).item() == pytest.approx(-0.4)
    assert headloom.GraphAttention(one, one)(-one[None], -one[None]).item() == pytest.approx(-0.4)
    assert headloom.GraphAttentionV2(one)(-one[None], -one[None]).item() == pytest.approx(-0.4)
