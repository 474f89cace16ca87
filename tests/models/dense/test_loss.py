"""The loss of the last map, against its formula in float64."""

from __future__ import annotations

import math

import pytest
import torch
from tests.models.dense.cases import same_on_any_number_of_threads
from torch import Tensor, nn

from headloom.errors import InputError
from headloom.mechanism.backends import compiled
from headloom.mechanism.backends.compiled import kernels
from headloom.models.dense import Products, maps, passes, products, projected_loss
from headloom.models.language_model import LanguageModel
from headloom.training.validation import predictor_loss


def formula(outputs: Tensor, matrix: Tensor, targets: Tensor, smoothing: float) -> Tensor:
    logits = outputs @ matrix.T
    log_p = logits - logits.exp().sum(1, keepdim=True).log()
    own = log_p[torch.arange(len(targets)), targets]
    return -((1 - smoothing) * own + smoothing * log_p.mean(1)).sum()


def drawn(rows: int, width: int, choices: int) -> tuple[Tensor, Tensor, Tensor]:
    torch.manual_seed(rows)
    outputs, matrix = torch.randn(rows, width), torch.randn(choices, width) / width**0.5
    return outputs.requires_grad_(), matrix.requires_grad_(), torch.randint(choices, (rows,))


@pytest.mark.parametrize("instruction_set", compiled.instruction_sets())
@pytest.mark.parametrize(
    ("rows", "width", "choices"), [(1, 4, 2), (40, 8, 37), (100, 16, 1000), (3, 5, 1)]
)
@pytest.mark.parametrize("smoothing", [0.0, 0.1])
def test_loss_and_gradients_are_the_formula(
    rows: int, width: int, choices: int, smoothing: float, instruction_set: str,
    monkeypatch: pytest.MonkeyPatch,
) -> None:  # fmt: skip
    monkeypatch.setattr(passes, "INSTRUCTION_SET", instruction_set)
    monkeypatch.setitem(passes.LOGITS_AT_ONCE, "float32", 40 * choices)  # more than one piece
    outputs, matrix, targets = drawn(rows, width, choices)
    total = projected_loss(outputs, matrix, None, targets, smoothing=smoothing)
    by_outputs, by_matrix = torch.autograd.grad(3 * total, [outputs, matrix])
    x, w = outputs.detach().double().requires_grad_(), matrix.detach().double().requires_grad_()
    exact = formula(x, w, targets, smoothing)
    by_x, by_w = torch.autograd.grad(3 * exact, [x, w])
    assert float(total.detach()) == pytest.approx(float(exact.detach()), rel=1e-5, abs=1e-5)
    assert torch.allclose(by_outputs.double(), by_x, atol=1e-5)
    assert torch.allclose(by_matrix.double(), by_w, atol=1e-5)


def rounded(*tensors: Tensor) -> list[Tensor]:
    """Numbers that bfloat16 has, so that their products in it are exact."""
    return [tensor.detach().bfloat16().float().requires_grad_() for tensor in tensors]


pairs = [name for name in compiled.instruction_sets() if kernels.has_linear(name)]


@pytest.mark.parametrize("instruction_set", pairs)
@pytest.mark.parametrize(
    ("rows", "width", "choices"),
    [(16, 1, 1), (17, 5, 2), (33, 33, 33), (129, 40, 257), (200, 64, 1000), (300, 130, 290)],
)
@pytest.mark.parametrize("smoothing", [0.0, 0.1])
def test_bfloat16_rounds_the_gradients_of_logits_and_no_more(
    rows: int, width: int, choices: int, smoothing: float, instruction_set: str,
    monkeypatch: pytest.MonkeyPatch,
) -> None:  # fmt: skip
    monkeypatch.setattr(maps, "INSTRUCTION_SET", instruction_set)
    *drawn_rows, targets = drawn(rows, width, choices)
    outputs, matrix = rounded(*drawn_rows)
    with products("bfloat16"):
        total = projected_loss(outputs, matrix, None, targets, smoothing=smoothing)
    by_outputs, by_matrix = torch.autograd.grad(total, [outputs, matrix])
    x, w = outputs.detach().double().requires_grad_(), matrix.detach().double().requires_grad_()
    exact = formula(x, w, targets, smoothing)
    by_x, by_w = torch.autograd.grad(exact, [x, w])
    # Each is off by 2^-8 of itself at most; sums in float32 add little to that.
    p = (x @ w.T).softmax(1).detach()
    p[torch.arange(rows), targets] -= 1 - smoothing
    p = (p - smoothing / choices).abs()
    assert float(total.detach()) == pytest.approx(float(exact.detach()), rel=1e-6, abs=1e-6 * rows)
    assert ((by_outputs - by_x).abs() <= 2**-8 * (p @ w.detach().abs()) + 2e-5).all()
    assert ((by_matrix - by_w).abs() <= 2**-8 * (p.T @ x.detach().abs()) + 2e-5).all()


@pytest.mark.skipif(not pairs, reason="the processor multiplies no bfloat16")
def test_gradients_in_bfloat16_of_a_model_that_is_sure() -> None:
    # p(target) = 1 - 1e-4 or so: rounded to bfloat16, nothing or 40 times as much would be left.
    outputs, matrix = torch.eye(32).repeat(4, 1) * 12, torch.eye(32)
    targets = torch.arange(32).repeat(4)
    outputs, matrix = rounded(outputs, matrix)
    with products("bfloat16"):
        total = projected_loss(outputs, matrix, None, targets, smoothing=0.0)
    x, w = outputs.detach().double().requires_grad_(), matrix.detach().double().requires_grad_()
    exact = torch.autograd.grad(formula(x, w, targets, 0.0), [x, w])
    for ours, by in zip(torch.autograd.grad(total, [outputs, matrix]), exact, strict=True):
        assert torch.allclose(ours.double(), by, rtol=4e-3, atol=0)


@pytest.mark.skipif(not pairs, reason="the processor multiplies no bfloat16")
def test_losses_in_bfloat16_do_not_depend_on_threads() -> None:
    outputs, matrix, targets = drawn(700, 48, 3000)

    def results() -> list[Tensor]:
        with products("bfloat16"):
            total = projected_loss(outputs, matrix, None, targets, smoothing=0.1)
        return [total.detach(), *torch.autograd.grad(total, [outputs, matrix])]

    assert same_on_any_number_of_threads(results)


@pytest.mark.parametrize("kind", ["float32", "bfloat16"])
def test_a_gradient_alone_is_the_same(kind: Products) -> None:
    outputs, matrix, targets = drawn(150, 24, 600)
    with products(kind):
        both = projected_loss(outputs, matrix, None, targets, smoothing=0.1)
        by_both = torch.autograd.grad(both, [outputs, matrix])
        by_rows = projected_loss(outputs, matrix.detach(), None, targets, smoothing=0.1)
        by_words = projected_loss(outputs.detach(), matrix, None, targets, smoothing=0.1)
        with torch.no_grad():
            neither = projected_loss(outputs, matrix, None, targets, smoothing=0.1)
    assert torch.equal(torch.autograd.grad(by_rows, [outputs])[0], by_both[0])
    assert torch.equal(torch.autograd.grad(by_words, [matrix])[0], by_both[1])
    assert torch.equal(neither, both.detach())


def test_numbers_that_are_none_are_not_hidden() -> None:
    outputs, matrix, targets = drawn(40, 8, 20)
    with torch.no_grad():
        outputs[7, 3] = math.nan
    for kind in ("float32", "bfloat16"):
        with products(kind):
            total = projected_loss(outputs, matrix, None, targets, smoothing=0.1)
        assert math.isnan(float(total.detach()))


def test_second_derivatives_are_the_formulas() -> None:
    outputs, matrix, targets = drawn(12, 6, 9)
    x, w = outputs.detach().double().requires_grad_(), matrix.detach().double().requires_grad_()

    def second(loss: Tensor, by: tuple[Tensor, Tensor]) -> tuple[Tensor, ...]:
        first = torch.autograd.grad(2 * loss, by, create_graph=True)
        penalty = (first[0] ** 2).sum() + (first[1] ** 3).sum()
        return torch.autograd.grad(penalty, by)

    ours = second(projected_loss(outputs, matrix, None, targets, smoothing=0.1), (outputs, matrix))
    exact = second(formula(x, w, targets, 0.1), (x, w))
    for gradient, by in zip(ours, exact, strict=True):
        assert torch.allclose(gradient.double(), by, rtol=1e-4, atol=1e-5)


def test_an_adapter_in_the_last_maps_place_is_not_passed_by() -> None:
    class Adapter(nn.Linear):
        def forward(self, inputs: Tensor) -> Tensor:
            return super().forward(inputs) * 2

    model = LanguageModel(11, width=8, heads=2, feed_forward=8, layers=1)
    outputs, targets = torch.randn(5, 8), torch.randint(11, (5,))
    model.output_embedding = Adapter(8, 11, bias=False)
    total = predictor_loss(model, outputs, targets, smoothing=0.0)
    nats = nn.functional.cross_entropy(model.output_embedding(outputs), targets, reduction="sum")
    assert float(total.detach()) == pytest.approx(float(nats.detach()), rel=1e-6)


def test_what_does_not_fit_is_refused() -> None:
    """Kernels would read past the end of the matrix."""
    outputs, matrix, targets = drawn(150, 160, 20)
    narrow, too_large = matrix[:, :130].contiguous(), torch.full_like(targets, 20)
    cases = [
        (matrix, targets[:3], r"targets \(3,\); expected rows"),
        (narrow, targets, r"\(150, 160\), the matrix \(20, 130\)"),
        (matrix, too_large, "targets from 20 to 20; expected ids from 0 to 19"),
    ]
    for other, ids, words in cases:
        with products("bfloat16"), pytest.raises(InputError, match=words):
            projected_loss(outputs, other, None, ids, smoothing=0.0)


def test_a_bias_is_added() -> None:
    outputs, matrix, targets = drawn(50, 8, 20)
    bias = torch.randn(20)
    total = projected_loss(outputs, matrix, bias, targets, smoothing=0.0)
    nats = torch.nn.functional.cross_entropy(outputs @ matrix.T + bias, targets, reduction="sum")
    assert float(total.detach()) == pytest.approx(float(nats.detach()), rel=1e-5)
