"""Derivatives of derivatives, forward ones and those of torch.func: right, or one clear error."""

from __future__ import annotations

from collections.abc import Callable
from typing import Any
from unittest.mock import patch

import pytest
import torch
from tests.slow import slow
from torch import Tensor
from torch.autograd import forward_ad

import headloom
from headloom.mechanism.backends import compiled, torch_blocks
from headloom.mechanism.masks import packed

QUERIES, KEYS, DEPTH = 4, 5, 3
OPTIONS = (
    "plain",
    "causal",
    "window and padding",
    "neighbours",
    "packed",
    "nothing allowed",
    "Shaw",
    "ALiBi",
    "buckets",
    "bias",
    "key bias",
    "bilinear",
    "softcap",
    "sinks",
    "grouped",
    "scale",
)
TORCH_ONLY = ("additive", "graph attention", "graph attention 2")


def problem(name: str, dtype: torch.dtype) -> tuple[dict[str, Tensor], Callable[..., Any]]:
    """Differentiable tensors by name, and the options made of them."""
    generator = torch.Generator().manual_seed(len(name))

    def some(*shape: int) -> Tensor:
        tensor = torch.randn(*shape, dtype=torch.float64, generator=generator) / 2
        return tensor.to(dtype).requires_grad_()

    heads, kv_heads = (2, 1) if name == "grouped" else (2, 2)
    rows = KEYS if name == "packed" else QUERIES
    tensors = {
        "queries": some(1, heads, rows, DEPTH),
        "keys": some(1, kv_heads, KEYS, DEPTH),
        "values": some(1, kv_heads, KEYS, 2),
    }
    adjacency = torch.rand(rows, KEYS, generator=generator) < 0.5
    adjacency[1] = False
    extra: dict[str, Tensor] = {
        "Shaw": {"a": some(2, 5, DEPTH), "b": some(5, 2)},
        "ALiBi": {"a": some(2)},
        "buckets": {"a": some(8, 2)},
        "bias": {"a": some(1, 2, rows, KEYS)},
        "key bias": {"a": some(1, 1, 1, KEYS)},
        "bilinear": {"a": some(2, DEPTH, DEPTH)},
        "sinks": {"a": some(2)},
        "additive": {"a": some(4, DEPTH), "b": some(4, DEPTH), "c": some(4)},
        "graph attention": {"a": some(DEPTH), "b": some(2, DEPTH)},
        "graph attention 2": {"a": some(DEPTH)},
    }.get(name, {})
    tensors |= extra

    def options(*more: Tensor) -> dict[str, Any]:
        return {
            "causal": lambda: {"mask": headloom.causal()},
            "window and padding": lambda: {"mask": headloom.window(1, 1) & headloom.padding([4])},
            "neighbours": lambda: {"mask": headloom.neighbours(adjacency)},
            "packed": lambda: {"mask": packed([2, 3])},
            "nothing allowed": lambda: {"mask": torch.zeros(rows, KEYS, dtype=torch.bool)},
            "Shaw": lambda: {"relative": headloom.Shaw(*more)},
            "ALiBi": lambda: {"relative": headloom.ALiBi(*more)},
            "buckets": lambda: {"relative": headloom.Buckets(*more)},
            "bias": lambda: {"bias": more[0]},
            "key bias": lambda: {"bias": more[0], "mask": headloom.causal(1)},
            "bilinear": lambda: {"score": headloom.Bilinear(more[0])},
            "softcap": lambda: {"softcap": 0.7},
            "sinks": lambda: {"sinks": more[0]},
            "scale": lambda: {"scale": -0.6},
            "additive": lambda: {"score": headloom.Additive(*more)},
            "graph attention": lambda: {"score": headloom.GraphAttention(*more)},
            "graph attention 2": lambda: {"score": headloom.GraphAttentionV2(*more)},
        }.get(name, dict)()

    return tensors, options


def results(kind: str, options: Callable[..., Any], backend: str, *tensors: Tensor) -> list[Tensor]:
    """Every differentiable result of a call; empty places, which are constants, are left out."""
    queries, keys, values, *more = tensors
    named = options(*more) | {"backend": backend}
    if kind == "attention":
        return [headloom.attention(queries, keys, values, **named)]
    if kind == "all":
        return list(headloom.attend(queries, keys, values, keep=headloom.All(), **named))
    output, graph = headloom.attend(queries, keys, values, keep=headloom.Top(2), **named)
    kept = graph.keys >= 0
    seen = graph.count > 0
    found = [output, graph.scores[kept], graph.weights, graph.entropy, graph.rest, graph.lse[seen]]
    return [part for part in found if part.numel()]


@pytest.mark.parametrize("cells", (2**24, pytest.param(1, marks=pytest.mark.slow)))
@pytest.mark.parametrize("kind", ("attention", "top", *slow("all")))
@pytest.mark.parametrize("name", OPTIONS + TORCH_ONLY)
def test_second_derivatives_of_torch_in_float64(name: str, kind: str, cells: int) -> None:
    tensors, options = problem(name, torch.float64)

    def function(*inputs: Tensor) -> tuple[Tensor, ...]:
        return tuple(
            part for part in results(kind, options, "torch", *inputs) if part.requires_grad
        )

    with patch.object(torch_blocks, "BLOCK_CELLS", cells):
        if not function(*tensors.values()):
            return  # of rows that see nothing
        assert torch.autograd.gradgradcheck(function, tuple(tensors.values()), fast_mode=True)


def second(
    kind: str, options: Callable[..., Any], backend: str, tensors: dict[str, Tensor]
) -> list[Tensor]:
    """Gradients of a sum of squares of gradients of a sum of squares."""
    found = results(kind, options, backend, *tensors.values())
    first = torch.autograd.grad(
        sum((part.pow(2).sum() * (n + 1) for n, part in enumerate(found)), torch.zeros(())),
        list(tensors.values()),
        create_graph=True,
        materialize_grads=True,
    )
    total = sum((part.pow(2).sum() for part in first), torch.zeros(()))
    total = total + sum((tensor.pow(3).sum() for tensor in tensors.values()), torch.zeros(()))
    return list(torch.autograd.grad(total, list(tensors.values())))


@pytest.mark.skipif(not compiled.instruction_sets(), reason="built without the native kernels")
@pytest.mark.parametrize("kind", ("attention", "top"))
@pytest.mark.parametrize("name", OPTIONS)
def test_second_derivatives_of_the_kernels_are_those_of_float64(name: str, kind: str) -> None:
    tensors, options = problem(name, torch.float32)
    exact, exact_options = problem(name, torch.float64)
    expected = second(kind, exact_options, "torch", exact)
    for cells in (2**24, 1):
        with patch.object(torch_blocks, "BLOCK_CELLS", cells):
            found = second(kind, options, "native", tensors)
        for mine, theirs in zip(found, expected, strict=True):
            torch.testing.assert_close(mine.double(), theirs, rtol=2e-4, atol=2e-4)


@pytest.mark.filterwarnings("ignore:.torch.jit.script:DeprecationWarning")  # torch's own call
@pytest.mark.parametrize("kind", ("attention", "top", "all"))
@pytest.mark.parametrize("name", ("plain", "causal", "Shaw", "sinks", "bilinear"))
@pytest.mark.parametrize("dtype", (torch.float64, torch.float32))
def test_forward_derivatives_and_torch_func(name: str, kind: str, dtype: torch.dtype) -> None:
    tensors, options = problem(name, dtype)
    inputs = tuple(tensor.detach() for tensor in tensors.values())
    torch.manual_seed(0)
    if name == "plain" and dtype == torch.float32:  # long enough for the kernels, if they could
        inputs = tuple(torch.randn(1, 2, 90, tensor.shape[3]) for tensor in inputs)
    generator = torch.Generator().manual_seed(1)
    tangents = tuple(torch.randn(tensor.shape, generator=generator).to(dtype) for tensor in inputs)

    def function(*inputs: Tensor) -> tuple[Tensor, ...]:
        return tuple(results(kind, options, None, *inputs))  # type: ignore[arg-type]

    step = 1e-6
    plus = function(*(x.double() + step * t for x, t in zip(inputs, tangents, strict=True)))
    minus = function(*(x.double() - step * t for x, t in zip(inputs, tangents, strict=True)))
    expected = [(a - b) / (2 * step) for a, b in zip(plus, minus, strict=True)]

    _, by_func = torch.func.jvp(function, inputs, tangents)
    with forward_ad.dual_level():
        duals = [forward_ad.make_dual(x, t) for x, t in zip(inputs, tangents, strict=True)]
        by_dual = [forward_ad.unpack_dual(part).tangent for part in function(*duals)]
    for found in (by_func, by_dual):
        for mine, theirs in zip(found, expected, strict=True):
            torch.testing.assert_close(mine.double(), theirs, rtol=1e-3, atol=1e-4)


@pytest.mark.parametrize("positions", (6, 70))
def test_vmap_and_gradients_of_torch_func(positions: int) -> None:
    torch.manual_seed(0)
    queries, keys, values = (torch.randn(3, 2, positions, 4) for _ in range(3))
    expected, graph = headloom.attend(
        queries, keys, values, mask=headloom.causal(), keep=headloom.Top(3)
    )

    def one(queries: Tensor, keys: Tensor, values: Tensor) -> tuple[Tensor, Tensor, Tensor]:
        output, kept = headloom.attend(
            queries, keys, values, mask=headloom.causal(), keep=headloom.Top(3)
        )
        return output, kept.keys, kept.entropy

    output, kept_keys, entropy = torch.func.vmap(one)(queries, keys, values)
    torch.testing.assert_close(output, expected)
    assert torch.equal(kept_keys, graph.keys)
    torch.testing.assert_close(entropy, graph.entropy, rtol=1e-4, atol=1e-5)

    def loss(queries: Tensor, keys: Tensor, values: Tensor) -> Tensor:
        return headloom.attention(queries, keys, values, mask=headloom.causal()).pow(2).sum()

    each = torch.func.vmap(torch.func.grad(loss))(queries, keys, values)
    together = queries.clone().requires_grad_()
    (expected,) = torch.autograd.grad(loss(together, keys, values), together)
    torch.testing.assert_close(each, expected, rtol=1e-4, atol=1e-5)


@pytest.mark.parametrize("kind", ("top", *slow("attention")))
@pytest.mark.parametrize("backend", ("torch", "native"))
@pytest.mark.parametrize("name", OPTIONS)
def test_several_gradients_at_once(name: str, backend: str, kind: str) -> None:
    if backend == "native" and not compiled.instruction_sets():
        pytest.skip("built without the native kernels")
    tensors, options = problem(name, torch.float32)
    inputs = list(tensors.values())
    found = results(kind, options, backend, *inputs)
    wanted = [part for part in found if part.requires_grad]
    if not wanted:
        return  # of rows that see nothing
    generator = torch.Generator().manual_seed(2)
    incoming = [torch.randn(3, *part.shape, generator=generator) for part in wanted]

    def gradients(*by_results: Tensor, several: bool) -> tuple[Tensor, ...]:
        return torch.autograd.grad(
            wanted,
            inputs,
            by_results,
            create_graph=True,
            materialize_grads=not several,  # torch cannot, of several
            allow_unused=True,
            is_grads_batched=several,
        )

    together = gradients(*incoming, several=True)
    each_incoming = zip(*incoming, strict=True)
    one_by_one = zip(*(gradients(*each, several=False) for each in each_incoming), strict=True)
    for mine, each in zip(together, one_by_one, strict=True):
        expected = torch.stack(each)
        if mine is None:
            assert not expected.any()
            continue
        torch.testing.assert_close(mine, expected, rtol=1e-4, atol=1e-5)
        if not expected.requires_grad:
            continue
        twice, expected_twice = (
            torch.autograd.grad(
                part.pow(2).sum(), inputs, retain_graph=True, materialize_grads=True
            )
            for part in (mine, expected)
        )
        torch.testing.assert_close(twice, expected_twice, rtol=1e-3, atol=1e-4)
