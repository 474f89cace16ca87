"""The native kernels against the reference in float64, on every instruction set of this machine."""

from __future__ import annotations

import itertools
import math
from collections.abc import Sequence
from typing import Any

import pytest
import torch
from torch import Tensor

import headloom


def run(inputs: Sequence[Tensor], k: int, dtype: Any, **options: Any) -> Any:
    """Output and graph of a call in a type: in float64 by torch, else by the kernels."""
    backend: Any = "torch" if dtype == torch.float64 else "native"
    inputs = [tensor.to(dtype) for tensor in inputs]
    return headloom.attend(*inputs, keep=headloom.Top(k), backend=backend, **options)


@pytest.mark.parametrize("bad", [math.nan, math.inf, -math.inf])
def test_a_bad_query_stays_in_its_row(instruction_set: str, bad: float) -> None:
    generator = torch.Generator().manual_seed(0)
    queries, keys, values = (torch.randn(1, 2, 70, 24, generator=generator) for _ in range(3))
    clean, clean_graph = run((queries, keys, values), 5, torch.float32)
    queries[0, 1, 33, 3] = bad
    output, graph = run((queries, keys, values), 5, torch.float32)
    other = torch.ones(1, 2, 70, dtype=torch.bool)
    other[0, 1, 33] = False
    torch.testing.assert_close(output[other], clean[other], rtol=1e-5, atol=1e-5)
    torch.testing.assert_close(graph.lse[other], clean_graph.lse[other])
    assert torch.equal(graph.keys[other], clean_graph.keys[other])
    assert bool(output[0, 1, 33].isnan().all())


def test_errors_do_not_grow_with_the_length(instruction_set: str) -> None:
    """Even weights and values of one sign: a plain running sum is 1e-5 off after so many terms."""
    generator = torch.Generator().manual_seed(0)
    queries = torch.randn(1, 1, 33, 32, generator=generator)
    keys = torch.randn(1, 1, 20_000, 32, generator=generator) * 0.1
    values = torch.randn(1, 1, 20_000, 33, generator=generator) + 1
    output, graph = run((queries, keys, values), 4, torch.float32)
    exact_output, exact = run((queries, keys, values), 4, torch.float64)
    scale = exact_output.abs().max().item()
    assert (output - exact_output).abs().max().item() <= 2e-6 * scale
    assert (graph.lse - exact.lse).abs().max().item() <= 2e-6


@pytest.mark.parametrize("shape", ["rising", "falling", "spike", "steps"])
def test_the_strongest_of_awkward_rows(instruction_set: str, shape: str) -> None:
    """Rows on which a guess at the threshold goes wrong."""
    position = torch.arange(3000.0)
    rows = {
        "rising": position,
        "falling": -position,
        "spike": torch.where(position == 1234, 1e30, torch.sin(position) * 1e-30),
        "steps": (position / 700).floor() + torch.where(position % 50 == 0, 1e5, 0.0),
    }
    scores = rows[shape]
    keys = torch.stack((scores, torch.zeros(3000)), 1)[None, None]
    queries = torch.tensor([[1.0, 0.0]])[None, None]
    inputs = (queries, keys, keys[..., 1:])
    _, graph = run(inputs, 40, torch.float32, bias=torch.zeros(1, 3000), scale=1.0)
    order = sorted(range(3000), key=lambda j: (-float(scores[j]), j))[:40]
    assert graph.keys[0, 0, 0].tolist() == order


@pytest.mark.parametrize("dtype", [torch.float32, torch.bfloat16])
@pytest.mark.parametrize(
    ("rows", "group"), [(1, 1), (2, 1), (3, 1), (5, 1), (8, 1), (3, 3), (8, 2), (2, 11), (8, 4)]
)
def test_few_queries_at_the_edges_of_tiles(
    instruction_set: str, dtype: torch.dtype, rows: int, group: int
) -> None:
    """Keys and values are read where they lie: what lies between their rows, and after the last
    one, is NaN."""
    generator = torch.Generator().manual_seed(rows)
    half = dtype == torch.bfloat16
    for depth, length in itertools.product((64, 96), (1, 17, 31, 511, 545, 2600)):
        queries = torch.randn(1, group, rows, depth, generator=generator).to(dtype)
        cache = torch.full((2, length + 64, 2 * depth + 5), math.nan, dtype=dtype)
        cache[:, :length, 3 : depth + 3] = torch.randn(2, length, depth, generator=generator)
        inputs = queries, *(part[None, None, :length, 3 : depth + 3] for part in cache)
        output, graph = run(inputs, 5, dtype)
        alone = headloom.attention(*inputs, backend="native")
        exact_output, exact = run(inputs, 5, torch.float64)
        for found, wanted, near in (
            (output, exact_output, 2e-2 if half else 4e-6),
            (alone, exact_output, 2e-2 if half else 4e-6),
            (graph.lse, exact.lse, 4e-6),
            (graph.scores, exact.scores, 4e-6),
            (graph.rest, exact.rest, 2e-5 if half else 4e-6),
        ):
            scale = wanted[wanted.isfinite()].abs().amax().clamp(min=1)
            torch.testing.assert_close(found.double(), wanted, rtol=0, atol=near * float(scale))


@pytest.mark.parametrize("bad", [math.nan, math.inf, -math.inf])
def test_hidden_keys_are_not_read(instruction_set: str, bad: float) -> None:
    generator = torch.Generator().manual_seed(0)
    queries, keys, values = (torch.randn(1, 2, n, 24, generator=generator) for n in (5, 2500, 2500))
    mask = headloom.padding(torch.arange(2500)[None] >= 300) & headloom.causal(2000)
    clean, clean_graph = run((queries, keys, values), 5, torch.float32, mask=mask)
    keys[:, :, :300] = values[:, :, 2005:] = math.nan
    queries[0, 1, 3, 3] = bad
    output, graph = run((queries, keys, values), 5, torch.float32, mask=mask)
    other = torch.ones(1, 2, 5, dtype=torch.bool)
    other[0, 1, 3] = False
    assert output[0, 1, 3].isnan().all()
    assert torch.equal(output[other], clean[other])
    assert torch.equal(graph.lse[other], clean_graph.lse[other])
    assert torch.equal(graph.keys[other], clean_graph.keys[other])
