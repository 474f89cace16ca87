"""Gradients where masks hide whole groups of keys from whole groups of queries."""

from __future__ import annotations

import math
from dataclasses import replace

import pytest
import torch
from torch import Tensor

import headloom
from headloom.mechanism.backends import native
from headloom.mechanism.backends.native_request import NativeCall

CASES = [
    (64, 64, headloom.causal()),
    (200, 200, headloom.causal()),
    (70, 131, headloom.causal(offset=61)),
    (131, 70, headloom.causal()),
    (100, 100, headloom.window(10, 3)),
    (300, 300, headloom.window(40, 0)),
    (65, 40, None),
]


@pytest.mark.parametrize("instruction_set", native.instruction_sets())
@pytest.mark.parametrize(("queries", "keys", "mask"), CASES)
def test_gradients_are_those_of_the_formula(
    queries: int,
    keys: int,
    mask: headloom.Mask | None,
    instruction_set: str,
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    torch.manual_seed(queries)
    monkeypatch.setattr(
        native, "prepare", lambda call, make=native.prepare: _on(make(call), instruction_set)
    )
    given = [torch.randn(2, 3, n, 24, requires_grad=True) for n in (queries, keys, keys)]
    output = headloom.attention(*given, mask=mask, backend="native")
    # As it comes from a layer: by position, then by head.
    by_output = torch.randn(2, queries, 3, 24).transpose(1, 2)
    found = torch.autograd.grad(output, given, by_output)

    q, k, v = (tensor.detach().double() for tensor in given)
    scores = q @ k.mT / math.sqrt(24)
    if mask is not None:
        hidden = ~mask.block(range(queries), keys, torch.device("cpu"))
        scores = scores.masked_fill(hidden, -math.inf)
    weights = scores.softmax(-1)
    by_weights = by_output.double() @ v.mT
    by_scores = weights * (by_weights - (by_weights * weights).sum(-1, keepdim=True))
    by_scores = by_scores / math.sqrt(24)
    expected = (by_scores @ k, by_scores.mT @ q, weights.mT @ by_output.double())
    for gradient, exact in zip(found, expected, strict=True):
        assert torch.allclose(gradient.double(), exact, atol=1e-5)


def _on(call: NativeCall, instruction_set: str) -> NativeCall:
    return replace(call, instruction_set=instruction_set)


def test_a_query_that_sees_nothing_gives_nothing() -> None:
    given = [torch.randn(1, 2, 12, 8, requires_grad=True) for _ in range(3)]
    allowed = torch.ones(12, 12, dtype=torch.bool)
    allowed[5] = False
    output = headloom.attention(*given, mask=allowed, backend="native")
    by_output = torch.randn(1, 2, 12, 8)
    changed: Tensor = by_output.clone()
    changed[:, :, 5] = 100.0
    first = torch.autograd.grad(output, given, by_output, retain_graph=True)
    second = torch.autograd.grad(output, given, changed)
    assert all(torch.equal(a, b) for a, b in zip(first, second, strict=True))
    assert not first[0][:, :, 5].any()
