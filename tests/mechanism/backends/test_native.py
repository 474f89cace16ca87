"""The native kernels against the reference in float64, on every instruction set of this machine."""

from __future__ import annotations

import math
from dataclasses import replace
from typing import Any

import pytest
import torch
from hypothesis import given, settings
from hypothesis import strategies as st
from torch import Tensor

import headloom
from headloom.mechanism.backends import native
from headloom.mechanism.backends import native_request as native_call
from headloom.mechanism.packed import packed

INSTRUCTION_SETS = native.instruction_sets()
pytestmark = pytest.mark.skipif(not INSTRUCTION_SETS, reason="built without the native kernels")

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
    instruction_set: str = "",
) -> tuple[Tensor, headloom.AttentionGraph, list[Tensor]]:
    """A call in a type, on the kernels if an instruction set is named; and its leaves."""
    inputs = tuple(as_type(x, dtype).detach() for x in inputs)
    dtype = torch.float32 if dtype == torch.bfloat16 else dtype  # biases and tables stay exact
    options = {name: as_type(value, dtype) for name, value in options.items()}
    leaves = [leaf.requires_grad_() for leaf in leaves_of(inputs, options)]
    if not instruction_set:
        output, graph = headloom.attend(*inputs, keep=headloom.Top(k), backend="torch", **options)
        return output, graph, leaves
    with pytest.MonkeyPatch.context() as patch:
        prepare = native_call.prepare
        chosen = lambda call: replace(prepare(call), instruction_set=instruction_set)  # noqa: E731
        patch.setattr(native, "prepare", chosen)
        output, graph = headloom.attend(*inputs, keep=headloom.Top(k), backend="native", **options)
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


@pytest.mark.parametrize("instruction_set", INSTRUCTION_SETS)
@settings(max_examples=25, deadline=None)
@given(case=calls())
def test_every_call_equals_float64(
    instruction_set: str, case: tuple[tuple[Tensor, Tensor, Tensor], dict[str, Any], int]
) -> None:
    inputs, options, k = case
    output, graph, leaves = run(inputs, options, k, torch.float32, instruction_set)
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


@pytest.mark.parametrize("instruction_set", INSTRUCTION_SETS)
@settings(max_examples=15, deadline=None)
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
        output, graph, _ = run(inputs, options, k, torch.bfloat16, instruction_set)
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


@pytest.mark.parametrize("instruction_set", INSTRUCTION_SETS)
def test_results_do_not_depend_on_threads(instruction_set: str) -> None:
    generator = torch.Generator().manual_seed(0)
    inputs = tuple(torch.randn(1, 3, 500, 64, generator=generator) for _ in range(3))
    results = []
    before = torch.get_num_threads()
    for threads in (1, 2, 5):
        torch.set_num_threads(threads)
        output, graph, leaves = run(
            inputs, {"mask": headloom.causal()}, 9, torch.float32, instruction_set
        )
        gradients = torch.autograd.grad(objective(output, graph), leaves)
        results.append([output, graph.keys, graph.weights, graph.lse, graph.entropy, *gradients])
    torch.set_num_threads(before)
    for other in results[1:]:
        assert all(torch.equal(a, b) for a, b in zip(results[0], other, strict=True))


@pytest.mark.parametrize("instruction_set", INSTRUCTION_SETS)
@pytest.mark.parametrize("bad", [math.nan, math.inf, -math.inf])
def test_a_bad_query_stays_in_its_row(instruction_set: str, bad: float) -> None:
    generator = torch.Generator().manual_seed(0)
    queries, keys, values = (torch.randn(1, 2, 70, 24, generator=generator) for _ in range(3))
    clean, clean_graph, _ = run((queries, keys, values), {}, 5, torch.float32, instruction_set)
    queries[0, 1, 33, 3] = bad
    output, graph, _ = run((queries, keys, values), {}, 5, torch.float32, instruction_set)
    other = torch.ones(1, 2, 70, dtype=torch.bool)
    other[0, 1, 33] = False
    torch.testing.assert_close(output[other], clean[other], rtol=1e-5, atol=1e-5)
    torch.testing.assert_close(graph.lse[other], clean_graph.lse[other])
    assert torch.equal(graph.keys[other], clean_graph.keys[other])
    assert bool(output[0, 1, 33].isnan().all())


@pytest.mark.parametrize("instruction_set", INSTRUCTION_SETS)
@pytest.mark.parametrize("queries, keys", [(1, 3), (70, 70), (8, 3000)])
def test_an_infinite_sink_leaves_its_head_no_numbers(
    instruction_set: str, queries: int, keys: int
) -> None:
    generator = torch.Generator().manual_seed(0)
    shapes = ((1, 2, length, 24) for length in (queries, keys, keys))
    inputs = tuple(torch.randn(shape, generator=generator) for shape in shapes)
    # The first query of the causal mask has an empty place, which weighs 0 all the same.
    options = {"sinks": torch.tensor([math.inf, 0.5]), "mask": headloom.causal(), "received": True}
    output, graph, _ = run(inputs, options, 2, torch.float32, instruction_set)
    other_output, other, _ = run(inputs, options, 2, torch.float32)
    parts = ("lse", "entropy", "rest", "weights", "scores", "keys", "count", "received")
    pairs = [(output, other_output), *((getattr(graph, x), getattr(other, x)) for x in parts)]
    for found, expected in pairs:
        torch.testing.assert_close(found, expected, equal_nan=True)
    assert bool(graph.lse[0, 0].isnan().all())
    assert bool(graph.lse[0, 1].isfinite().all())


@pytest.mark.parametrize("instruction_set", INSTRUCTION_SETS)
def test_a_key_at_minus_infinity_weighs_nothing(instruction_set: str) -> None:
    ones = torch.ones(1, 1, 40, 8)
    keys = ones.clone()
    keys[0, 0, 3] = -math.inf
    output, graph, _ = run((ones, keys, ones), {}, 40, torch.float32, instruction_set)
    torch.testing.assert_close(output, ones)
    assert bool((graph.entropy - math.log(39)).abs().max() < 1e-5)


@pytest.mark.parametrize("instruction_set", INSTRUCTION_SETS)
def test_errors_do_not_grow_with_the_length(instruction_set: str) -> None:
    """Even weights and values of one sign: a plain running sum is 1e-5 off after so many terms."""
    generator = torch.Generator().manual_seed(0)
    queries = torch.randn(1, 1, 33, 32, generator=generator)
    keys = torch.randn(1, 1, 20_000, 32, generator=generator) * 0.1
    values = torch.randn(1, 1, 20_000, 33, generator=generator) + 1
    output, graph, _ = run((queries, keys, values), {}, 4, torch.float32, instruction_set)
    exact_output, exact, _ = run((queries, keys, values), {}, 4, torch.float64)
    scale = exact_output.abs().max().item()
    assert (output - exact_output).abs().max().item() <= 2e-6 * scale
    assert (graph.lse - exact.lse).abs().max().item() <= 2e-6


@pytest.mark.parametrize("instruction_set", INSTRUCTION_SETS)
@pytest.mark.parametrize("size", [1e4, 1e-4])
def test_huge_and_tiny_scores(instruction_set: str, size: float) -> None:
    generator = torch.Generator().manual_seed(0)
    queries, keys, values = (torch.randn(1, 2, 70, 16, generator=generator) for _ in range(3))
    inputs = (queries * size, keys, values)
    output, graph, _ = run(inputs, {}, 3, torch.float32, instruction_set)
    exact_output, exact, _ = run(inputs, {}, 3, torch.float64)
    assert bool(output.isfinite().all())
    rounding = 1e-6 * max(1.0, size)
    torch.testing.assert_close(output.double(), exact_output, rtol=rounding, atol=rounding)
    torch.testing.assert_close(graph.lse.double(), exact.lse, rtol=1e-5, atol=1e-5)


@pytest.mark.parametrize("instruction_set", INSTRUCTION_SETS)
@pytest.mark.parametrize("k", [1, 7, 32, 250, 1024])
def test_equal_scores_go_to_the_lower_key(instruction_set: str, k: int) -> None:
    generator = torch.Generator().manual_seed(0)
    keys = torch.randint(-1, 2, (1, 1, 1500, 4), generator=generator).float()
    queries = torch.randint(-1, 2, (1, 1, 40, 4), generator=generator).float()
    _, graph, _ = run((queries, keys, keys), {}, k, torch.float32, instruction_set)
    scores = (queries @ keys.transpose(-2, -1))[0, 0]
    for row in range(40):
        order = sorted(range(1500), key=lambda j: (-float(scores[row, j]), j))[:k]
        assert graph.keys[0, 0, row].tolist() == order


@pytest.mark.parametrize("instruction_set", INSTRUCTION_SETS)
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
    _, graph, _ = run((queries, keys, keys[..., 1:]), options | {"scale": 1.0}, 40, torch.float32,
                      instruction_set)  # fmt: skip
    order = sorted(range(3000), key=lambda j: (-float(scores[j]), j))[:40]
    assert graph.keys[0, 0, 0].tolist() == order


@pytest.mark.parametrize("instruction_set", INSTRUCTION_SETS)
def test_strided_inputs_are_read_where_they_are(instruction_set: str) -> None:
    generator = torch.Generator().manual_seed(0)
    together = torch.randn(2, 90, 3, 4, 64, generator=generator)
    strided = tuple(together[:, :, n].transpose(1, 2) for n in range(3))
    output, graph, _ = run(strided, {}, 4, torch.float32, instruction_set)
    copied = tuple(tensor.contiguous() for tensor in strided)
    expected, expected_graph, _ = run(copied, {}, 4, torch.float32, instruction_set)
    assert torch.equal(output, expected) and torch.equal(graph.keys, expected_graph.keys)


def test_an_unknown_instruction_set_is_named() -> None:
    with pytest.raises(ValueError, match="no kernels for the instruction set 'abacus'"):
        x = torch.zeros(1, 1, 2, 8)
        run((x, x, x), {}, 1, torch.float32, "abacus")


@pytest.mark.parametrize("instruction_set", INSTRUCTION_SETS)
@pytest.mark.parametrize("dtype", [torch.float32, torch.bfloat16])
@pytest.mark.parametrize("depth", [64, 21])
def test_a_step_of_decoding_is_the_last_row_of_the_whole(
    instruction_set: str, dtype: torch.dtype, depth: int
) -> None:
    """A few queries over many keys, which are read where they are, not packed."""
    generator = torch.Generator().manual_seed(0)
    queries, keys, values = (
        torch.randn(1, 2, 700, depth, generator=generator).to(dtype).double() for _ in range(3)
    )
    for few in (1, 3, 4):
        inputs = (queries[:, :, -few:], keys, values)
        options = {"mask": headloom.causal(offset=700 - few)}
        with torch.no_grad():
            output, graph, _ = run(inputs, options, 5, dtype, instruction_set)
            exact_output, exact, _ = run(
                (queries, keys, values), {"mask": headloom.causal()}, 5, torch.float64
            )
        tolerance = 2e-6 if dtype == torch.float32 else 1e-2
        error = (output.double() - exact_output[:, :, -few:]).abs().amax()
        assert float(error / exact_output.abs().amax()) <= tolerance
        assert torch.equal(graph.keys, exact.keys[:, :, -few:])
        torch.testing.assert_close(graph.lse.double(), exact.lse[:, :, -few:], rtol=0, atol=2e-5)
