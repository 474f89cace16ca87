"""Inside torch.autocast: exact numbers keep their types, and gradients are those outside it."""

from __future__ import annotations

import pytest
import torch
from torch import Tensor

import headloom


def inside() -> torch.autocast:
    return torch.autocast("cpu", torch.bfloat16)


def parts(*shape: int) -> list[Tensor]:
    return list(torch.randn(3, *shape, generator=torch.Generator().manual_seed(1)))


@pytest.mark.parametrize("relative", ["none", "shaw", "alibi", "buckets", "rotary"])
def test_gradients_of_a_layer_are_the_same_where_backward_is_called_inside(
    relative: str,
) -> None:
    torch.manual_seed(0)
    layer = headloom.MultiHeadAttention(64, 4, relative=relative)
    tokens = torch.randn(2, 50, 64)
    gradients = []
    for called_inside in (False, True):
        layer.zero_grad()
        with inside():
            loss = layer(tokens).float().square().mean()
            if called_inside:
                loss.backward()
        if not called_inside:
            loss.backward()
        gradients.append([matrix.weight.grad.clone() for matrix in (layer.w_q, layer.w_v)])
    for outside, within in zip(*gradients, strict=True):
        torch.testing.assert_close(within, outside, rtol=1e-2, atol=1e-4)


@pytest.mark.parametrize("far", [1.0, 1e4])  # far scores take torch's formulas
def test_gradients_of_every_result_are_the_same_inside(far: float) -> None:
    gradients = []
    for called_inside in (False, True):
        queries, keys, values = (part.requires_grad_() for part in parts(1, 2, 40, 8))
        output, graph = headloom.attend(
            queries * far, keys, values, sinks=torch.ones(2), received=True, keep=headloom.Top(4)
        )
        loss = output.square().sum() + graph.received.square().sum() + graph.entropy.sum()
        if called_inside:
            with inside():
                loss.backward()
        else:
            loss.backward()
        gradients.append([part.grad for part in (queries, keys, values)])
    for outside, within in zip(*gradients, strict=True):
        torch.testing.assert_close(within, outside, rtol=1e-4, atol=1e-5 * far)


@pytest.mark.parametrize("dtype", [torch.float32, torch.bfloat16])
def test_a_bilinear_score_of_any_precision(dtype: torch.dtype) -> None:
    queries, keys, values = parts(1, 2, 50, 32)
    score = headloom.Bilinear(torch.randn(32, 32, generator=torch.Generator().manual_seed(2)) / 6)
    given = [part.to(dtype) for part in (queries, keys, values)]
    expected = headloom.attention(*(part.double() for part in given), score=headloom.Bilinear(
        score.matrix.double()))  # fmt: skip
    with inside():
        output = headloom.attention(*given, score=score)
    assert output.dtype == dtype
    error = 1e-4 if dtype == torch.float32 else 2e-2
    torch.testing.assert_close(output.double(), expected, rtol=error, atol=error)
