"""What each key receives, against a dense softmax in float64 that shares no code with headloom."""

from __future__ import annotations

import math
from collections.abc import Iterator
from contextlib import contextmanager
from typing import Any

import pytest
import torch
from tests.slow import slow
from torch import Tensor

import headloom
from headloom.mechanism.backends import compiled, native_gradients

INSTRUCTION_SETS = compiled.instruction_sets()
BACKENDS = ["torch", *INSTRUCTION_SETS]
every_backend = pytest.mark.parametrize("backend", BACKENDS)
LAST = 70

Inputs = tuple[Tensor, Tensor, Tensor]


@contextmanager
def kernels_of(backend: str) -> Iterator[str]:
    """Within it, calls run on the kernels of an instruction set; gives the name of the backend."""
    if backend == "torch":
        yield backend
        return
    with pytest.MonkeyPatch.context() as patch:
        patch.setattr(compiled, "INSTRUCTION_SET", backend)
        yield "native"


def dense(
    queries: Tensor,
    keys: Tensor,
    values: Tensor,
    allowed: Tensor | None = None,
    bias: Tensor | None = None,
    softcap: float | None = None,
    sinks: Tensor | None = None,
) -> tuple[Tensor, Tensor]:
    """Output and weights, (batch, heads, queries, keys), by the formula, in float64."""
    group = queries.shape[1] // keys.shape[1]
    queries, keys, values = (tensor.double() for tensor in (queries, keys, values))
    keys, values = (tensor.repeat_interleave(group, 1) for tensor in (keys, values))
    scores = torch.einsum("bhid,bhjd->bhij", queries, keys) / math.sqrt(queries.shape[-1])
    if softcap is not None:
        scores = softcap * (scores / softcap).tanh()
    if bias is not None:
        scores = scores + bias.double()
    if allowed is not None:
        scores = torch.where(allowed, scores, -math.inf)
    highest = scores.amax(-1, keepdim=True)
    if sinks is not None:
        highest = torch.maximum(highest, sinks.double()[:, None, None])
    highest = torch.where(highest == -math.inf, 0.0, highest).detach()
    powers = (scores - highest).exp()
    total = powers.sum(-1, keepdim=True)
    if sinks is not None:
        total = total + (sinks.double()[:, None, None] - highest).exp()
    weights = torch.where(total > 0, powers / torch.where(total > 0, total, 1.0), 0.0)
    return weights @ values, weights


def of_columns(weights: Tensor, last: int = LAST) -> tuple[Tensor, Tensor, Tensor]:
    return weights.sum(2), weights.amax(2), weights[:, :, max(weights.shape[2] - last, 0) :].sum(2)


def assert_received(graph: headloom.AttentionGraph, weights: Tensor) -> None:
    """To 1e-5 of what a key receives, or of what each would of one query's mass."""
    found = (graph.received, graph.received_most, graph.received_last)
    for tensor, wanted in zip(found, of_columns(weights), strict=True):
        assert tensor is not None and tensor.dtype == torch.float32
        torch.testing.assert_close(tensor.double(), wanted, rtol=1e-5, atol=1e-5)


def random_inputs(
    queries: int, keys: int, heads: int = 4, kv_heads: int = 2, depth: int = 40, factor: float = 2.0
) -> Inputs:
    generator = torch.Generator().manual_seed(queries + keys)
    shapes = ((heads, queries), (kv_heads, keys), (kv_heads, keys))
    first, second, third = (torch.randn(2, *shape, depth, generator=generator) for shape in shapes)
    return factor * first, second, third


def rules(name: str, queries: int, keys: int) -> tuple[dict[str, Any], dict[str, Any]]:
    """Options of headloom.attend, and of `dense`, that mean the same."""
    i, j = torch.arange(queries)[:, None], torch.arange(keys)[None]
    generator = torch.Generator().manual_seed(5)
    if name == "causal":
        return {"mask": headloom.causal()}, {"allowed": j <= i}
    if name == "window":
        allowed = (j >= i - 30) & (j <= i + 3)
        return {"mask": headloom.window(30, 3)}, {"allowed": allowed}
    if name == "padding":
        lengths = torch.tensor([keys // 3, keys])
        return {"mask": headloom.padding(lengths)}, {"allowed": j < lengths[:, None, None, None]}
    if name == "bool":
        allowed = torch.rand(2, 4, queries, keys, generator=generator) < 0.4
        allowed[:, 1, 0] = False  # a query that sees nothing
        return {"mask": allowed}, {"allowed": allowed}
    if name == "sinks":
        sinks = torch.tensor([-math.inf, 0.0, 6.0, 12.0])
        return {"sinks": sinks}, {"sinks": sinks}
    if name == "softcap":
        return {"softcap": 3.0}, {"softcap": 3.0}
    if name == "bias":
        bias = 4 * torch.randn(1, 4, queries, keys, generator=generator)
        return {"bias": bias}, {"bias": bias}
    if name == "alibi":
        slopes = torch.tensor([0.5, 0.25, 0.125, 0.0625])
        bias = -slopes[:, None, None] * (i - j).abs()
        return {"relative": headloom.ALiBi(slopes)}, {"bias": bias}
    return {}, {}


RULES = ["none", "causal", "window", "padding", "bool", "sinks", "softcap", "bias", "alibi"]
SHAPES = [(1, 1), (3, 700), (65, 33), (200, 1100)]


@every_backend
@pytest.mark.parametrize("dtype", [torch.float32, *slow(torch.bfloat16)])
@pytest.mark.parametrize("name", RULES)
def test_the_columns_of_the_weights(backend: str, dtype: torch.dtype, name: str) -> None:
    for queries, keys in SHAPES:
        options, formula = rules(name, queries, keys)
        inputs = tuple(tensor.to(dtype) for tensor in random_inputs(queries, keys))
        with kernels_of(backend) as named:
            output, graph = headloom.attend(
                *inputs,
                received=headloom.LastQueries(LAST),
                keep=headloom.Top(3),
                backend=named,
                **options,
            )
            without, plain = headloom.attend(
                *inputs, keep=headloom.Top(3), backend=named, **options
            )
        assert_received(graph, dense(*inputs, **formula)[1])
        assert plain.received is plain.received_most is plain.received_last is None
        # Tasks are cut in another way, which may add up a product in another order.
        for one, other in ((output, without), (graph.lse, plain.lse), (graph.rest, plain.rest)):
            torch.testing.assert_close(one, other)


@every_backend
@pytest.mark.parametrize("bad", [math.nan, math.inf])
def test_a_row_that_is_no_number_gives_none_to_any_key(backend: str, bad: float) -> None:
    queries, keys, values = random_inputs(100, 100)
    queries[0, 1, 7, 3] = bad
    with kernels_of(backend) as named:
        _, graph = headloom.attend(
            queries,
            keys,
            values,
            mask=headloom.causal(),
            received=headloom.LastQueries(50),
            backend=named,
        )
    assert graph.received is not None and graph.received_last is not None
    assert graph.received_most is not None
    assert graph.received[0, 1].isnan().all() and graph.received_most[0, 1].isnan().all()
    graph.received[0, 1] = graph.received_most[0, 1] = 0
    assert not graph.received.isnan().any() and not graph.received_most.isnan().any()
    assert not graph.received_last.isnan().any()  # the row is not in the window


def loss_of(
    output: Tensor, received: Tensor, last: Tensor, entropy: Tensor, factors: list[Tensor]
) -> Tensor:
    parts = (output, received.square(), last, entropy)
    return torch.stack(
        [(part * factor).sum() for part, factor in zip(parts, factors, strict=True)]
    ).sum()


@every_backend
@pytest.mark.parametrize("name", ["none", "causal", "bool", "sinks", "softcap", "bias"])
@pytest.mark.parametrize("several", ["all", "received", "last"])
def test_gradients(backend: str, name: str, several: str) -> None:
    """Of grouped heads, through the output, the entropy and both sums: the formula's."""
    options, formula = rules(name, 90, 140)
    inputs = random_inputs(90, 140)
    first = [tensor.clone().requires_grad_() for tensor in inputs]
    exact = [tensor.double().requires_grad_() for tensor in inputs]
    if name in ("sinks", "bias"):
        for own, of in ((first, options), (exact, formula)):
            of[name] = of[name].to(own[0].dtype).clone().requires_grad_()
            own.append(of[name])
    with kernels_of(backend) as named:
        output, graph = headloom.attend(
            *first[:3], received=headloom.LastQueries(20), backend=named, **options
        )
        assert graph.received is not None and graph.received_last is not None
        wanted_output, weights = dense(*exact[:3], **formula)
        wanted, _, wanted_last = of_columns(weights, 20)
        entropy = -torch.special.xlogy(weights, torch.where(weights > 0, weights, 1.0)).sum(-1)
        generator = torch.Generator().manual_seed(1)
        factors = [
            torch.randn(part.shape, generator=generator)
            for part in (output, wanted, wanted_last, entropy)
        ]
        for place in {"all": (), "received": (0, 2, 3), "last": (0, 1, 3)}[several]:
            factors[place].zero_()
        loss = loss_of(output, graph.received, graph.received_last, graph.entropy, factors)
        gradients = torch.autograd.grad(loss, first)
    precise = [factor.double() for factor in factors]
    exact_loss = loss_of(wanted_output, wanted, wanted_last, entropy, precise)
    for found, expected in zip(gradients, torch.autograd.grad(exact_loss, exact), strict=True):
        size = float(expected.nan_to_num(0).abs().max())
        torch.testing.assert_close(found.double(), expected, rtol=1e-3, atol=1e-4 * max(size, 1))


@pytest.mark.skipif(not INSTRUCTION_SETS, reason="built without the native kernels")
def test_gradients_take_the_kernels_way(monkeypatch: pytest.MonkeyPatch) -> None:
    """And where there is no room for a column a head, torch's."""
    calls: list[str] = []
    by_torch = native_gradients.gradients_by_formulas
    monkeypatch.setattr(
        native_gradients,
        "gradients_by_formulas",
        lambda *arguments: (calls.append("torch"), by_torch(*arguments))[1],
    )
    found = []
    for width in (1024, 1000):
        queries, keys, values = random_inputs(9, 11)
        values = torch.ones(2, 2, 11, width)
        queries.requires_grad_()
        _, graph = headloom.attend(queries, keys, values, received=True, backend="native")
        assert graph.received is not None
        found.append(torch.autograd.grad(graph.received.square().sum(), queries)[0])
    assert calls == ["torch"]
    torch.testing.assert_close(*found)
