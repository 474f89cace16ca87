"""Linear maps with packed matrices, against products in float64."""

from __future__ import annotations

from collections.abc import Sequence

import pytest
import torch
from tests.mechanism.linear_cases import drawn, rounded
from torch import Tensor, nn

from headloom.mechanism.backends import native, native_linear, native_prepared
from headloom.mechanism.backends.native_request import kernels
from headloom.mechanism.linear import Products, linear_maps, prepared_maps, products

SETS = native.instruction_sets()
pytestmark = pytest.mark.skipif(not native_prepared.PREPARES, reason="there are no such kernels")


@pytest.fixture(params=SETS)
def instruction_set(request: pytest.FixtureRequest, monkeypatch: pytest.MonkeyPatch) -> str:
    for module in (native_linear, native_prepared):
        monkeypatch.setattr(module, "INSTRUCTION_SET", request.param)
    return str(request.param)


@pytest.fixture
def calls(monkeypatch: pytest.MonkeyPatch) -> list[str]:
    """The names of the kernels' functions as they are called."""
    names: list[str] = []

    class Counted:
        def __getattr__(self, name: str) -> object:
            if name in ("prepare", "prepared_forward"):
                names.append(name)
            return getattr(kernels, name)

    monkeypatch.setattr(native_prepared, "kernels", Counted())
    return names


SIZES = [
    (16, 1, (1,)),
    (33, 48, (17, 80, 5)),
    (128, 32, (32,)),
    (129, 127, (64, 64)),
    (250, 129, (257,)),
    (257, 300, (31, 33, 1)),
    (17, 512, (513,)),
]


@pytest.mark.parametrize("kind", ["float32", "bfloat16"])
@pytest.mark.parametrize("relu", [False, True])
@pytest.mark.parametrize(("rows", "width", "columns"), SIZES)
@torch.no_grad()
def test_outputs_are_those_of_the_formula(
    rows: int,
    width: int,
    columns: Sequence[int],
    relu: bool,
    kind: Products,
    instruction_set: str,
    calls: list[str],
) -> None:
    inputs, maps = drawn(rows, width, columns, gradients=False)
    with products(kind), prepared_maps():
        outputs = linear_maps(inputs, maps, relu=relu)
    assert calls == ["prepare", "prepared_forward"]
    factor = (
        rounded if kind == "bfloat16" and kernels.has_linear(instruction_set) else Tensor.double
    )
    for linear, output in zip(maps, outputs, strict=True):
        bias = 0 if linear.bias is None else linear.bias.double()
        exact = factor(inputs) @ factor(linear.weight).T + bias
        exact = exact.clamp(min=0) if relu else exact
        assert output.shape == exact.shape
        assert torch.allclose(output.double(), exact, atol=2e-5)


@pytest.mark.parametrize("kind", ["float32", "bfloat16"])
@torch.no_grad()
def test_a_row_depends_on_itself_alone(kind: Products, instruction_set: str) -> None:
    """Neither on the rows beside it, nor on the threads: the same bits."""
    inputs, maps = drawn(300, 200, (70,), gradients=False)
    with products(kind), prepared_maps():
        (whole,) = linear_maps(inputs, maps)
        for rows in (slice(0, 16), slice(5, 140), slice(283, 300)):
            assert torch.equal(linear_maps(inputs[rows], maps)[0], whole[rows])
        threads = torch.get_num_threads()
        torch.set_num_threads(3)
        try:
            assert torch.equal(linear_maps(inputs, maps)[0], whole)
        finally:
            torch.set_num_threads(threads)


@torch.no_grad()
def test_inputs_of_any_shape_and_layout(calls: list[str]) -> None:
    inputs, maps = drawn(60, 40, (24, 8), gradients=False)
    views = [
        inputs.view(3, 20, 40),
        inputs.view(3, 20, 40).transpose(0, 1),
        torch.cat((inputs, inputs), 1)[:, :40],
        inputs.T.contiguous().T,
    ]
    with prepared_maps():
        for view in views:
            for linear, output in zip(maps, linear_maps(view, maps), strict=True):
                assert torch.allclose(output, linear(view), atol=1e-5)
    assert calls == ["prepare", *["prepared_forward"] * 4]


@torch.no_grad()
def test_a_matrix_is_packed_once_and_again_when_it_changes(calls: list[str]) -> None:
    inputs, (linear,) = drawn(20, 12, (9,), gradients=False)
    with prepared_maps():
        linear_maps(inputs, [linear])
        with prepared_maps():  # those of the block outside
            linear_maps(inputs, [linear])
        assert calls.count("prepare") == 1
        for parameter in linear.parameters():
            parameter.mul_(2)
            (output,) = linear_maps(inputs, [linear])
            assert torch.allclose(output, linear(inputs), atol=1e-5)
        linear.weight = nn.Parameter(torch.randn(9, 12))
        assert torch.allclose(linear_maps(inputs, [linear])[0], linear(inputs), atol=1e-5)
    assert calls.count("prepare") == 4
    calls.clear()
    linear_maps(inputs, [linear])
    assert calls == []


def test_what_is_left_to_others(calls: list[str]) -> None:
    """Gradients, hooks, few rows, other types: as without the block."""
    inputs, (linear,) = drawn(20, 12, (9,), gradients=False)
    with prepared_maps():
        linear_maps(inputs, [linear])[0].sum().backward()
        assert linear.weight.grad is not None
        with torch.no_grad():
            linear_maps(inputs[:3], [linear])
            linear_maps(inputs.double(), [nn.Linear(12, 9).double()])
            hooked = nn.Linear(12, 9)
            hooked.register_forward_hook(lambda module, given, output: output * 0)
            assert float(linear_maps(inputs, [hooked])[0].abs().max()) == 0
        with torch.inference_mode():
            made = nn.Linear(12, 9)
            assert torch.equal(linear_maps(inputs, [made])[0], made(inputs))
    assert calls == []


@pytest.mark.parametrize("kind", ["float32", "bfloat16"])
@pytest.mark.parametrize("place", ["inputs", "weight"])
@torch.no_grad()
def test_numbers_that_are_not_finite(kind: Products, place: str, instruction_set: str) -> None:
    inputs, (linear,) = drawn(20, 12, (9,), gradients=False)
    where = inputs if place == "inputs" else linear.weight
    where[3, 4], where[5, 1] = torch.inf, torch.nan
    with products(kind), prepared_maps():
        (output,) = linear_maps(inputs, [linear])
    assert torch.allclose(output, linear(inputs), atol=1e-5, equal_nan=True)
