"""Few queries against a long cache, as in a step of decoding: against the reference in float64."""

from __future__ import annotations

import math
from typing import Any

import pytest
import torch
from hypothesis import HealthCheck, given, settings
from hypothesis import strategies as st
from torch import Tensor

import headloom
from headloom.mechanism import reference

Inputs = tuple[Tensor, Tensor, Tensor]

SETTINGS = settings(deadline=None, suppress_health_check=[HealthCheck.function_scoped_fixture])


@st.composite
def calls(draw: st.DrawFn) -> tuple[Inputs, dict[str, Any], int, torch.dtype]:
    """1 to 8 queries, and keys around the edges of vectors, tiles and pieces."""
    generator = torch.Generator().manual_seed(draw(st.integers(0, 2**20), label="seed"))

    def random(*shape: int) -> Tensor:
        return torch.randn(*shape, generator=generator)

    dtype = draw(st.sampled_from((torch.float32, torch.bfloat16)), label="type")
    batch = draw(st.integers(1, 2), label="batch")
    kv_heads = draw(st.integers(1, 3), label="kv_heads")
    heads = kv_heads * draw(st.sampled_from((1, 2, 4, 7)), label="group")
    rows = draw(st.integers(1, 8), label="queries")
    lengths = (0, 1, 15, 17, 63, 100, 511, 513, 1023, 1025, 1601, 2100, 3333)
    length = draw(st.sampled_from(lengths), label="keys")
    depth = draw(st.sampled_from((1, 7, 16, 32, 48, 64, 72, 128)), label="depth")
    value_depth = draw(st.sampled_from((1, 8, 16, 33, 64, 96)), label="value depth")
    inputs = (
        random(batch, heads, rows, depth).to(dtype),
        random(batch, kv_heads, length, depth).to(dtype),
        random(batch, kv_heads, length, value_depth).to(dtype),
    )
    real = torch.randint(0, length + 1, (batch,), generator=generator)
    after = torch.arange(length) >= (length - real)[:, None]
    some = torch.rand(batch, heads, rows, length, generator=generator) < 0.3
    offset = length - rows + draw(st.sampled_from((0, -1, -700, 40)), label="offset")
    masks: dict[str, Any] = {
        "none": None,
        "causal": headloom.causal(offset),
        "window": headloom.window(draw(st.sampled_from((0, 5, 600, 1500))), 0, offset),
        "lengths": headloom.padding(real),
        "left padding": headloom.padding(after) & headloom.causal(offset),
        "bool": some,
        "nothing allowed": headloom.padding(0),
    }
    options: dict[str, Any] = {"mask": masks[draw(st.sampled_from(sorted(masks)), label="mask")]}
    if draw(st.booleans(), label="bias"):
        options["bias"] = random(*draw(st.sampled_from(((rows, length), (batch, 1, 1, length)))))
        options["bias"][..., ::3] = -math.inf
    if draw(st.booleans(), label="softcap"):
        options["softcap"] = 3.0
    if draw(st.booleans(), label="sinks"):
        options["sinks"] = random(heads)
    if draw(st.booleans(), label="alibi"):
        options["relative"] = headloom.ALiBi(random(heads).abs() / 256, offset)
    if draw(st.booleans(), label="scale"):
        options["scale"] = draw(st.sampled_from((0.3, -0.1, 0.0)))
    return inputs, options, draw(st.sampled_from((0, 1, 5, 32, 40, 1200, 4000)), label="k"), dtype


def expected(inputs: Inputs, options: dict[str, Any], k: int) -> reference.call.Attended:
    """The call by the reference, in float64."""
    queries, keys, values = (tensor.double() for tensor in inputs)
    (rows, depth), length = queries.shape[2:], keys.shape[2]
    mask, relative, bias = (options.get(name) for name in ("mask", "relative", "bias"))
    allowed = mask.dense(rows, length) if isinstance(mask, headloom.Mask) else mask
    raw = reference.call.scores_of_heads(queries, keys, lambda q, k, _: q @ k.T)
    distance = None
    if relative is not None:
        far = torch.arange(length) - torch.arange(rows)[:, None] - relative.offset
        distance = -relative.slopes.double()[:, None, None] * far.abs()
    sinks = options.get("sinks")
    return reference.call.attend(
        raw,
        values,
        scale=options.get("scale", 1 / math.sqrt(depth)),
        softcap=options.get("softcap"),
        relative_bias=distance,
        bias=None if bias is None else bias.double(),
        allowed=allowed,
        sinks=None if sinks is None else sinks.double(),
        k=min(k, headloom.Top(k).places(length)),
    )


def kernels(inputs: Inputs, options: dict[str, Any], k: int) -> Any:
    """Output alone, and output and graph, by the kernels."""
    with torch.no_grad():
        alone = headloom.attention(*inputs, backend="native", **options)
        return alone, *headloom.attend(*inputs, keep=headloom.Top(k), backend="native", **options)


def assert_close(found: Tensor, wanted: Tensor, tolerance: float, what: str) -> None:
    assert found.shape == wanted.shape, what
    hidden = wanted == -math.inf
    assert torch.equal(hidden, found == -math.inf), what
    if found.numel():
        error = (found.double() - wanted).masked_fill(hidden, 0).abs().amax()
        scale = wanted.masked_fill(hidden, 0).abs().amax().clamp(min=1)
        assert float(error / scale) <= tolerance, f"{what}: {float(error / scale):.1e}"


@settings(SETTINGS, max_examples=60)
@given(case=calls())
def test_few_queries_equal_the_reference(
    instruction_set: str, case: tuple[Inputs, dict[str, Any], int, torch.dtype]
) -> None:
    inputs, options, k, dtype = case
    wanted = expected(inputs, options, k)
    alone, output, graph = kernels(inputs, options, k)
    half = dtype == torch.bfloat16
    # What float32 rounds off a score is an error of its weight.
    finite = wanted.scores.masked_fill(wanted.scores.isinf(), 0).abs()
    size = max(1.0, float(finite.amax()) / 16 if finite.numel() else 0.0)
    exact, of_weights = 4e-6 * size, (2e-5 if half else 4e-6) * size
    assert alone.dtype == output.dtype == dtype
    for found in (alone, output):
        assert_close(found, wanted.output, 2e-2 if half else exact, "output")
    assert_close(graph.lse, wanted.lse, exact, "lse")
    assert_close(graph.entropy, wanted.entropy, of_weights, "entropy")
    assert_close(graph.rest, wanted.rest, of_weights, "rest")
    assert_close(graph.scores, wanted.kept_scores, 4e-6, "scores")
    assert_close(graph.weights, wanted.kept_weights, of_weights, "weights")
    assert torch.equal(graph.count.long(), wanted.count)
    differ = graph.keys.long() != wanted.kept_keys
    gap = (graph.scores.double() - wanted.kept_scores).abs()[differ]
    assert not gap.numel() or float(gap.max()) < 1e-4  # only scores within rounding change places


@pytest.mark.parametrize("dtype", [torch.float32, torch.bfloat16])
@pytest.mark.parametrize("depth", [64, 96])
@pytest.mark.parametrize(
    ("rows", "group"), [(1, 1), (2, 1), (3, 1), (5, 1), (8, 1), (3, 3), (8, 2), (2, 11), (8, 4)]
)
def test_every_number_of_rows_at_the_edges_of_tiles(
    instruction_set: str, dtype: torch.dtype, depth: int, rows: int, group: int
) -> None:
    """Keys and values are read where they lie: what lies between their rows, and after the last
    one, is NaN."""
    generator = torch.Generator().manual_seed(rows)
    for length in (1, 17, 31, 511, 545, 2600):
        queries = torch.randn(1, group, rows, depth, generator=generator).to(dtype)
        cache = torch.full((2, length + 64, 2 * depth + 5), math.nan, dtype=dtype)
        cache[:, :length, 3 : depth + 3] = torch.randn(2, length, depth, generator=generator)
        keys, values = (part[None, None, :length, 3 : depth + 3] for part in cache)
        inputs = queries, keys, values
        wanted = expected(inputs, {}, 5)
        alone, output, graph = kernels(inputs, {}, 5)
        half = dtype == torch.bfloat16
        for found in (alone, output):
            assert_close(found, wanted.output, 2e-2 if half else 4e-6, f"{length} keys")
        assert_close(graph.lse, wanted.lse, 4e-6, f"{length} keys")
        assert_close(graph.scores, wanted.kept_scores, 4e-6, f"{length} keys")
        assert_close(graph.rest, wanted.rest, 2e-5 if half else 4e-6, f"{length} keys")


@pytest.mark.parametrize("bad", [math.nan, math.inf, -math.inf])
def test_a_bad_query_stays_in_its_row_and_hidden_keys_are_not_read(
    instruction_set: str, bad: float
) -> None:
    generator = torch.Generator().manual_seed(0)
    queries, keys, values = (torch.randn(1, 2, n, 24, generator=generator) for n in (5, 2500, 2500))
    mask = headloom.padding(torch.arange(2500)[None] >= 300) & headloom.causal(2000)
    _, clean, clean_graph = kernels((queries, keys, values), {"mask": mask}, 5)
    keys[:, :, :300] = values[:, :, 2005:] = math.nan
    queries[0, 1, 3, 3] = bad
    _, output, graph = kernels((queries, keys, values), {"mask": mask}, 5)
    other = torch.ones(1, 2, 5, dtype=torch.bool)
    other[0, 1, 3] = False
    assert output[0, 1, 3].isnan().all()
    assert torch.equal(output[other], clean[other])
    assert torch.equal(graph.lse[other], clean_graph.lse[other])
    assert torch.equal(graph.keys[other], clean_graph.keys[other])
