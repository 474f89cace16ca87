"""What the kernels write into has their types, whatever type torch makes tensors of by default."""

from __future__ import annotations

from collections.abc import Iterator
from dataclasses import fields
from typing import Any

import pytest
import torch
from torch import Tensor

import headloom
from headloom.mechanism.backends import compiled

pytestmark = pytest.mark.skipif(
    not compiled.instruction_sets(), reason="built without the native kernels"
)


@pytest.fixture(params=[torch.float64, torch.bfloat16, torch.float16])
def default_type(request: pytest.FixtureRequest) -> Iterator[torch.dtype]:
    before = torch.get_default_dtype()
    yield request.param
    torch.set_default_dtype(before)


def found(options: dict[str, Any], **asked: Any) -> list[Tensor]:
    """Everything that a call gives, and its gradients."""
    generator = torch.Generator().manual_seed(0)
    inputs = queries, keys, values = [
        torch.randn(2, heads, rows, 16, generator=generator, dtype=torch.float32).requires_grad_()
        for heads, rows in ((4, 40), (2, 300), (2, 300))
    ]
    with torch.no_grad():
        alone = headloom.attention(queries, keys, values, backend="native", **options)
        _, plain = headloom.attend(queries, keys, values, backend="native", **asked, **options)
    output, graph = headloom.attend(queries, keys, values, backend="native", **asked, **options)
    loss = output.square().sum() + graph.lse.sum() + graph.entropy.sum()
    if graph.received is not None:
        loss = loss + (graph.received * graph.received.detach()).sum()
    wanted = [*inputs, *(part for part in options.values() if isinstance(part, Tensor))]
    results = [alone, output, *torch.autograd.grad(loss, wanted)]
    for each in (plain, graph):
        parts = (getattr(each, field.name) for field in fields(each))
        results += [part.detach() for part in parts if isinstance(part, Tensor)]
    return results


def options_of(kind: str) -> dict[str, Any]:
    generator = torch.Generator().manual_seed(1)
    if kind == "bias":
        bias = torch.randn(4, 40, 300, generator=generator, dtype=torch.float32)
        return {"bias": bias.requires_grad_()}
    if kind == "alibi":
        return {"relative": headloom.ALiBi(torch.rand(4, generator=generator, dtype=torch.float32))}
    if kind == "shaw":
        return {
            "relative": headloom.Shaw(torch.randn(9, 16, generator=generator, dtype=torch.float32))
        }
    return {}


@pytest.mark.parametrize("received", [False, headloom.LastQueries(3)])
@pytest.mark.parametrize("kind", ["plain", "bias", "alibi", "shaw"])
def test_results_do_not_depend_on_torchs_default_type(
    kind: str, received: Any, default_type: torch.dtype
) -> None:
    expected = found(options_of(kind), received=received)
    options = options_of(kind)
    torch.set_default_dtype(default_type)
    results = found(options, received=received)
    assert len(results) == len(expected)
    for one, other in zip(results, expected, strict=True):
        assert one.dtype == other.dtype
        assert torch.equal(one, other)
