"""Attention alone in bfloat16, whose tiles most rows see whole: against float64, and against the
path that a mask cell by cell takes."""

from __future__ import annotations

import math
from typing import Any

import torch
from hypothesis import HealthCheck, given, settings
from hypothesis import strategies as st
from torch import Tensor

import headloom
from headloom.mechanism.masks import packed

Inputs = tuple[Tensor, Tensor, Tensor]

SETTINGS = settings(deadline=None, suppress_health_check=[HealthCheck.function_scoped_fixture])


def plain(inputs: Inputs, **options: Any) -> tuple[Tensor, headloom.AttentionGraph]:
    """Output and totals, no edges. The output must be that of a call without totals."""
    output, graph = headloom.attend(*inputs, keep=headloom.Top(0), backend="native", **options)
    assert torch.equal(
        headloom.attention(*inputs, backend="native", **options).nan_to_num(7), output.nan_to_num(7)
    )
    return output, graph


def cell_by_cell(inputs: Inputs, **options: Any) -> tuple[Tensor, headloom.AttentionGraph]:
    """The same, by a path that looks at each row alone: what is seen is given as bools."""
    queries, keys, _ = inputs
    seen = torch.ones(queries.shape[2], keys.shape[2], dtype=torch.bool)
    if (mask := options.pop("mask", None)) is not None:
        seen = mask.block(range(len(seen)), keys.shape[2], seen.device)
    return headloom.attend(*inputs, mask=seen, keep=headloom.Top(0), backend="native", **options)


def exactly(inputs: Inputs, **options: Any) -> tuple[Tensor, headloom.AttentionGraph, Tensor]:
    """The same in float64; and what the weights make of the values' magnitudes."""
    if "sinks" in options:
        options["sinks"] = options["sinks"].double()
    queries, keys, values = (tensor.double() for tensor in inputs)
    options |= {"keep": headloom.Top(0), "backend": "torch"}
    output, graph = headloom.attend(queries, keys, values, **options)
    magnitude, _ = headloom.attend(queries, keys, values.abs(), **options)
    return output, graph, magnitude


def assert_within_rounding(output: Tensor, exact: Tensor, magnitude: Tensor) -> None:
    """Weights and output, each rounded to 8 bits, are off by 2^-8 of themselves at most."""
    excess = (output.double() - exact).abs() - (2**-7 + 1e-4) * magnitude
    assert float(excess.max()) <= 1e-6


def random_inputs(
    rows: int, length: int, depth: int = 64, value_depth: int = 64, heads: int = 2
) -> Inputs:
    generator = torch.Generator().manual_seed(rows + length + depth)
    queries, keys, values = (
        torch.randn(1, count, *shape, generator=generator).bfloat16()
        for count, *shape in (
            (heads, rows, depth),
            (max(1, heads // 2), length, depth),
            (max(1, heads // 2), length, value_depth),
        )
    )
    return queries, keys, values


@st.composite
def calls(draw: st.DrawFn) -> tuple[Inputs, dict[str, Any]]:
    """Sizes and masks whose edges lie around those of tiles, stripes and chunks of the depth."""
    rows = draw(st.sampled_from((5, 31, 32, 33, 65, 128, 130, 161)), label="queries")
    length = draw(st.sampled_from((255, 256, 257, 288, 512, 513, 600, 769)), label="keys")
    depth = draw(st.sampled_from((7, 31, 32, 33, 48, 64, 65, 96)), label="depth")
    value_depth = draw(st.sampled_from((1, 15, 16, 33, 40, 64)), label="value depth")
    inputs = random_inputs(rows, length, depth, value_depth, draw(st.sampled_from((1, 4))))
    edge = draw(st.sampled_from((0, 1, 31, 32, 33, 255, 256, 257)), label="edge")
    offset = length - rows + draw(st.sampled_from((0, -1, -31, 40)), label="offset")
    cuts = min(edge, rows), min(edge, length)
    masks = {
        "none": None,
        "causal": headloom.causal(offset),
        "window": headloom.window(edge + 256, 0, offset),
        "window ahead": headloom.window(None, edge, edge),
        "right padding": headloom.padding(torch.tensor([max(0, length - edge)])),
        "left padding": headloom.padding(torch.arange(length)[None] >= edge),
        "both": headloom.causal(offset) & headloom.padding(torch.arange(length)[None] >= edge),
        "packed": packed([cuts[0], rows - cuts[0]], [cuts[1], length - cuts[1]]),
    }
    options: dict[str, Any] = {"mask": masks[draw(st.sampled_from(sorted(masks)), label="mask")]}
    scale = draw(st.sampled_from((None, 0.25, 0.3, -0.1, 0.0)), label="scale")
    if scale is not None:
        options["scale"] = scale
    if draw(st.booleans(), label="sinks"):
        options["sinks"] = torch.linspace(-3, 9, inputs[0].shape[1])
    return inputs, options


@settings(SETTINGS, max_examples=40)
@given(case=calls())
def test_edges_of_tiles(instruction_set: str, case: tuple[Inputs, dict[str, Any]]) -> None:
    inputs, options = case
    exact, exact_graph, magnitude = exactly(inputs, **options)
    with torch.no_grad():
        for output, graph in (plain(inputs, **options), cell_by_cell(inputs, **options)):
            assert_within_rounding(output, exact, magnitude)
            assert torch.equal(graph.count, exact_graph.count)
            torch.testing.assert_close(graph.lse.double(), exact_graph.lse, atol=2e-5, rtol=0)
            torch.testing.assert_close(
                graph.entropy.double(), exact_graph.entropy, atol=1e-4, rtol=0
            )


def test_a_bad_key_harms_only_those_who_see_it(instruction_set: str) -> None:
    queries, keys, values = random_inputs(400, 600)
    mask = headloom.causal() & headloom.padding(torch.tensor([520]))
    with torch.no_grad():
        clean, _ = plain((queries, keys, values), mask=mask)
        keys[:, :, 300, 5] = math.nan
        keys[:, :, 520:] = values[:, :, 520:] = math.nan  # padding: never read
        output, _ = plain((queries, keys, values), mask=mask)
    assert torch.equal(output[:, :, :300], clean[:, :, :300])
    assert output[:, :, 300:].isnan().all()
