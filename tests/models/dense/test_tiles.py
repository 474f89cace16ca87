"""Products of float32 on the matrix unit, against float64 and torch's own float32 products."""

from __future__ import annotations

from collections.abc import Sequence

import pytest
import torch
from tests.models.dense.cases import drawn, same_on_any_number_of_threads
from torch import Tensor

from headloom.models.dense import (
    Products,
    has_matrix_unit,
    linear_maps,
    maps,
    passes,
    products,
    projected_loss,
)

pytestmark = pytest.mark.skipif(not has_matrix_unit(), reason="the processor has no matrix unit")

#: Below it, cuts and products are 0.
SMALLEST = 2.0**-126


def product(left: Tensor, right: Tensor) -> Tensor:
    output = torch.full((len(left), right.shape[1]), torch.nan)
    assert maps.multiply(left, right, output)
    return output


def worst(result: Tensor, left: Tensor, right: Tensor) -> float:
    """The largest error, as a share of the sum of magnitudes."""
    magnitudes = left.double().abs() @ right.double().abs()
    return float(((result.double() - left.double() @ right.double()).abs() / magnitudes).max())


def no_worse_than_torch(left: Tensor, right: Tensor) -> None:
    ours, torchs = worst(product(left, right), left, right), worst(left @ right, left, right)
    assert ours <= 2 * torchs + 2**-23  # and one unit of the last place, where terms are few


def matrix(rows: int, columns: int, *, turned: bool) -> Tensor:
    return torch.randn(columns, rows).T if turned else torch.randn(rows, columns)


SIZES = [
    (1, 1, 1), (2, 3, 5), (31, 33, 17), (32, 32, 128), (33, 31, 129), (65, 300, 257),
    (257, 16, 1000), (300, 290, 130), (128, 513, 40), (64, 70, 5000), (7, 260, 2049),
]  # fmt: skip


@pytest.mark.parametrize("turned", [(False, False), (False, True), (True, False), (True, True)])
@pytest.mark.parametrize(("rows", "columns", "terms"), SIZES)
def test_errors_are_those_of_float32(
    rows: int, columns: int, terms: int, turned: tuple[bool, bool]
) -> None:
    torch.manual_seed(rows + terms)
    left, right = matrix(rows, terms, turned=turned[0]), matrix(terms, columns, turned=turned[1])
    no_worse_than_torch(left, right)


@pytest.mark.parametrize("magnitude", [1e-32, 1e-36, 1e-38, 1e-40, 1e-44])
def test_what_no_cut_can_hold_is_zero_and_no_more(magnitude: float) -> None:
    torch.manual_seed(0)
    left, right = torch.randn(40, 300) * magnitude, torch.randn(300, 50)
    exact = left.double() @ right.double()
    # Two cuts of a left number, and the six products of each pair, may be lost.
    lost = SMALLEST * (2 * right.double().abs().sum(0) + 6 * 300)
    rounded = 2**-20 * (left.double().abs() @ right.double().abs())
    assert ((product(left, right).double() - exact).abs() <= lost + rounded).all()


@pytest.mark.parametrize("value", [torch.inf, -torch.inf, torch.nan])
@pytest.mark.parametrize("place", [(0, 0), (39, 255), (17, 130)])
@pytest.mark.parametrize("of_right", [False, True])
def test_a_factor_that_is_not_finite_is_noticed(
    value: float, place: tuple[int, int], of_right: bool
) -> None:
    left, right = torch.randn(40, 256), torch.zeros(256, 3)
    factor, (row, term) = (right.T, (place[0] % 3, place[1])) if of_right else (left, place)
    factor[row, term] = value
    assert not maps.multiply(left, right, torch.empty(40, 3))


def test_biases_activations_and_sums() -> None:
    left, right, bias = torch.randn(70, 90), torch.randn(90, 45), torch.randn(45)
    output = torch.randn(70, 45)
    exact = (left.double() @ right.double() + bias + output).clamp(min=0)
    wide = torch.full((70, 60), torch.nan)
    wide[:, 3:48] = output
    assert maps.multiply(left, right, wide[:, 3:48], bias=bias, relu=True, add=True)
    assert torch.allclose(wide[:, 3:48].double(), exact, atol=1e-5)
    assert wide[:, :3].isnan().all() and wide[:, 48:].isnan().all()
    long, tall = torch.randn(20, 4000), torch.randn(4000, 45)
    output = torch.randn(20, 45)
    exact = (long.double() @ tall.double() + bias + output).clamp(min=0)
    assert maps.multiply(long, tall, output, bias=bias, relu=True, add=True)
    assert torch.allclose(output.double(), exact, atol=1e-4)


@pytest.mark.parametrize(("rows", "columns", "terms"), [(700, 300, 96), (130, 260, 5000)])
def test_threads_do_not_matter(rows: int, columns: int, terms: int) -> None:
    left, right = torch.randn(rows, terms), torch.randn(terms, columns)
    assert same_on_any_number_of_threads(lambda: [product(left, right)])


MAPS = [(128, 128, (128,)), (300, 160, (130, 200)), (257, 256, (131, 133, 129))]


@pytest.mark.parametrize("relu", [False, True])
@pytest.mark.parametrize(("rows", "width", "columns"), MAPS)
def test_outputs_and_gradients_of_maps(
    rows: int, width: int, columns: Sequence[int], relu: bool, monkeypatch: pytest.MonkeyPatch
) -> None:
    inputs, linears = drawn(rows, width, columns)
    calls: list[bool] = []
    multiply = maps.multiply

    def counting(*arguments: Tensor, **options: bool) -> bool:
        calls.append(multiply(*arguments, **options))  # type: ignore[arg-type]
        return calls[-1]

    monkeypatch.setattr(maps, "multiply", counting)
    with products("float32-tiles"):
        outputs = linear_maps(inputs, linears, relu=relu)
    by_outputs = [torch.randn(rows, n) for n in columns]
    parameters = [parameter for each in linears for parameter in each.parameters()]
    gradients = torch.autograd.grad(outputs, [inputs, *parameters], by_outputs)
    assert len(calls) == 3 * len(linears)
    x = inputs.detach().double().requires_grad_()
    exact_parameters = [each.detach().double().requires_grad_() for each in parameters]
    left = iter(exact_parameters)
    exact = []
    for each in linears:
        weight = next(left)
        output = x @ weight.T + (0 if each.bias is None else next(left))
        exact.append(output.relu() if relu else output)
    by_exact = torch.autograd.grad(
        exact, [x, *exact_parameters], [by.double() for by in by_outputs]
    )
    for ours, wanted in zip([*outputs, *gradients], [*exact, *by_exact], strict=True):
        assert torch.allclose(ours.double(), wanted, atol=1e-5 * rows**0.5)


@pytest.mark.parametrize("value", [torch.inf, torch.nan])
def test_numbers_that_are_not_finite_go_to_torch(value: float) -> None:
    inputs, linears = drawn(130, 128, (128, 140))
    by_outputs = [torch.randn(130, 128), torch.randn(130, 140)]

    def results(kind: Products) -> list[Tensor]:
        with products(kind):
            outputs = linear_maps(inputs, linears)
        found = torch.autograd.grad(
            outputs, [inputs, linears[0].weight, linears[0].bias, linears[1].weight], by_outputs
        )
        return [*outputs, *found]

    by_outputs[1][3, 2] = value
    for ours, exact in zip(results("float32-tiles"), results("float32"), strict=True):
        assert torch.allclose(ours, exact, atol=1e-4, equal_nan=True)
    with torch.no_grad():
        inputs[3, 5] = value
    for ours, exact in zip(results("float32-tiles"), results("float32"), strict=True):
        assert torch.allclose(ours, exact, atol=1e-4, equal_nan=True)


@pytest.mark.parametrize("rows", [128, 700])
def test_losses_of_a_last_map(rows: int, monkeypatch: pytest.MonkeyPatch) -> None:
    torch.manual_seed(rows)
    outputs = torch.randn(rows, 130, requires_grad=True)
    matrix = torch.randn(900, 130, requires_grad=True)
    targets = torch.randint(900, (rows,))
    monkeypatch.setitem(passes.LOGITS_AT_ONCE, "float32-tiles", 150 * 900)

    def results(kind: Products) -> list[Tensor]:
        with products(kind):
            total = projected_loss(outputs, matrix, None, targets, smoothing=0.1)
        return [total.detach(), *torch.autograd.grad(total, [outputs, matrix])]

    for ours, torchs in zip(results("float32-tiles"), results("float32"), strict=True):
        assert float((ours - torchs).norm() / torchs.norm()) < 5e-6
    assert same_on_any_number_of_threads(lambda: results("float32-tiles"))
    with torch.no_grad():
        outputs[5, 6] = torch.nan
    assert results("float32-tiles")[0].isnan()
