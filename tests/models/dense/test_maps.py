"""Linear maps in bfloat16, against factors rounded one by one and multiplied in float64."""

from __future__ import annotations

from collections.abc import Sequence

import pytest
import torch
from tests.models.dense.cases import drawn, rounded, same_on_any_number_of_threads
from torch import Tensor, nn
from torch.nn.modules.module import register_module_forward_hook

from headloom.errors import InputError
from headloom.mechanism.backends import compiled
from headloom.mechanism.backends.compiled import kernels
from headloom.models.dense import Products, linear_maps, maps, products

SETS = [name for name in compiled.instruction_sets() if kernels.has_linear(name)]
pytestmark = pytest.mark.skipif(not SETS, reason="the processor multiplies no bfloat16")


@pytest.fixture(params=SETS)
def instruction_set(request: pytest.FixtureRequest, monkeypatch: pytest.MonkeyPatch) -> str:
    monkeypatch.setattr(maps, "INSTRUCTION_SET", request.param)
    return str(request.param)


SIZES = [
    (16, 1, (1,)), (33, 48, (17, 80, 5)), (128, 32, (32,)), (129, 64, (64, 64)),
    (500, 100, (200,)), (257, 256, (31, 33, 1)),
]  # fmt: skip


@pytest.mark.parametrize("relu", [False, True])
@pytest.mark.parametrize(("rows", "width", "columns"), SIZES)
def test_outputs_and_gradients_are_those_of_rounded_factors(
    rows: int, width: int, columns: Sequence[int], relu: bool, instruction_set: str
) -> None:
    inputs, linears = drawn(rows, width, columns)
    with products("bfloat16"):
        outputs = linear_maps(inputs, linears, relu=relu)
    by_outputs = [torch.randn(rows, n) for n in columns]
    parameters = [parameter for linear in linears for parameter in linear.parameters()]
    gradients = torch.autograd.grad(outputs, [inputs, *parameters], by_outputs)
    by_inputs = torch.zeros(rows, width, dtype=torch.float64)
    expected = []
    for linear, output, by_output in zip(linears, outputs, by_outputs, strict=True):
        bias = 0 if linear.bias is None else linear.bias.double()
        exact = rounded(inputs) @ rounded(linear.weight).T + bias
        exact = exact.clamp(min=0) if relu else exact
        assert torch.allclose(output.double(), exact, atol=2e-5)
        # Where an output is 0 but for rounding, its own sign decides.
        by_sum = by_output * (output > 0) if relu else by_output
        by_inputs += rounded(by_sum) @ rounded(linear.weight)
        expected.append(rounded(by_sum).T @ rounded(inputs))
        expected += [] if linear.bias is None else [by_sum.double().sum(0)]
    for gradient, exact in zip(gradients, [by_inputs, *expected], strict=True):
        assert torch.allclose(gradient.double(), exact, atol=2e-5 * rows**0.5, rtol=1e-5)


def test_threads_do_not_matter(instruction_set: str) -> None:
    inputs, linears = drawn(700, 96, (64, 160))

    def results() -> list[Tensor]:
        with products("bfloat16"):
            outputs = linear_maps(inputs, linears, relu=True)
        by_outputs = [torch.ones_like(output) for output in outputs]
        wanted = [inputs, *linears[0].parameters()]
        return [*outputs, *torch.autograd.grad(outputs, wanted, by_outputs)]

    assert same_on_any_number_of_threads(results)


@pytest.mark.parametrize("value", [float("inf"), float("nan")])
def test_numbers_that_are_not_finite_are_not_lost(value: float, instruction_set: str) -> None:
    inputs, linears = drawn(40, 32, (16,))
    with torch.no_grad():
        inputs[3, 5] = value
    (exact,) = linear_maps(inputs, linears)
    with products("bfloat16"):
        (output,) = linear_maps(inputs, linears)
    assert torch.equal(output.isfinite(), exact.isfinite())


def test_a_gradient_that_is_not_finite_is_not_lost(instruction_set: str) -> None:
    inputs, linears = drawn(40, 32, (16,))
    # A NaN whose bits are all ones would be rounded to minus zero.
    by_output = torch.zeros(40, 16)
    by_output[3, 2] = torch.tensor([0x7FFFFFFF], dtype=torch.int32).view(torch.float32)
    with products("bfloat16"):
        (output,) = linear_maps(inputs, linears)
    (gradient,) = torch.autograd.grad(output, [linears[0].weight], by_output)
    assert gradient[2].isnan().all()
    assert gradient[3].isfinite().all()


def test_frozen_weights_and_strided_rows(instruction_set: str) -> None:
    _, linears = drawn(64, 32, (48,))
    wide = torch.randn(64, 40)
    linears[0].weight.requires_grad_(False)
    with products("bfloat16"):
        (output,) = linear_maps(wide[:, 4:36].requires_grad_(), linears)
    by_output = torch.randn(64, 96)[:, ::2]
    (by_bias,) = torch.autograd.grad(output, [linears[0].bias], by_output)
    assert torch.allclose(by_bias, by_output.sum(0), atol=1e-5)
    exact = rounded(wide[:, 4:36]) @ rounded(linears[0].weight).T + linears[0].bias.double()
    assert torch.allclose(output.double(), exact, atol=1e-5)


def test_what_is_more_than_a_linear_map_is_called_itself(instruction_set: str) -> None:
    """Adapters, other `forward`s, hooks; and another type, which the kernels do not read."""

    class Adapter(nn.Linear):
        def forward(self, inputs: Tensor) -> Tensor:
            return super().forward(inputs) + 1

    replaced = nn.Linear(8, 8)
    replaced.forward = lambda inputs: inputs + 1  # type: ignore[method-assign]
    inputs, seen = torch.randn(20, 8), []
    for linear in (Adapter(8, 8), replaced, nn.Linear(8, 8).double()):
        x = inputs.to(linear.weight.dtype)
        with products("bfloat16"):
            (output,) = linear_maps(x, [linear])
        assert torch.equal(output, linear(x))
    hooked = nn.Linear(8, 8)
    hooked.register_full_backward_hook(lambda *call: seen.append(call))
    with products("bfloat16"):
        (output,) = linear_maps(inputs.requires_grad_(), [hooked])
        with register_module_forward_hook(lambda *call: seen.append(call)):
            linear_maps(inputs, [nn.Linear(8, 8)])
    output.sum().backward()
    assert len(seen) == 2


def test_a_bias_that_is_not_as_kernels_read_it(instruction_set: str) -> None:
    """Every other number of a tensor; and too few numbers, which torch refuses."""
    inputs, (linear, *_) = drawn(20, 8, (8,))
    linear.bias = nn.Parameter(torch.randn(16)[::2])
    with products("bfloat16"):
        (output,) = linear_maps(inputs, [linear])
        assert torch.allclose(output, linear(inputs))
        linear.bias = nn.Parameter(torch.randn(3))
        with pytest.raises(RuntimeError, match="size"):
            linear_maps(inputs, [linear])


@pytest.mark.parametrize("relu", [False, True])
def test_second_derivatives_are_those_of_float32(relu: bool, instruction_set: str) -> None:
    inputs, linears = drawn(40, 8, (6, 5))
    weight = linears[0].weight

    def second(kind: Products) -> list[Tensor]:
        with products(kind):
            outputs = linear_maps(inputs, linears, relu=relu)
        total = sum((output**3).sum() for output in outputs)
        first = torch.autograd.grad(total, [inputs, weight], create_graph=True)
        penalty = sum((gradient**2).sum() for gradient in first)
        return list(torch.autograd.grad(penalty, [inputs, weight, linears[0].bias]))

    for ours, exact in zip(second("bfloat16"), second("float32"), strict=True):
        assert float(exact.norm()) > 0
        assert float((ours - exact).norm() / exact.norm()) < 0.03


def test_transforms_autocast_and_what_is_compiled(instruction_set: str) -> None:
    inputs, (linear, *_) = drawn(140, 128, (130,))
    x = inputs.detach()

    def rounding(rows: Tensor) -> Tensor:
        with products("bfloat16"):
            (output,) = linear_maps(rows, [linear])
        return output

    by_x = torch.func.grad(lambda y: (rounding(y) ** 2).sum())(x)
    exact = torch.func.grad(lambda y: (linear(y) ** 2).sum())(x).detach()
    assert float((by_x.detach() - exact).norm() / exact.norm()) < 0.03
    stacked = torch.stack([x, 2 * x])
    assert torch.allclose(torch.func.vmap(rounding)(stacked), linear(stacked), atol=0.1)
    with torch.autocast("cpu", torch.bfloat16):
        assert torch.equal(rounding(x), linear(x))
    assert torch.equal(rounding(x[:15]), linear(x[:15]))  # too few rows
    compiled = torch.compile(rounding, backend="eager")
    assert torch.allclose(compiled(x), linear(x), atol=1e-5)


def test_other_kinds_are_refused() -> None:
    with (
        pytest.raises(InputError, match="products: 'half'; expected \"float32\", "),
        products("half"),  # type: ignore[arg-type]
    ):
        pass
