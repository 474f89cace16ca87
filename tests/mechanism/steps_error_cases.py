"""Cases for the errors of `weft.mechanism.worked`, the six steps; see `error_cases`."""

from __future__ import annotations

from collections.abc import Callable
from typing import Any

import torch

import weft
from weft.mechanism.worked import Projections, work
from weft.mechanism.worked_back import learn, work_back

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


STEPS_CASES: list[tuple[str, Callable[[], object], str, str]] = [
    ("steps matrix", lambda: projections(W_Q=zeros(4, 2)), "steps", "(heads, width, depth)"),
    ("steps heads", lambda: projections(W_Q=zeros(3, 4, 2)), "steps", "expected (3, 4, 2)"),
    ("steps width", lambda: projections(W_V=zeros(2, 5, 2)), "steps", "expected (2, 5, 2)"),
    ("steps W_O", lambda: projections(W_O=zeros(3, 4)), "steps", "expected (4, 4)"),
    ("steps bias", lambda: projections(b_Q=zeros(2, 3)), "steps", "expected (2"),
    ("steps b_O", lambda: projections(b_O=zeros(3)), "steps", "b_O"),
    ("steps inputs", lambda: worked(zeros(3, 5)), "steps", "Give vectors of width 4"),
    ("steps mask", lambda: worked(zeros(3, 4), zeros(3, 3)), "steps", "a row for each query"),
    (
        "steps numbers",
        lambda: worked(torch.full((3, 4), torch.inf)),
        "steps",
        "Give finite numbers",
    ),
    ("steps turned", lambda: backward(turn=weft.rotary), "steps", "not worked backward"),
    (
        "steps bias by distance",
        lambda: backward(relative=weft.ALiBi(weft.alibi_slopes(2))),
        "steps",
        "not worked backward",
    ),
    ("steps gradient", lambda: backward(zeros(3, 2)), "steps", "expected that of the output"),
    ("steps too far", learning, "steps", "Give a smaller --rate"),
]
