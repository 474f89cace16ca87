"""Attention worked backward, against differences of losses and automatic differentiation."""

from __future__ import annotations

from dataclasses import fields, replace

import pytest
import torch
from torch import Tensor

from headloom.studio.steps.worked import Projections, Worked, work
from headloom.studio.steps.worked_back import learn, squared_error, work_back

HEADS, WIDTH, SOURCE, DEPTH, VALUE, OUT = 3, 5, 4, 6, 2, 7


def drawn(biases: bool, causal: bool) -> tuple[Worked, Tensor]:
    """A layer whose sizes all differ, and what its output should be."""
    generator = torch.Generator().manual_seed(biases + 2 * causal)

    def numbers(*shape: int) -> Tensor:
        return torch.randn(*shape, dtype=torch.float64, generator=generator)

    projections = Projections(
        numbers(HEADS, WIDTH, DEPTH), numbers(HEADS, SOURCE, DEPTH), numbers(HEADS, SOURCE, VALUE),
        numbers(HEADS * VALUE, OUT),
        *((numbers(HEADS, DEPTH), numbers(HEADS, DEPTH), numbers(HEADS, VALUE), numbers(OUT))
          if biases else ()),
    )  # fmt: skip
    allowed = torch.ones(5, 8).tril(2).bool() if causal else None
    return work(numbers(5, WIDTH), numbers(8, SOURCE), projections, allowed), numbers(5, OUT)


def loss_of(worked: Worked, wanted: Tensor, changed: dict[str, Tensor]) -> float:
    projections = replace(worked.projections, **changed)
    return squared_error(work(worked.X, worked.Y, projections, worked.allowed).output, wanted)


@pytest.mark.parametrize("biases", [False, True])
@pytest.mark.parametrize("causal", [False, True])
def test_gradients_are_how_much_the_loss_grows(biases: bool, causal: bool) -> None:
    """Each number of each matrix a little up and down: nothing of calculus is shared."""
    worked, wanted = drawn(biases, causal)
    back = work_back(worked, (worked.output - wanted) / len(wanted))
    for field in fields(Projections):
        matrix = getattr(worked.projections, field.name)
        gradient = getattr(back.projections, field.name)
        assert (matrix is None) == (gradient is None)
        if matrix is None:
            continue
        assert gradient.shape == matrix.shape
        for place in range(0, matrix.numel(), 3):
            step = torch.zeros(matrix.numel(), dtype=torch.float64)
            step[place] = 1e-5
            step = step.view(matrix.shape)
            up, down = (
                loss_of(worked, wanted, {field.name: matrix + sign * step}) for sign in (1, -1)
            )
            assert (up - down) / 2e-5 == pytest.approx(
                float(gradient.flatten()[place]), rel=1e-5, abs=1e-8
            )


def test_what_lies_between_is_that_of_torch() -> None:
    worked, wanted = drawn(True, True)
    back = work_back(worked, (worked.output - wanted) / len(wanted))
    p = worked.projections
    q, k, v = (part.clone().requires_grad_() for part in (worked.Q, worked.K, worked.V))
    scores = q @ k.mT
    scaled = scores / DEPTH**0.5
    weights = scaled.masked_fill(~worked.allowed, -torch.inf).softmax(-1)
    z = weights @ v
    joined = z.transpose(0, 1).flatten(1)
    output = joined @ p.W_O + p.b_O
    loss = (output - wanted).square().sum() / (2 * len(wanted))
    parts = (q, k, v, scores, scaled, weights, z, joined, output)
    names = ("Q", "K", "V", "scores", "scaled", "weights", "Z", "joined", "output")
    for name, gradient in zip(names, torch.autograd.grad(loss, parts), strict=True):
        own = getattr(back, name)
        shown = own.masked_fill(~worked.allowed, 0) if name == "weights" else own
        gradient = gradient.masked_fill(~worked.allowed, 0) if name == "weights" else gradient
        torch.testing.assert_close(shown, gradient, rtol=1e-10, atol=1e-12)
    # What one key of a row gains, the others lose.
    assert float(back.scaled.sum(-1).abs().max()) < 1e-12


def test_steps_are_those_of_torchs_plain_gradient_descent() -> None:
    worked, wanted = drawn(True, False)
    learned = learn(worked, wanted, 5, 0.02)
    names = [field.name for field in fields(Projections)]
    leaves = {name: getattr(worked.projections, name).clone().requires_grad_() for name in names}
    optimiser = torch.optim.SGD(leaves.values(), lr=0.02)
    losses = []
    for _ in range(6):
        queries, keys, values = (
            inputs @ leaves[f"W_{name}"] + leaves[f"b_{name}"][:, None]
            for name, inputs in (("Q", worked.X), ("K", worked.Y), ("V", worked.Y))
        )
        attended = torch.nn.functional.scaled_dot_product_attention(queries, keys, values)
        output = attended.transpose(0, 1).flatten(1) @ leaves["W_O"] + leaves["b_O"]
        loss = (output - wanted).square().sum() / (2 * len(wanted))
        losses.append(loss.item())
        if len(losses) < 6:
            optimiser.zero_grad()
            loss.backward()
            optimiser.step()
    assert learned.steps == 5 and learned.losses == pytest.approx(losses, rel=1e-9)
    for name in names:
        found = getattr(learned.last.projections, name)
        torch.testing.assert_close(found, leaves[name].detach(), rtol=1e-9, atol=1e-11)
    assert learned.losses[-1] < learned.losses[0]
    assert squared_error(learned.next.output, wanted) == pytest.approx(losses[1])
