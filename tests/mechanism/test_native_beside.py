"""Calls large enough for a matrix unit, where rows of one stripe are worked on beside the
products of others: blocks of one, two and eight stripes, whole and in part, against float64."""

from __future__ import annotations

import math
from collections.abc import Callable

import pytest
import torch
from torch import Tensor

import headloom

pytestmark = pytest.mark.usefixtures("instruction_set")

MASKS: dict[str, Callable[[int, int], headloom.Mask | None]] = {
    "none": lambda queries, keys: None,
    "causal": lambda queries, keys: headloom.causal(offset=keys - queries),
    "window": lambda queries, keys: headloom.window(150, 20),
    "band past a stripe": lambda queries, keys: headloom.window(16, 0),
    "cells": lambda queries, keys: (
        torch.arange(queries)[:, None] % 7 != torch.arange(keys)[None, :] % 7
    ),
}
#: batch, heads, queries, keys, depth. 64 blocks of 256 queries are the least that have 256 each.
SHAPES = [
    (1, 2, 32, 1100, 64),
    (1, 2, 50, 700, 64),
    (2, 1, 97, 520, 40),
    (1, 1, 300, 300, 128),
    (1, 1, 160, 2100, 16),
    (4, 16, 270, 290, 16),
]


def inputs(shape: tuple[int, ...], size: float = 1.0) -> tuple[Tensor, Tensor, Tensor]:
    batch, heads, queries, keys, depth = shape
    generator = torch.Generator().manual_seed(sum(shape))
    return (
        size * torch.randn(batch, heads, queries, depth, generator=generator),
        torch.randn(batch, heads, keys, depth, generator=generator),
        torch.randn(batch, heads, keys, depth + 8, generator=generator),
    )


def exactly(
    given: tuple[Tensor, Tensor, Tensor], mask: headloom.Mask | Tensor | None
) -> tuple[Tensor, Tensor, Tensor]:
    """Scores, weights and output by the formula."""
    queries, keys, values = (tensor.double() for tensor in given)
    scores = queries @ keys.mT / math.sqrt(queries.shape[-1])
    if mask is not None:
        rows, columns = scores.shape[-2:]
        seen = mask if torch.is_tensor(mask) else mask.block(range(rows), columns, scores.device)
        scores = scores.masked_fill(~seen, -math.inf)
    weights = scores.softmax(-1).nan_to_num(0.0)
    return scores, weights, weights @ values


def of_many_blocks(shape: tuple[int, ...], mask: str) -> bool:
    """A shape that takes long, with a mask that smaller ones are tried with too."""
    return shape == SHAPES[-1] and mask not in ("none", "causal")


@pytest.mark.parametrize(
    ("shape", "mask"),
    [
        pytest.param(shape, mask, marks=[pytest.mark.slow] * of_many_blocks(shape, mask))
        for shape in SHAPES
        for mask in MASKS
    ],
)
@pytest.mark.parametrize("dtype", [torch.float32, torch.bfloat16])
def test_all_that_a_pass_returns_is_that_of_float64(
    shape: tuple[int, ...], mask: str, dtype: torch.dtype
) -> None:
    queries, keys, values = (tensor.to(dtype) for tensor in inputs(shape))
    given, seen = (queries, keys, values), MASKS[mask](*shape[2:4])
    near = 3e-6 if dtype == torch.float32 else 2e-2  # weights and output are rounded to 8 bits
    output, graph = headloom.attend(
        *given, mask=seen, keep=headloom.Top(9), received=True, backend="native"
    )
    scores, weights, expected = exactly(given, seen)
    rows = weights.sum(-1) > 0
    assert torch.allclose(output.double(), expected, atol=near)
    assert torch.allclose(graph.lse.double()[rows], scores.logsumexp(-1)[rows], atol=3e-6)
    entropy = -(weights * weights.clamp_min(1e-300).log()).sum(-1)
    assert torch.allclose(graph.entropy.double()[rows], entropy[rows], atol=2e-5)
    assert torch.allclose(graph.received.double(), weights.sum(-2), atol=2e-4)
    strongest = weights.topk(9).values
    assert torch.allclose(
        graph.weights.double().sort(-1, descending=True).values, strongest, atol=3e-6
    )
    named = weights.gather(-1, graph.keys.long().clamp_min(0))
    assert torch.allclose(named * (graph.weights > 0), graph.weights.double(), atol=3e-6)
    assert torch.equal(
        output, headloom.attend(*given, mask=seen, keep=headloom.Top(9), backend="native")[0]
    )
    assert torch.allclose(
        headloom.attention(*given, mask=seen, backend="native").double(), expected, atol=near
    )


@pytest.mark.parametrize("place", ["queries", "keys", "values"])
def test_a_number_that_is_not_finite_stays_in_its_rows(place: str) -> None:
    """The block that holds one is multiplied as floats, and the others as they are."""
    given = inputs((1, 1, 300, 600, 64))
    dict(zip(("queries", "keys", "values"), given, strict=True))[place][0, 0, 5, 3] = math.nan
    output = headloom.attention(*given, mask=headloom.causal(offset=300), backend="native")
    assert output.isnan().any()
    clean = inputs((1, 1, 300, 600, 64))
    expected = exactly(clean, headloom.causal(offset=300))[2]
    if place == "queries":
        assert torch.allclose(
            torch.cat([output[:, :, :5], output[:, :, 6:]], 2).double(),
            torch.cat([expected[:, :, :5], expected[:, :, 6:]], 2),
            atol=3e-6,
        )
