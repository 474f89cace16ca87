"""Attention worked through: numbers by hand, NumPy in float64, one query at a time; its gradients
against differences of losses and automatic differentiation."""

from __future__ import annotations

import math
from typing import Any

import numpy as np
import pytest
import torch
from torch import Tensor

from headloom.studio.steps.worked import Worked, learn, row_of, squared_error, work, work_back

HEADS, WIDTH, SOURCE, DEPTH, VALUE, OUT = 3, 5, 4, 6, 2, 7
Arrays = dict[str, np.ndarray[Any, Any]]


@pytest.fixture
def arrays() -> Arrays:
    generator = np.random.default_rng(5)
    shapes = {
        "X": (4, WIDTH), "Y": (7, SOURCE), "W_Q": (HEADS, WIDTH, DEPTH),
        "W_K": (HEADS, SOURCE, DEPTH), "W_V": (HEADS, SOURCE, VALUE), "W_O": (HEADS * VALUE, WIDTH),
        "b_Q": (HEADS, DEPTH), "b_K": (HEADS, DEPTH), "b_V": (HEADS, VALUE), "b_O": (WIDTH,),
    }  # fmt: skip
    return {name: generator.normal(size=shape) for name, shape in shapes.items()}


def worked_of(arrays: Arrays, allowed: Any = None) -> Worked:
    tensors = {name: torch.from_numpy(array) for name, array in arrays.items()}
    X, Y = tensors.pop("X"), tensors.pop("Y")
    seen = None if allowed is None else torch.from_numpy(allowed)
    return work(X, Y, tensors, seen)


def by_numpy(a: Arrays, allowed: Any) -> Arrays:
    """The formula of the paper, in NumPy alone."""
    Q = np.einsum("iw,hwd->hid", a["X"], a["W_Q"]) + a["b_Q"][:, None]
    K = np.einsum("jw,hwd->hjd", a["Y"], a["W_K"]) + a["b_K"][:, None]
    V = np.einsum("jw,hwd->hjd", a["Y"], a["W_V"]) + a["b_V"][:, None]
    scores = np.einsum("hid,hjd->hij", Q, K)
    masked = np.where(allowed, scores / math.sqrt(DEPTH), -np.inf)
    powers = np.exp(masked - masked.max(-1, keepdims=True))
    weights = powers / powers.sum(-1, keepdims=True)
    Z = np.einsum("hij,hjd->hid", weights, V)
    joined = np.concatenate(list(Z), axis=-1)
    output = joined @ a["W_O"] + a["b_O"]
    return {"Q": Q, "K": K, "V": V, "scores": scores, "scaled": scores / math.sqrt(DEPTH),
            "masked": masked, "weights": weights, "Z": Z, "joined": joined,
            "output": output}  # fmt: skip


@pytest.mark.parametrize("causal", [False, True])
def test_every_matrix_is_that_of_numpy(arrays: Arrays, causal: bool) -> None:
    allowed = np.tril(np.ones((4, 7), bool)) if causal else np.ones((4, 7), bool)
    worked = worked_of(arrays, allowed)
    for name, expected in by_numpy(arrays, allowed).items():
        np.testing.assert_allclose(getattr(worked, name).numpy(), expected, rtol=0, atol=1e-12)
    assert 0 <= worked.difference < 1e-13


def by_hand(allowed: list[list[bool]] | None = None) -> Worked:
    """Q = (log 3, 0), K = (1, 0), V = (8, 4): the scores of the first row are log 3 and 0."""
    p = {"W_Q": [[[math.log(3)], [0]]], "W_K": [[[1], [0]]], "W_V": [[[8], [4]]], "W_O": [[1, 2]]}
    projections = {name: torch.tensor(matrix).double() for name, matrix in p.items()}
    mask = None if allowed is None else torch.tensor(allowed)
    return work(torch.eye(2).double(), torch.eye(2).double(), projections, mask)


def test_numbers_by_hand() -> None:
    worked = by_hand()
    assert worked.weights[0].numpy() == pytest.approx(np.array([[0.75, 0.25], [0.5, 0.5]]))
    assert worked.output.numpy() == pytest.approx(np.array([[7.0, 14.0], [6.0, 12.0]]))
    first = row_of(worked, 0, 0)
    assert first.exponentials == pytest.approx((3.0, 1.0))
    assert first.total == pytest.approx(4.0)
    assert [part for (part,) in first.parts] == pytest.approx([6.0, 1.0])
    assert first.output == pytest.approx((7.0,))


def test_under_a_causal_mask_the_first_word_sees_itself_alone() -> None:
    worked = by_hand([[True, False], [True, True]])
    assert worked.weights[0].tolist() == [[1.0, 0.0], [0.5, 0.5]]
    assert worked.Z[0].tolist() == [[8.0], [6.0]]
    assert row_of(worked, 0, 0).exponentials[1] == 0


def test_a_row_that_may_look_at_nothing_gives_nothing() -> None:
    worked = by_hand([[False, False], [True, True]])
    assert worked.weights[0, 0].tolist() == [0, 0]
    assert row_of(worked, 0, 0).output == [0.0]
    assert worked.difference == 0


def test_scores_that_e_to_the_power_of_would_overflow(arrays: Arrays) -> None:
    worked = worked_of(arrays | {"W_Q": arrays["W_Q"] * 1e4})
    assert float(worked.scaled.abs().max()) > 710
    assert row_of(worked, 0, 0).lowered == pytest.approx(float(worked.scaled[0, 0].max()))
    assert worked.difference < 1e-10


def drawn(biases: bool, causal: bool) -> tuple[Worked, Tensor]:
    """A layer whose sizes all differ, and what its output should be."""
    generator = torch.Generator().manual_seed(biases + 2 * causal)

    def numbers(*shape: int) -> Tensor:
        return torch.randn(*shape, dtype=torch.float64, generator=generator)

    projections = {
        "W_Q": numbers(HEADS, WIDTH, DEPTH), "W_K": numbers(HEADS, SOURCE, DEPTH),
        "W_V": numbers(HEADS, SOURCE, VALUE), "W_O": numbers(HEADS * VALUE, OUT),
    }  # fmt: skip
    if biases:
        projections |= {
            "b_Q": numbers(HEADS, DEPTH), "b_K": numbers(HEADS, DEPTH),
            "b_V": numbers(HEADS, VALUE), "b_O": numbers(OUT),
        }  # fmt: skip
    allowed = torch.ones(5, 8).tril(2).bool() if causal else None
    return work(numbers(5, WIDTH), numbers(8, SOURCE), projections, allowed), numbers(5, OUT)


def loss_of(worked: Worked, wanted: Tensor, changed: dict[str, Tensor]) -> float:
    projections = worked.projections | changed
    return squared_error(work(worked.X, worked.Y, projections, worked.allowed).output, wanted)


@pytest.mark.parametrize("biases", [False, True])
@pytest.mark.parametrize("causal", [False, True])
def test_gradients_are_how_much_the_loss_grows(biases: bool, causal: bool) -> None:
    """Each number of each matrix a little up and down: nothing of calculus is shared."""
    worked, wanted = drawn(biases, causal)
    back = work_back(worked, wanted)
    assert back.projections.keys() == worked.projections.keys()
    for name, matrix in worked.projections.items():
        gradient = back.projections[name]
        assert gradient.shape == matrix.shape
        for place in range(0, matrix.numel(), 3):
            step = torch.zeros(matrix.numel(), dtype=torch.float64)
            step[place] = 1e-5
            step = step.view(matrix.shape)
            up, down = (loss_of(worked, wanted, {name: matrix + sign * step}) for sign in (1, -1))
            assert (up - down) / 2e-5 == pytest.approx(
                float(gradient.flatten()[place]), rel=1e-5, abs=1e-8
            )


def test_what_lies_between_is_that_of_torch() -> None:
    worked, wanted = drawn(True, True)
    back = work_back(worked, wanted)
    p = worked.projections
    q, k, v = (part.clone().requires_grad_() for part in (worked.Q, worked.K, worked.V))
    scores = q @ k.mT
    scaled = scores / DEPTH**0.5
    weights = scaled.masked_fill(~worked.allowed, -torch.inf).softmax(-1)
    z = weights @ v
    joined = z.transpose(0, 1).flatten(1)
    output = joined @ p["W_O"] + p["b_O"]
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
    leaves = {name: each.clone().requires_grad_() for name, each in worked.projections.items()}
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
    for name, leaf in leaves.items():
        found = learned.last.projections[name]
        torch.testing.assert_close(found, leaf.detach(), rtol=1e-9, atol=1e-11)
    assert learned.losses[-1] < learned.losses[0]
    assert squared_error(learned.next.output, wanted) == pytest.approx(losses[1])
