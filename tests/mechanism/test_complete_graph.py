"""Graph attention on the complete graph by sorting, against all scores in float64."""

from __future__ import annotations

import pytest
import torch
from hypothesis import given, settings
from hypothesis import strategies as st
from torch import Tensor

import weft
from weft.mechanism.complete_graph import complete_graph_attention


def dense(a: Tensor, b: Tensor, values: Tensor, slope: float) -> Tensor:
    sums = a[..., :, None] + b[..., None, :]
    return torch.where(sums > 0, sums, slope * sums).softmax(-1) @ values


@settings(max_examples=60, deadline=None)
@given(
    seed=st.integers(0, 2**20),
    sizes=st.tuples(st.integers(0, 40), st.integers(1, 40), st.integers(1, 5)),
    size=st.sampled_from((0.0, 1.0, 30.0, 1e3, 1e6)),
    slope=st.sampled_from((0.0, 0.2, 1.0)),
)
def test_it_equals_the_dense_formula(
    seed: int, sizes: tuple[int, int, int], size: float, slope: float
) -> None:
    generator = torch.Generator().manual_seed(seed)
    queries, keys, depth = sizes

    def random(*shape: int) -> Tensor:
        return torch.randn(*shape, dtype=torch.float64, generator=generator)

    a, b = size * random(2, queries), size * random(2, keys)
    if keys > 3 and queries:
        b[:, 1] = b[:, 0]  # equal terms, and one at the edge of the two ranges
        b[:, 2:3] = -a[:, :1]
    parts = [part.requires_grad_() for part in (a, b, random(2, keys, depth))]
    output, expected = complete_graph_attention(*parts, slope), dense(*parts, slope)
    torch.testing.assert_close(output, expected, rtol=1e-9, atol=1e-9)
    by_output = random(*output.shape)
    mine = torch.autograd.grad(output, parts, by_output, create_graph=True)
    theirs = torch.autograd.grad(expected, parts, by_output, create_graph=True)
    for one, other in zip(mine, theirs, strict=True):
        torch.testing.assert_close(one, other, rtol=1e-7, atol=1e-8)
    if not queries:
        return
    again = torch.autograd.grad(sum(g.square().sum() for g in mine), parts)
    again_dense = torch.autograd.grad(sum(g.square().sum() for g in theirs), parts)
    for one, other in zip(again, again_dense, strict=True):
        torch.testing.assert_close(one, other, rtol=1e-6, atol=1e-6)


def test_it_holds_in_float32_for_huge_terms() -> None:
    generator = torch.Generator().manual_seed(0)
    a, b = 1e4 * torch.randn(2, 500, generator=generator)
    values = torch.randn(500, 3, generator=generator)
    exact = dense(a.double(), b.double(), values.double(), 0.2)
    torch.testing.assert_close(
        complete_graph_attention(a, b, values).double(), exact, rtol=0, atol=0.02
    )


def test_attention_takes_it_for_a_long_call(monkeypatch: pytest.MonkeyPatch) -> None:
    generator = torch.Generator().manual_seed(0)
    x = torch.randn(1, 2, 300, 4, generator=generator)
    score = weft.GraphAttention(*torch.randn(2, 2, 4, generator=generator))
    output = weft.attention(x, x, x, score=score)
    torch.testing.assert_close(
        output, weft.attention(x, x, x, score=score, backend="torch"), rtol=1e-5, atol=1e-5
    )
    # No keys x keys tensor: 10^10 scores would take 40 GB.
    many = torch.randn(1, 100_000, 1, generator=generator)
    vector = torch.ones(1)
    assert (
        weft.attention(many, many, many, score=weft.GraphAttention(vector, vector)).isfinite().all()
    )


def test_bad_input() -> None:
    with pytest.raises(weft.ShapeError, match=r"key terms \(3\)"):
        complete_graph_attention(torch.zeros(2), torch.zeros(3), torch.zeros(4, 1))
    with pytest.raises(weft.InputError, match="slope=2"):
        complete_graph_attention(torch.zeros(2), torch.zeros(3), torch.zeros(3, 1), 2)


def test_without_keys_the_output_is_0() -> None:
    found = complete_graph_attention(torch.ones(2, 3), torch.ones(2, 0), torch.ones(2, 0, 4))
    assert torch.equal(found, torch.zeros(2, 3, 4))
