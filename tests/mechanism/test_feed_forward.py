"""Both maps of a feed-forward layer in bfloat16, against rounded factors in float64."""

from __future__ import annotations

import math
from collections.abc import Callable

import pytest
import torch
from tests.mechanism.linear_cases import rounded
from torch import Tensor, nn

from headloom.mechanism.backends import native, native_feed_forward
from headloom.mechanism.backends.native_request import kernels
from headloom.mechanism.linear import Products, feed_forward, products
from headloom.models.blocks import FeedForward
from headloom.models.configuration import Architecture

SETS = [name for name in native.instruction_sets() if kernels.has_linear(name)]
pytestmark = pytest.mark.skipif(not SETS, reason="the processor multiplies no bfloat16")


@pytest.fixture(params=SETS)
def instruction_set(request: pytest.FixtureRequest, monkeypatch: pytest.MonkeyPatch) -> str:
    monkeypatch.setattr(native_feed_forward, "INSTRUCTION_SET", request.param)
    return str(request.param)


def _normal(x: Tensor) -> Tensor:
    return (1 + torch.erf(x / math.sqrt(2))) / 2


def _smooth(x: Tensor) -> Tensor:
    return 1 / (1 + torch.exp(-2 * math.sqrt(2 / math.pi) * (x + 0.044715 * x**3)))


#: By hand: a, and its derivative where it is short to write.
FUNCTIONS: dict[str, Callable[[Tensor], Tensor]] = {
    "relu": lambda x: x * (x > 0),
    "gelu": lambda x: x * _normal(x),
    "gelu-tanh": lambda x: x * _smooth(x),
    "silu": lambda x: x / (1 + torch.exp(-x)),
}
#: Rows, width, inner and outer width, whether there are biases.
SIZES = [
    (16, 1, 3, 1, True),
    (33, 17, 50, 5, True),
    (128, 32, 128, 32, False),
    (129, 48, 80, 31, True),
    (300, 100, 200, 100, True),
]


def _maps(width: int, inner: int, outer: int, biases: bool) -> tuple[nn.Linear, nn.Linear]:
    torch.manual_seed(width + inner)
    return nn.Linear(width, inner, bias=biases), nn.Linear(inner, outer, bias=biases)


def _served(inputs: Tensor, rise: nn.Linear, fall: nn.Linear, kind: str) -> Tensor:
    with products("bfloat16"):
        output = feed_forward(inputs, rise, fall, kind)
    assert output is not None
    return output


def _distance(found: Tensor, exact: Tensor) -> float:
    return float((found.double() - exact).norm() / exact.norm().clamp(min=1e-6))


@pytest.mark.parametrize("kind", FUNCTIONS)
@pytest.mark.parametrize(("rows", "width", "inner", "outer", "biases"), SIZES)
def test_output_and_gradients_are_those_of_rounded_factors(
    rows: int, width: int, inner: int, outer: int, biases: bool, kind: str, instruction_set: str
) -> None:
    rise, fall = _maps(width, inner, outer, biases)
    inputs = torch.randn(rows, width, requires_grad=True)
    output = _served(inputs, rise, fall, kind)
    by_output = torch.randn(rows, outer)
    parameters = [*rise.parameters(), *fall.parameters()]
    found = torch.autograd.grad(output, [inputs, *parameters], by_output)

    hidden = rounded(inputs) @ rounded(rise.weight).T
    hidden = (hidden + (rise.bias.detach().double() if biases else 0)).requires_grad_()
    values = FUNCTIONS[kind](hidden)
    (slopes,) = torch.autograd.grad(values.sum(), hidden)
    # A number in float32 beside the middle of two of bfloat16 may go to the other one.
    value = rounded(values.detach().float())
    exact = value @ rounded(fall.weight).T
    exact = exact + (fall.bias.detach().double() if biases else 0)
    by_hidden = (rounded(by_output) @ rounded(fall.weight)) * slopes
    by_product = rounded(by_hidden.float())
    expected = [by_product @ rounded(rise.weight), by_product.T @ rounded(inputs)]
    expected += [by_hidden.sum(0)] if biases else []
    expected += [rounded(by_output).T @ value]
    expected += [by_output.double().sum(0)] if biases else []
    assert _distance(output.detach(), exact) < 1e-4  # unrounded, it would be some 1e-3
    for gradient, by_hand in zip(found, expected, strict=True):
        assert _distance(gradient, by_hand) < 1e-4


def test_threads_do_not_matter(instruction_set: str) -> None:
    rise, fall = _maps(96, 160, 64, True)
    inputs = torch.randn(700, 96, requires_grad=True)

    def results() -> list[Tensor]:
        output = _served(inputs, rise, fall, "gelu")
        asked = [inputs, *rise.parameters(), *fall.parameters()]
        return [output, *torch.autograd.grad(output, asked, torch.ones_like(output))]

    threads = torch.get_num_threads()
    torch.set_num_threads(1)
    try:
        alone = results()
        torch.set_num_threads(2)
        assert all(torch.equal(a, b) for a, b in zip(alone, results(), strict=True))
    finally:
        torch.set_num_threads(threads)


@pytest.mark.parametrize("place", ["input", "hidden"])
def test_numbers_that_are_not_finite_are_not_lost(place: str, instruction_set: str) -> None:
    rise, fall = _maps(32, 48, 16, True)
    inputs = torch.randn(40, 32)
    with torch.no_grad():
        if place == "input":
            inputs[3, 5] = float("nan")
        else:  # finite factors, whose product is beyond float32
            inputs[3] = 1e30
            rise.weight[7] = 1e30
        exact = fall(nn.functional.gelu(rise(inputs)))
    output = _served(inputs.requires_grad_(), rise, fall, "gelu")
    assert torch.equal(output.isfinite(), exact.isfinite())
    (gradient,) = torch.autograd.grad(output[5].sum(), fall.bias)
    assert torch.equal(gradient, torch.ones(16))


def test_a_gradient_that_is_not_finite_is_not_lost(instruction_set: str) -> None:
    rise, fall = _maps(32, 48, 16, True)
    output = _served(torch.randn(40, 32, requires_grad=True), rise, fall, "silu")
    by_output = torch.zeros(40, 16)
    # A NaN whose bits are all ones would be rounded to minus zero.
    by_output[3, 2] = torch.tensor([0x7FFFFFFF], dtype=torch.int32).view(torch.float32)
    (gradient,) = torch.autograd.grad(output, [fall.weight], by_output)
    assert gradient[2].isnan().all()
    assert gradient[3].isfinite().all()


def test_frozen_weights_and_strided_rows(instruction_set: str) -> None:
    rise, fall = _maps(32, 48, 16, True)
    rise.weight.requires_grad_(False)
    wide = torch.randn(64, 40)
    output = _served(wide[:, 4:36], rise, fall, "relu")
    by_output = torch.randn(64, 32)[:, ::2]
    found = torch.autograd.grad(output, [rise.bias, fall.bias], by_output)
    hidden = rounded(wide[:, 4:36]) @ rounded(rise.weight).T + rise.bias.detach().double()
    by_hidden = (rounded(by_output) @ rounded(fall.weight)) * (hidden > 0)
    assert torch.allclose(found[0].double(), by_hidden.sum(0), atol=1e-4)
    assert torch.allclose(found[1], by_output.sum(0), atol=1e-5)


@pytest.mark.parametrize("kind", FUNCTIONS)
def test_second_derivatives_are_those_of_float32(kind: str, instruction_set: str) -> None:
    rise, fall = _maps(8, 12, 6, True)
    inputs = torch.randn(40, 8, requires_grad=True)

    def second(output: Tensor) -> list[Tensor]:
        first = torch.autograd.grad((output**3).sum(), [inputs, rise.weight], create_graph=True)
        penalty = sum((gradient**2).sum() for gradient in first)
        return list(torch.autograd.grad(penalty, [inputs, rise.weight, fall.weight]))

    exact = fall(FUNCTIONS[kind](rise(inputs)))
    for ours, by_hand in zip(second(_served(inputs, rise, fall, kind)), second(exact), strict=True):
        assert float(by_hand.norm()) > 0
        assert _distance(ours, by_hand.double()) < 0.03


@pytest.mark.parametrize("kind", ["bfloat16", "float32"])
def test_a_hook_on_either_map_is_called(kind: Products) -> None:
    layer = FeedForward(Architecture(width=16, heads=2, feed_forward=32, activation="gelu"))
    seen: list[Tensor] = []
    layer.fall.register_forward_hook(lambda module, args, result: seen.append(args[0]))
    with products(kind):
        layer(torch.randn(20, 16))
    assert [tuple(hidden.shape) for hidden in seen] == [(20, 32)]


def test_without_gradients_the_output_is_the_same(instruction_set: str) -> None:
    rise, fall = _maps(32, 48, 16, True)
    inputs = torch.randn(40, 32)
    output = _served(inputs, rise, fall, "gelu").detach()
    with torch.no_grad():
        assert torch.equal(_served(inputs, rise, fall, "gelu"), output)


def test_what_the_kernels_do_not_serve_is_left_to_others() -> None:
    rise, fall = _maps(8, 12, 6, True)
    assert feed_forward(torch.randn(20, 8), rise, fall, "gelu") is None  # float32
    with products("bfloat16"):
        assert feed_forward(torch.randn(20, 8).double(), rise, fall, "gelu") is None
        assert feed_forward(torch.randn(20, 8), rise, fall, "softplus") is None
        assert feed_forward(torch.randn(3, 8), rise, fall, "gelu") is None  # too few rows
        assert feed_forward(torch.randn(20, 8), rise, fall.double(), "gelu") is None
