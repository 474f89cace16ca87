"""The kernels as operators of a compiled program: torch's own checks, and float64 by hand."""

from __future__ import annotations

from collections.abc import Callable, Iterator
from typing import Any

import pytest
import torch
from torch import Tensor
from torch.nn import Module

import headloom
from headloom.mechanism.backends.compiled import instruction_sets
from headloom.mechanism.backends.native import _gradients_operator, _operator
from headloom.mechanism.backends.native_request import prepare
from headloom.mechanism.call import checked_call

pytestmark = pytest.mark.skipif(not instruction_sets(), reason="built without the kernels")

BATCH, HEADS, LENGTH, DEPTH = 2, 4, 21, 8
LENGTHS = torch.tensor([LENGTH, 13])
KEY = torch.arange(LENGTH)
QUERY = KEY[:, None]
CAUSAL = QUERY >= KEY
HOLES = torch.ones(BATCH, LENGTH, dtype=torch.bool)
HOLES[1, 3] = False
#: Masks, and what each says in bools.
MASKS: dict[str, tuple[Any, Tensor]] = {
    "none": (None, CAUSAL | True),
    "causal": (headloom.causal(), CAUSAL),
    "window": (
        headloom.window(3, 2),
        (QUERY - 3 <= KEY) & (QUERY + 2 >= KEY),
    ),
    "lengths": (headloom.padding(LENGTHS), (LENGTHS[:, None] > KEY)[:, None, None]),
    "holes": (headloom.padding(HOLES) & headloom.causal(), HOLES[:, None, None] & CAUSAL),
    "bool": (CAUSAL | (KEY == 20), CAUSAL | (KEY == 20)),
}


@pytest.fixture(autouse=True)
def _fresh_compiler() -> Iterator[None]:
    torch._dynamo.reset()
    yield
    torch._dynamo.reset()


def drawn(*, kv_heads: int = HEADS, grow: float = 1.0) -> list[Tensor]:
    torch.manual_seed(0)
    sizes = (HEADS, kv_heads, kv_heads)
    found = [torch.randn(BATCH, heads, LENGTH, DEPTH) for heads in sizes]
    return [(tensor * grow).requires_grad_() for tensor in found[:2]] + [found[2].requires_grad_()]


def compiled(function: Callable[..., Any], **options: Any) -> Callable[..., Any]:
    """By the compiler's front and its derivatives, without the code that it writes."""
    return torch.compile(function, fullgraph=True, backend="aot_eager", **options)


def operators_in(function: Callable[..., Any], *tensors: Tensor) -> set[str]:
    """The operators of headloom in the program that the compiler is given."""
    found: set[str] = set()

    def backend(module: torch.fx.GraphModule, _: list[Tensor]) -> Callable[..., Any]:
        names = (str(node.target) for node in module.graph.nodes)
        found.update(
            name.removesuffix(".default") for name in names if name.startswith("headloom.")
        )
        return module.forward

    torch.compile(function, fullgraph=True, backend=backend)(*tensors)
    return found


def by_hand(given: list[Tensor], allowed: Tensor) -> list[Tensor]:
    """Output and gradients of the sum of its squares, in float64."""
    tensors = [tensor.detach().double().requires_grad_() for tensor in given]
    queries, keys, values = tensors
    keys, values = (t.repeat_interleave(HEADS // t.shape[1], 1) for t in (keys, values))
    scores = (queries @ keys.mT / DEPTH**0.5).masked_fill(~allowed, -torch.inf)
    output = scores.softmax(-1) @ values
    return [output.detach(), *torch.autograd.grad(output.square().sum(), tensors)]


@pytest.mark.parametrize("mask", MASKS)
def test_a_compiled_call_is_right_and_so_are_its_gradients(mask: str) -> None:
    rule, allowed = MASKS[mask]
    given = drawn(kv_heads=2 if mask == "causal" else HEADS)
    output = compiled(lambda *qkv: headloom.attention(*qkv, mask=rule))(*given)
    found = [output, *torch.autograd.grad(output.square().sum(), given)]
    for tensor, exact in zip(found, by_hand(given, allowed), strict=True):
        torch.testing.assert_close(tensor.double(), exact, rtol=1e-4, atol=1e-5)


def test_a_compiled_call_is_the_kernels() -> None:
    assert operators_in(lambda q, k, v: headloom.attention(q, k, v), *drawn()) == {
        "headloom.attend"
    }
    assert operators_in(lambda q, k, v: headloom.attend(q, k, v)[1].lse, *drawn()) == {
        "headloom.attend"
    }
    by_torch = operators_in(lambda q, k, v: headloom.attention(q, k, v, backend="torch"), *drawn())
    assert by_torch == set()


def test_a_compiled_graph_and_its_gradients_are_the_eager_ones() -> None:
    """Bit for bit: they are the same kernels, and those are tested against float64 elsewhere."""
    given = drawn()

    def graph(*qkv: Tensor) -> tuple[Tensor, ...]:
        output, edges = headloom.attend(
            *qkv, mask=headloom.causal(), keep=headloom.Top(5), received=headloom.LastQueries(3)
        )
        assert edges.received is not None
        assert edges.received_last is not None
        return (
            *(output, edges.scores, edges.weights, edges.lse, edges.entropy, edges.rest),
            *(edges.received, edges.received_last, edges.keys, edges.count),
        )

    eager, program = graph(*given), compiled(graph)(*given)
    for one, other in zip(eager, program, strict=True):
        assert torch.equal(one, other)
    for one, other in zip(eager[:-2], program[:-2], strict=True):
        weights = torch.randn_like(one)
        by_eager, by_program = (
            torch.autograd.grad((t * weights).sum(), given, retain_graph=True, allow_unused=True)
            for t in (one, other)
        )
        for first, second in zip(by_eager, by_program, strict=True):
            # What has no part in a result has no gradient here, and zeros there.
            assert first is None or second is None or torch.equal(first, second)


def test_biases_sinks_and_a_soft_cap_have_gradients_too() -> None:
    given = drawn()
    bias = torch.randn(1, HEADS, LENGTH, LENGTH, requires_grad=True)
    sinks = torch.randn(HEADS, requires_grad=True)

    def call(*tensors: Tensor) -> Tensor:
        q, k, v, bias, sinks = tensors
        return headloom.attention(
            q, k, v, bias=bias, sinks=sinks, softcap=4.0, mask=headloom.causal()
        )

    tensors = [*given, bias, sinks]
    found = torch.autograd.grad(compiled(call)(*tensors).square().sum(), tensors)
    exact = [tensor.detach().double().requires_grad_() for tensor in tensors]
    q, k, v, b, s = exact
    scores = 4 * torch.tanh(q @ k.mT / DEPTH**0.5 / 4) + b
    scores = scores.masked_fill(~CAUSAL, -torch.inf)
    logits = torch.cat((scores, s[None, :, None, None].expand(BATCH, -1, LENGTH, 1)), -1)
    output = logits.softmax(-1)[..., :-1] @ v
    for one, other in zip(found, torch.autograd.grad(output.square().sum(), exact), strict=True):
        torch.testing.assert_close(one.double(), other, rtol=1e-4, atol=1e-5)


def test_gradients_that_the_kernel_leaves_to_torch_are_no_zeros() -> None:
    """Where scores are in the ten thousands; within an operator torch records nothing."""
    given = drawn(grow=100.0)
    output = compiled(lambda *qkv: headloom.attention(*qkv, mask=headloom.causal()))(*given)
    by_values = torch.autograd.grad(output.square().sum(), given)[2]
    exact = by_hand(given, CAUSAL)[3]
    assert exact.abs().max() > 1
    torch.testing.assert_close(by_values.double(), exact, rtol=1e-2, atol=1e-3)


def test_lengths_are_looked_at_when_the_program_runs() -> None:
    call = compiled(
        lambda q, k, v, lengths: headloom.attention(q, k, v, mask=headloom.padding(lengths))
    )
    qkv = drawn()
    exact = by_hand(qkv, MASKS["lengths"][1])[0]
    torch.testing.assert_close(call(*qkv, LENGTHS).double(), exact, rtol=1e-4, atol=1e-5)
    for wrong in ([LENGTH + 1, 2], [3, -1]):
        with pytest.raises(headloom.ShapeError, match=r"from 0 to 21"):
            call(*qkv, torch.tensor(wrong))


def test_an_exported_program_runs_without_headloom() -> None:
    class Layer(Module):
        def forward(self, q: Tensor, k: Tensor, v: Tensor) -> Tensor:
            return headloom.attention(q, k, v, mask=headloom.causal())

    given = tuple(tensor.detach() for tensor in drawn())
    program = torch.export.export(Layer(), given)
    assert not [node for node in program.graph.nodes if "headloom" in str(node.target)]
    exact = by_hand(list(given), CAUSAL)[0]
    torch.testing.assert_close(program.module()(*given).double(), exact, rtol=1e-4, atol=1e-5)


@pytest.mark.parametrize(
    "mask", [pytest.param("none", marks=pytest.mark.slow), "holes",
             pytest.param("lengths", marks=pytest.mark.slow)],
)  # fmt: skip
def test_torch_finds_no_fault_in_the_operators(mask: str) -> None:
    """Schemas, sizes without numbers, gradients, and programs of any size."""
    given = drawn()
    native = prepare(checked_call("test", *given, mask=MASKS[mask][0]))
    output, *_, lse = (_operator(*native, -1, False, True)[n] for n in (0, 4))
    bare = [a.detach() if isinstance(a, Tensor) else a for a in native]
    empty = torch.empty(0)
    saved, needs = [output.detach(), lse.detach(), *[empty] * 3], [True] * 3 + [False] * 5
    for operator, own in (
        (_operator, (*native, -1, False, True)),
        (_operator, (*native, 6, False, False)),
        (_operator, (*native._replace(last_queries=3), 6, True, True)),
        (_gradients_operator, (*bare, saved, [torch.randn_like(output), *[None] * 11], needs)),
    ):
        found = torch.library.opcheck(operator, own)
        assert set(found.values()) == {"SUCCESS"}, found
