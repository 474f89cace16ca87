"""A slice of scripts/random_calls: random legal calls against float64, and faults that it finds."""

from __future__ import annotations

import sys
from collections.abc import Callable, Iterator
from pathlib import Path
from typing import Any

import pytest
import torch

from headloom.mechanism.backends import compiled

FOLDER = Path(__file__).parents[2] / "scripts" / "random_calls"


@pytest.fixture(scope="module")
def script() -> Iterator[tuple[Callable[..., Any], Callable[..., list[str]]]]:
    """What draws a call and what is wrong with one, as the script has them."""
    threads = torch.get_num_threads()
    sys.path.insert(0, str(FOLDER))
    try:
        from comparing import problems  # type: ignore[import-not-found]
        from drawing import draw  # type: ignore[import-not-found]

        yield draw, problems
    finally:
        sys.path.remove(str(FOLDER))
        torch.set_num_threads(threads)


@pytest.mark.parametrize("calls", [150, pytest.param(250, marks=pytest.mark.slow)])
def test_random_calls_are_those_of_float64(script: Any, calls: int) -> None:
    draw, problems = script
    for number in range(calls):
        case = draw(11, number, compiled.instruction_sets())
        assert problems(case) == [], f"call {number} of seed 11: {case}"


@pytest.mark.parametrize(
    ("fault", "share"), (("mask", 0.6), ("scale", 0.4), ("edges", 0.15), ("nan", 0.9))
)
def test_planted_faults_are_found(script: Any, fault: str, share: float) -> None:
    draw, problems = script
    cases = [draw(3, number, compiled.instruction_sets()) for number in range(40)]
    assert sum(bool(problems(case, fault)) for case in cases) >= share * len(cases)


def test_a_wrong_gradient_is_found(script: Any) -> None:
    draw, problems = script
    cases = [draw(3, number, compiled.instruction_sets()) for number in range(120)]
    wanted = [case for case in cases if case.gradients and case.style in ("normal", "whole")]
    assert sum(bool(problems(case, "gradient")) for case in wanted) >= 0.5 * len(wanted)
