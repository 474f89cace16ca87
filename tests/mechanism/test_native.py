"""The native kernels against the reference in float64, on every instruction set of this machine."""

from __future__ import annotations

import math
from typing import Any

import pytest
import torch
from hypothesis import HealthCheck, given, settings
from hypothesis import strategies as st
from torch import Tensor

import headloom
from headloom.mechanism.masks import packed

MASKS = (
    "none",
    "causal",
    "window",
    "open window",
    "lengths",
    "left padding",
    "holes",
    "packed",
    "bool",
    "either",
    "nothing allowed",
)
RELATIVES = ("none", "shaw", "shaw per head", "shaw keys only", "alibi", "buckets")

SETTINGS = settings(deadline=None, suppress_health_check=[HealthCheck.function_scoped_fixture])


@st.composite
def calls(draw: st.DrawFn) -> tuple[tuple[Tensor, Tensor, Tensor], dict[str, Any], int]:
    """Inputs in float64, options, and k: sizes around those of blocks, tiles and vectors."""
    generator = torch.Generator().manual_seed(draw(st.integers(0, 2**20), label="seed"))

    def random(*shape: int) -> Tensor:
        return torch.randn(*shape, dtype=torch.float64, generator=generator)

    batch = draw(st.integers(1, 2), label="batch")
    kv_heads = draw(st.integers(1, 2), label="kv_heads")
    heads = kv_heads * draw(st.integers(1, 2), label="groups")
    sizes = st.one_of(st.integers(0, 40), st.sampled_from((63, 64, 65, 129, 300)))
    rows, length = draw(sizes, label="queries"), draw(st.one_of(sizes, st.just(700)), label="keys")
    depth = draw(st.sampled_from((8, 16, 17, 40, 64, 100)), label="depth")
    value_depth = draw(st.sampled_from((1, 8, 16, 33, 64)), label="value_depth")
    inputs = (
        random(batch, heads, rows, depth),
        random(batch, kv_heads, length, depth),
        random(batch, kv_heads, length, value_depth),
    )
    some = torch.rand(batch, heads, rows, length, generator=generator) < 0.4
    lengths = torch.randint(0, length + 1, (batch,), generator=generator)
    real = torch.arange(length) < lengths[:, None]
    cuts = sorted(draw(st.tuples(st.integers(0, rows), st.integers(0, rows))))
    key_cuts = sorted(draw(st.tuples(st.integers(0, length), st.integers(0, length))))
    offset = draw(st.integers(-40, 80), label="offset")
    masks: dict[str, Any] = {
        "none": None,
        "causal": headloom.causal(offset),
        "window": headloom.window(draw(st.integers(0, 90)), draw(st.integers(0, 90)), offset),
        "open window": headloom.window(draw(st.integers(0, 90)), None, offset),
        "lengths": headloom.padding(lengths),
        "left padding": headloom.padding(real.flip(1)) & headloom.causal(offset),
        "holes": headloom.padding(torch.rand(batch, length, generator=generator) < 0.5),
        "packed": packed(
            [cuts[0], cuts[1] - cuts[0], rows - cuts[1]],
            [key_cuts[0], key_cuts[1] - key_cuts[0], length - key_cuts[1]],
        ),
        "bool": some,
        "either": headloom.window(2, 2) | headloom.padding(lengths),
        "nothing allowed": headloom.padding(0),
    }
    options: dict[str, Any] = {"mask": masks[draw(st.sampled_from(MASKS), label="mask")]}
    relative = draw(st.sampled_from(RELATIVES), label="relative")
    if relative.startswith("shaw"):
        clip = draw(st.integers(0, 20), label="clip")
        shape = (heads, 2 * clip + 1) if relative == "shaw per head" else (2 * clip + 1,)
        values = None if relative == "shaw keys only" else random(*shape, value_depth)
        options["relative"] = headloom.Shaw(random(*shape, depth), values, offset)
    elif relative == "alibi":
        options["relative"] = headloom.ALiBi(random(heads).abs() / 8, offset)
    elif relative == "buckets":
        options["relative"] = headloom.Buckets(random(16, heads), offset=offset)
    if draw(st.booleans(), label="bias"):
        shapes = [(rows, length), (batch, 1, 1, length), (heads, rows, 1)]
        options["bias"] = random(*draw(st.sampled_from(shapes), label="bias shape"))
    if draw(st.booleans(), label="softcap"):
        options["softcap"] = 3.0
    if draw(st.booleans(), label="sinks"):
        options["sinks"] = random(heads)
    return inputs, options, draw(st.sampled_from((0, 1, 5, 32, 100, 300)), label="k")


def as_type(value: Any, dtype: torch.dtype) -> Any:
    """Tensors of an option, or of a relative position, in another type."""
    if isinstance(value, Tensor):
        return value.to(dtype) if value.is_floating_point() else value
    if isinstance(value, headloom.Shaw | headloom.ALiBi | headloom.Buckets):
        return type(value)(**{name: as_type(x, dtype) for name, x in vars(value).items()})
    return value


def leaves_of(inputs: tuple[Tensor, ...], options: dict[str, Any]) -> list[Tensor]:
    relative = options.get("relative")
    parts = [*inputs, *options.values(), *(vars(relative).values() if relative else ())]
    return [part for part in parts if isinstance(part, Tensor) and part.is_floating_point()]


def run(
    inputs: tuple[Tensor, ...],
    options: dict[str, Any],
    k: int,
    dtype: torch.dtype,
) -> tuple[Tensor, headloom.AttentionGraph, list[Tensor]]:
    """A call in a type, in float64 by torch, else on the kernels; and its leaves."""
    inputs = tuple(as_type(x, dtype).detach() for x in inputs)
    # Biases and tables stay exact.
    of_options = torch.float32 if dtype == torch.bfloat16 else dtype
    options = {name: as_type(value, of_options) for name, value in options.items()}
    leaves = [leaf.requires_grad_() for leaf in leaves_of(inputs, options)]
    backend: Any = "torch" if dtype == torch.float64 else "native"
    output, graph = headloom.attend(*inputs, keep=headloom.Top(k), backend=backend, **options)
    return output, graph, leaves


def objective(output: Tensor, graph: headloom.AttentionGraph) -> Tensor:
    """A loss that uses every differentiable result."""
    generator = torch.Generator().manual_seed(1)
    total = torch.zeros((), dtype=torch.float64)
    parts = (output, graph.lse, graph.entropy, graph.scores, graph.weights, graph.rest)
    for part in parts:
        direction = torch.randn(part.shape, dtype=torch.float64, generator=generator)
        total = total + (part.double().masked_fill(part == -math.inf, 0) * direction).sum()
    return total


@settings(SETTINGS, max_examples=25)
@given(case=calls())
def test_every_call_equals_float64(
    instruction_set: str, case: tuple[tuple[Tensor, Tensor, Tensor], dict[str, Any], int]
) -> None:
    inputs, options, k = case
    output, graph, leaves = run(inputs, options, k, torch.float32)
    exact_output, exact, exact_leaves = run(inputs, options, k, torch.float64)

    def close(found: Tensor, expected: Tensor, tolerance: float, what: str) -> None:
        assert found.shape == expected.shape, what
        found, expected = found.detach(), expected.detach()
        hidden = expected == -math.inf
        assert torch.equal(hidden, found == -math.inf), what
        if found.numel():
            error = (found.double() - expected).masked_fill(hidden, 0).abs().amax()
            scale = expected.masked_fill(hidden, 0).abs().amax().clamp(min=1)
            assert float(error / scale) <= tolerance, f"{what}: {float(error / scale):.1e}"

    close(output, exact_output, 4e-6, "output")
    close(graph.lse, exact.lse, 2e-6, "lse")
    close(graph.entropy, exact.entropy, 4e-6, "entropy")
    close(graph.rest, exact.rest, 4e-6, "rest")
    close(graph.weights, exact.weights, 4e-6, "weights")
    close(graph.scores, exact.scores, 4e-6, "scores")
    assert torch.equal(graph.count, exact.count)
    differ = graph.keys != exact.keys
    gap = (graph.scores.double() - exact.scores).detach().abs()[differ]
    assert not gap.numel() or float(gap.max()) < 1e-4  # only scores within rounding change places

    if not bool(differ.any()):
        ours = torch.autograd.grad(objective(output, graph), leaves, allow_unused=True)
        theirs = torch.autograd.grad(
            objective(exact_output, exact), exact_leaves, allow_unused=True
        )
        for our, their, leaf in zip(ours, theirs, leaves, strict=True):
            zero = torch.zeros_like(leaf).double()
            expected = zero if their is None else their
            close(zero if our is None else our, expected, 1e-4, f"gradient {leaf.shape}")


@settings(SETTINGS, max_examples=15)
@given(case=calls())
def test_bfloat16_is_within_its_rounding(
    instruction_set: str, case: tuple[tuple[Tensor, Tensor, Tensor], dict[str, Any], int]
) -> None:
    inputs, options, k = case
    inputs = tuple(tensor.bfloat16().double() for tensor in inputs)  # type: ignore[assignment]
    options = {
        name: as_type(as_type(x, torch.float32), torch.float64) for name, x in options.items()
    }
    exact_output, exact, _ = run(inputs, options, k, torch.float64)
    with torch.no_grad():
        output, graph, _ = run(inputs, options, k, torch.bfloat16)
    assert output.dtype == torch.bfloat16
    for found, expected, tolerance in (
        (output, exact_output, 2e-2),
        (graph.lse, exact.lse, 2e-3),
        (graph.entropy, exact.entropy, 1e-2),
        (graph.weights, exact.weights, 5e-3),
    ):
        hidden = expected == -math.inf
        error = (found.double() - expected.detach()).masked_fill(hidden, 0).abs()
        if error.numel():
            scale = expected.detach().masked_fill(hidden, 0).abs().amax().clamp(min=1)
            assert float(error.amax() / scale) <= tolerance


@pytest.mark.parametrize("bad", [math.nan, math.inf, -math.inf])
def test_a_bad_query_stays_in_its_row(instruction_set: str, bad: float) -> None:
    generator = torch.Generator().manual_seed(0)
    queries, keys, values = (torch.randn(1, 2, 70, 24, generator=generator) for _ in range(3))
    clean, clean_graph, _ = run((queries, keys, values), {}, 5, torch.float32)
    queries[0, 1, 33, 3] = bad
    output, graph, _ = run((queries, keys, values), {}, 5, torch.float32)
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
    output, graph, _ = run((queries, keys, values), {}, 4, torch.float32)
    exact_output, exact, _ = run((queries, keys, values), {}, 4, torch.float64)
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
    options = {"bias": torch.zeros(1, 3000)}
    inputs = (queries, keys, keys[..., 1:])
    _, graph, _ = run(inputs, options | {"scale": 1.0}, 40, torch.float32)
    order = sorted(range(3000), key=lambda j: (-float(scores[j]), j))[:40]
    assert graph.keys[0, 0, 0].tolist() == order
