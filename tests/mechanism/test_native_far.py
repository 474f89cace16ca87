"""Scores far from 0: as in float64 on every instruction set, forward and backward, edges too."""

from __future__ import annotations

import math

import pytest
import torch
from torch import Tensor

import headloom

pytestmark = pytest.mark.usefixtures("instruction_set")


def exact(queries: Tensor, keys: Tensor, values: Tensor, bias: Tensor) -> tuple[Tensor, Tensor]:
    """Weights and output in float64."""
    scores = queries.double() @ keys.double().transpose(-1, -2) + bias.double()
    weights = torch.softmax(scores, -1)
    return weights, weights @ values.double()


# Whole numbers of few digits times a power of two: every product is exact in every type.
@pytest.mark.parametrize("dtype", (torch.float32, torch.bfloat16))
@pytest.mark.parametrize("sizes", ((4, 7), (40, 100), (40, 1030)))
@pytest.mark.parametrize("level", (2.0**19, 2.0**20, 2.0**33, 2.0**60, 2.0**125))
@pytest.mark.parametrize("sign", (1, -1))
def test_scores_of_any_size(
    dtype: torch.dtype, sizes: tuple[int, int], level: float, sign: int
) -> None:
    generator = torch.Generator().manual_seed(0)
    rows, length = sizes

    def whole(*shape: int) -> Tensor:
        return torch.randint(-1, 2, shape, generator=generator).float()

    power = int(math.log2(level))
    unit = 2.0 ** max(0, power - 6)  # every score is a multiple of it
    queries, keys = whole(2, rows, 3), whole(2, length, 3)
    queries[..., 0], keys[..., 0] = 2.0 ** (power // 2), sign * 2.0 ** (power - power // 2)
    keys[..., 1:] *= unit
    keys[:, ::3, 0] *= 1.5  # a third lie far above the others, or below
    values = whole(2, length, 5)
    inputs = [tensor.to(dtype) for tensor in (queries, keys, values)]
    weights, output = exact(*inputs, torch.zeros(()))
    tolerance = 1e-4 if dtype == torch.float32 else 2e-2

    found = headloom.attention(*inputs, score=headloom.Dot(), backend="native")
    torch.testing.assert_close(found.double(), output, rtol=tolerance, atol=tolerance)

    leaves = [tensor.clone().requires_grad_() for tensor in inputs]
    found, graph = headloom.attend(
        *leaves, score=headloom.Dot(), keep=headloom.Top(3), backend="native"
    )
    torch.testing.assert_close(found.double(), output, rtol=tolerance, atol=tolerance)
    dense = torch.zeros_like(weights).scatter_(-1, graph.keys.long(), graph.weights.double())
    strongest = torch.where(dense > 0, weights, 0.0)
    torch.testing.assert_close(dense, strongest, rtol=1e-4, atol=1e-5)
    entropy = torch.special.entr(weights).sum(-1)
    torch.testing.assert_close(graph.entropy.double(), entropy, rtol=1e-3, atol=1e-4)
    assert bool((graph.rest - (1 - dense.sum(-1))).abs().max() < 1e-4)
    assert bool((graph.count == length).all())

    by_output = torch.randint(-1, 2, found.shape, generator=generator)
    (found * by_output).sum().backward()
    others = [tensor.double().requires_grad_() for tensor in inputs]
    (exact(*others, torch.zeros(()))[1] * by_output).sum().backward()
    for mine, theirs in zip(leaves, others, strict=True):
        assert mine.grad is not None and theirs.grad is not None
        size = theirs.grad.abs().max().clamp(min=1)
        assert float((mine.grad.double() - theirs.grad).abs().max()) <= 20 * tolerance * size


def test_tiles_far_above_and_below_each_other() -> None:
    torch.manual_seed(0)
    queries, keys = torch.zeros(1, 40, 4), torch.zeros(1, 1500, 4)
    values = torch.randn(1, 1500, 3)
    for levels in ((-3e38, 0.0, 3e38), (3e38, -3e38, 5.0), (-5e9, -5e9, 1.0), (1e6, 2e6, 0.0)):
        bias = torch.randn(1, 1, 1500) + torch.tensor(levels).repeat_interleave(500)
        weights, output = exact(queries, keys, values, bias)
        plain = headloom.attention(queries, keys, values, bias=bias, backend="native")
        kept, graph = headloom.attend(queries, keys, values, bias=bias, backend="native")
        for found in (plain, kept):
            torch.testing.assert_close(found.double(), output, rtol=1e-4, atol=1e-4)
        expected = weights.gather(-1, graph.keys.long())
        torch.testing.assert_close(graph.weights.double(), expected, rtol=1e-4, atol=1e-5)
        assert bool(graph.lse.isfinite().all())


def test_sinks_far_from_the_scores() -> None:
    queries, keys, values = torch.ones(1, 3, 2), torch.ones(1, 5, 2), torch.ones(1, 5, 2)
    for sink, mass in ((3e38, 0.0), (-3e38, 1.0), (5e9, 0.0), (-5e9, 1.0)):
        output, graph = headloom.attend(
            queries, keys, values, sinks=torch.tensor([sink]), backend="native"
        )
        assert bool((output == mass).all())
        assert bool((graph.rest - (1 - mass)).abs().max() < 1e-6)


def test_a_scale_of_0_takes_every_gradient_of_queries_and_keys() -> None:
    torch.manual_seed(0)
    queries, keys = (1e15 * torch.randn(1, 40, 6) for _ in range(2))
    table = 1e15 * torch.randn(3, 6)
    inputs = [tensor.requires_grad_() for tensor in (queries, keys, 1e28 * torch.randn(1, 40, 5))]
    for relative in (None, headloom.Shaw(table)):
        output = headloom.attention(*inputs, scale=0.0, relative=relative, backend="native")
        by_queries, by_keys, _ = torch.autograd.grad(output.sum(), inputs)
        assert bool((by_queries == 0).all()) and bool((by_keys == 0).all())
