"""attention() and attend() on calls of their own: ties, half precision, dropout, huge scores, and
the formulas that are attention under another name."""

from __future__ import annotations

import math
from typing import Any
from unittest.mock import patch

import pytest
import torch
from hypothesis import given, settings
from hypothesis import strategies as st
from torch import Tensor

import headloom
from headloom.mechanism.backends import torch_blocks
from headloom.mechanism.reference import scores as pair_scores
from headloom.mechanism.reference.call import attend as reference_attend
from headloom.mechanism.reference.call import scores_of_heads


@settings(max_examples=60, deadline=None)
@given(
    st.integers(0, 2**20),
    st.integers(0, 12),
    st.integers(0, 14),
    st.sampled_from((torch.float32, torch.float64)),
    st.sampled_from((torch_blocks.BLOCK_CELLS, 1)),
)
def test_top_k_of_whole_scores_breaks_ties_by_the_lower_key(
    seed: int, length: int, k: int, dtype: torch.dtype, cells: int
) -> None:
    """Whole numbers make scores exact, so that ties are ties and the kept keys are decided."""
    generator = torch.Generator().manual_seed(seed)

    def whole(*shape: int) -> Tensor:
        return torch.randint(-2, 3, shape, generator=generator).to(dtype)

    queries, keys, values = whole(2, 2, 3, 2), whole(2, 1, length, 2), whole(2, 1, length, 2)
    allowed = torch.rand(2, 1, 3, length, generator=generator) < 0.8
    raw = scores_of_heads(queries.double(), keys.double(), lambda q, k, head: pair_scores.dot(q, k))
    expected = reference_attend(raw, values.double(), allowed=allowed, k=k)
    with patch.object(torch_blocks, "BLOCK_CELLS", cells):
        _, graph = headloom.attend(
            queries, keys, values, score=headloom.Dot(), mask=allowed, keep=headloom.Top(k)
        )
    assert torch.equal(graph.keys.long(), expected.kept_keys)
    assert torch.equal(graph.scores.double(), expected.kept_scores)


class TestDropout:
    @pytest.mark.parametrize("path", ["fused", "masked", "blocks", "graph", "all"])
    def test_weights_are_dropped_or_grow(self, path: str) -> None:
        """Values are the identity, so that the output is the dropped weights."""
        torch.manual_seed(0)
        length = 60
        inputs = torch.randn(1, length, 4), torch.randn(1, length, 4), torch.eye(length)[None]
        _, weights = headloom.attend(*inputs, keep=headloom.All())
        options: dict[str, Any] = {"dropout": 0.25}
        if path == "masked":
            options["mask"] = headloom.padding(length)
        if path == "blocks":
            options["sinks"] = torch.tensor([-1e30])
        if path in ("graph", "all"):
            keep = headloom.Top(length) if path == "graph" else headloom.All()
            output, caught = headloom.attend(*inputs, keep=keep, **options)
            dense = caught.to_dense() if isinstance(caught, headloom.AttentionGraph) else caught
            torch.testing.assert_close(dense, weights)  # weights before dropout
        else:
            output = headloom.attention(*inputs, **options)
        dropped = output == 0
        assert 0.2 < dropped.float().mean() < 0.3
        torch.testing.assert_close(output[~dropped], (weights / 0.75)[~dropped])

    def test_the_backward_pass_draws_the_same(self) -> None:
        """Recomputed blocks drop what the forward pass dropped: out_i is linear in the values."""
        torch.manual_seed(0)
        queries, keys = torch.randn(2, 1, 30, 4)
        values = torch.eye(30)[None].requires_grad_()
        with patch.object(torch_blocks, "BLOCK_CELLS", 90):
            output, _ = headloom.attend(queries, keys, values, dropout=0.5)
            output[0, 7].sum().backward()
        torch.testing.assert_close(values.grad[0, :, 0], output[0, 7].detach())


def test_a_row_without_keys_has_no_nan_anywhere() -> None:
    queries, keys, values = (torch.randn(1, 2, 3).requires_grad_() for _ in range(3))
    mask = torch.tensor([[False, False], [True, False]])
    output, graph = headloom.attend(queries, keys, values, mask=mask, keep=headloom.Top(2))
    assert output[0, 0].tolist() == [0, 0, 0]
    assert graph.keys[0].tolist() == [[-1, -1], [0, -1]]
    assert graph.lse[0, 0] == -math.inf
    assert graph.entropy[0].tolist() == [0, 0]
    assert graph.rest[0].tolist() == [0, 0]
    assert graph.count[0].tolist() == [0, 1]
    finite = graph.lse[0, 1] + graph.entropy.sum() + graph.weights.sum() + graph.rest.sum()
    (output.sum() + finite).backward()
    for tensor in (queries, keys, values):
        assert tensor.grad is not None
        assert bool(tensor.grad.isfinite().all())
    assert queries.grad is not None
    assert queries.grad[0, 0].tolist() == [0, 0, 0]


def test_symmetric_is_known_only_of_one_sequence_and_a_symmetric_score() -> None:
    x, y = torch.randn(2, 1, 4, 3)
    A = torch.randn(3, 3)
    assert headloom.attend(x, x, x)[1].symmetric
    assert headloom.attend(x, x, x, score=headloom.Bilinear(A, symmetric=True))[1].symmetric
    assert not headloom.attend(x, y, y)[1].symmetric
    assert not headloom.attend(x, x, x, score=headloom.Bilinear(A))[1].symmetric
    assert not headloom.attend(x, x, x, bias=torch.zeros(4, 4))[1].symmetric


@pytest.mark.parametrize("scale", (-1.0, 0.0, -1e-3))
@pytest.mark.parametrize("mask", ("causal", "padding", "bool"))
@pytest.mark.parametrize("dtype", (torch.float32, torch.float64, torch.bfloat16))
@pytest.mark.parametrize("backend", (None, "torch"))
def test_scales_that_are_not_above_0(scale: float, mask: str, dtype: Any, backend: Any) -> None:
    x = torch.randn(1, 2, 9, 4, generator=torch.Generator().manual_seed(0)).to(dtype)
    visible = torch.ones(9, 9, dtype=torch.bool).tril()
    masks = {"causal": headloom.causal(), "padding": headloom.padding([4]), "bool": visible}
    seen = torch.arange(9) < 4 if mask == "padding" else visible
    scores = scale * (x.double() @ x.double().transpose(-1, -2))
    weights = scores.masked_fill(~seen, -torch.inf).softmax(-1)
    tolerance = 2e-2 if dtype == torch.bfloat16 else 1e-5
    found = headloom.attention(
        x, x, x, mask=masks[mask], score=headloom.Dot(), scale=scale, backend=backend
    )
    expected = weights @ x.double()
    torch.testing.assert_close(found.double(), expected, rtol=tolerance, atol=tolerance)


@pytest.mark.parametrize("backend", (None, "torch"))
def test_half_precision_positions_and_biases_keep_their_digits(backend: Any) -> None:
    generator = torch.Generator().manual_seed(0)
    x = torch.randn(1, 2, 40, 8, generator=generator).bfloat16()
    slopes = torch.tensor([0.7, 0.3]).bfloat16()
    level = torch.full((1, 1, 40, 1), 5000.0).bfloat16()  # equal for all keys: changes nothing
    distance = (torch.arange(40)[None, :] - torch.arange(40)[:, None]).abs()
    scores = x.double() @ x.double().transpose(-1, -2)
    scores = scores - slopes.double()[:, None, None] * distance
    expected = scores.softmax(-1) @ x.double()
    for bias in (None, level):
        found = headloom.attention(
            x,
            x,
            x,
            score=headloom.Dot(),
            relative=headloom.ALiBi(slopes),
            bias=bias,
            backend=backend,
        )
        torch.testing.assert_close(found.double(), expected, rtol=2e-2, atol=2e-2)


@pytest.mark.parametrize("backend", ("native", "torch"))
@pytest.mark.parametrize("dtype", (torch.float32, torch.bfloat16))
def test_views_that_are_negated(backend: Any, dtype: torch.dtype) -> None:
    """The imaginary part of a conjugate: its memory holds the numbers with the other sign."""
    parts = [torch.randn(1, 2, 9, 4, dtype=torch.complex64).conj().imag for _ in range(4)]
    assert all(part.is_neg() for part in parts)
    if dtype == torch.bfloat16:  # as a view of memory of that type
        parts = [torch._neg_view(-part.resolve_neg().to(dtype)) for part in parts]
        assert all(part.is_neg() for part in parts)
    queries, keys, values, by_output = parts
    bias = torch.randn(9, 9, dtype=torch.complex64).conj().imag
    sinks = torch.randn(2, dtype=torch.complex64).conj().imag
    leaves = [part.detach().requires_grad_() for part in (queries, keys, values)]
    output, graph = headloom.attend(*leaves, bias=bias, sinks=sinks, backend=backend)
    exact = [part.detach().double().resolve_neg().requires_grad_() for part in leaves]
    logits = exact[0] @ exact[1].mT / 2 + bias.double()
    logits = torch.cat((logits, sinks.double()[:, None, None].expand(1, 2, 9, 1)), -1)
    expected = logits.softmax(-1)[..., :9] @ exact[2]
    near = 2e-6 if dtype == torch.float32 else 2e-2
    torch.testing.assert_close(output.double(), expected, rtol=near, atol=near)
    torch.testing.assert_close(graph.lse.double(), logits.logsumexp(-1), rtol=near, atol=near)
    found = torch.autograd.grad((output * by_output).sum(), leaves)
    wanted = torch.autograd.grad((expected * by_output.double()).sum(), exact)
    for mine, theirs in zip(found, wanted, strict=True):
        torch.testing.assert_close(mine.double(), theirs, rtol=3 * near, atol=3 * near)


@pytest.mark.parametrize("backend", ("native", "torch"))
def test_a_row_with_an_infinite_score_says_that_it_is_no_number(backend: Any) -> None:
    tokens = torch.randn(1, 3, 4, generator=torch.Generator().manual_seed(0))
    bias = torch.zeros(3, 3)
    bias[1, 2], bias[2, 0] = math.inf, -math.inf
    output, graph = headloom.attend(
        tokens, tokens, tokens, bias=bias, keep=headloom.Top(1), backend=backend
    )
    for row in (output.sum(-1), graph.lse, graph.entropy, graph.rest, graph.weights.sum(-1)):
        assert row[0].isnan().tolist() == [False, True, False]
    assert graph.to_dense()[0, 1].isnan().all()
    assert graph.count[0].tolist() == [3, 3, 2]


@pytest.mark.parametrize("backend", (None, "torch"))
@pytest.mark.parametrize("size", (1e8, 3e12))
def test_gradients_of_huge_scores_are_numbers(size: float, backend: Any) -> None:
    generator = torch.Generator().manual_seed(0)
    inputs = [size * torch.randn(2, 83, 32, generator=generator) for _ in range(2)]
    inputs.append(torch.randn(2, 83, 32, generator=generator))
    leaves = [tensor.requires_grad_() for tensor in inputs]
    exact = [tensor.detach().double().requires_grad_() for tensor in inputs]
    found = torch.autograd.grad(headloom.attention(*leaves, backend=backend).sum(), leaves)
    weights = torch.softmax(exact[0] @ exact[1].transpose(-1, -2) / 32**0.5, -1)
    expected = torch.autograd.grad((weights @ exact[2]).sum(), exact)
    for mine, theirs in zip(found, expected, strict=True):
        # Of queries and keys: what rounding leaves of terms as large as the inputs.
        near = 1e-5 if theirs is expected[2] else 1e-5 * size
        torch.testing.assert_close(mine.double(), theirs, rtol=1e-4, atol=near)


def test_an_exported_graph_is_of_any_length() -> None:
    A = torch.randn(4, 4, generator=torch.Generator().manual_seed(1))

    class Graph(torch.nn.Module):
        def forward(self, tokens: Tensor) -> tuple[Tensor | None, ...]:
            options: Any = {"score": headloom.Bilinear(A), "softcap": 5.0, "sinks": torch.zeros(2)}
            three = (tokens, tokens, tokens)
            output, graph = headloom.attend(*three, keep=headloom.Top(3), received=True, **options)
            _, weights = headloom.attend(*three, keep=headloom.All(), **options)
            return output, graph.keys, graph.entropy, graph.received, weights

    generator = torch.Generator().manual_seed(0)
    length = torch.export.Dim("length", min=5, max=64)
    given = (torch.randn(1, 2, 6, 4, generator=generator),)
    program = torch.export.export(Graph(), given, dynamic_shapes=({2: length},))
    longer = torch.randn(1, 2, 31, 4, generator=generator)
    for found, expected in zip(program.module()(longer), Graph()(longer), strict=True):
        torch.testing.assert_close(found, expected)
