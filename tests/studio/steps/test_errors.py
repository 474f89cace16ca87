"""What cannot be worked through: one line that names the operation and the remedy."""

from __future__ import annotations

from collections.abc import Callable
from typing import Any

import pytest
import torch

import headloom
from headloom.errors import InputError, ShapeError
from headloom.studio.steps.worked import Projections, work
from headloom.studio.steps.worked_back import learn, work_back

zeros = torch.zeros


def projections(**changes: torch.Tensor) -> Projections:
    """Two heads of depth 2 over vectors of width 4."""
    matrices = {name: zeros(2, 4, 2) for name in ("W_Q", "W_K", "W_V")} | {"W_O": zeros(4, 4)}
    return Projections(**(matrices | changes))


def worked(inputs: torch.Tensor, allowed: torch.Tensor | None = None) -> object:
    return work(inputs, inputs, projections(), allowed)


def backward(by_output: torch.Tensor | None = None, **options: Any) -> object:
    made = work(zeros(3, 4), zeros(3, 4), projections(), None, **options)
    return work_back(made, zeros(3, 4) if by_output is None else by_output)


def learning() -> object:
    ones = {name: torch.ones(2, 4, 2) for name in ("W_Q", "W_K", "W_V")}
    made = work(torch.ones(3, 4), torch.ones(3, 4), projections(**ones, W_O=torch.ones(4, 4)), None)
    return learn(made, zeros(3, 4).double(), 9, 1e9)


CASES: list[tuple[Callable[[], object], str]] = [
    (lambda: backward(relative=headloom.Shaw(zeros(3, 2))), "Shaw positions add vectors"),
    (lambda: projections(W_Q=zeros(4, 2)), "(heads, width, depth)"),
    (lambda: projections(W_Q=zeros(3, 4, 2)), "expected (3, 4, 2)"),
    (lambda: projections(W_V=zeros(2, 5, 2)), "expected (2, 5, 2)"),
    (lambda: projections(W_O=zeros(3, 4)), "expected (4, 4)"),
    (lambda: projections(b_Q=zeros(2, 3)), "expected (2"),
    (lambda: projections(b_O=zeros(3)), "b_O"),
    (lambda: worked(zeros(3, 5)), "Give vectors of width 4"),
    (lambda: worked(zeros(3, 4), zeros(3, 3)), "a row for each query"),
    (
        lambda: worked(torch.full((3, 4), torch.inf)),
        "Give finite numbers",
    ),
    (lambda: backward(turn=headloom.rotary), "not worked backward"),
    (
        lambda: backward(relative=headloom.ALiBi(headloom.alibi_slopes(2))),
        "not worked backward",
    ),
    (lambda: backward(zeros(3, 2)), "expected that of the output"),
    (learning, "Give a smaller --rate"),
]


@pytest.mark.parametrize(("run", "message"), CASES)
def test_an_error_is_one_line(run: Callable[[], object], message: str) -> None:
    with pytest.raises((InputError, ShapeError)) as error:
        run()
    text = str(error.value)
    assert text.startswith("steps: ") and message in text and "\n" not in text
