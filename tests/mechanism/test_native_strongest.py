"""The strongest edges by every way that the kernels find them: against a sort, and float64."""

from __future__ import annotations

import math
from collections.abc import Callable
from typing import Any

import pytest
import torch
from torch import Tensor

import headloom

Attend = Callable[..., tuple[Tensor, headloom.AttentionGraph]]


@pytest.fixture
def attend(instruction_set: str) -> Attend:
    def run(
        queries: Tensor, keys: Tensor, values: Tensor, k: int, **options: Any
    ) -> tuple[Tensor, headloom.AttentionGraph]:
        with torch.no_grad():
            return headloom.attend(
                queries, keys, values, keep=headloom.Top(k), backend="native", **options
            )

    return run


def sorted_edges(scores: list[float], k: int) -> list[int]:
    """By a sort: neither NaN nor minus infinity is an edge, ties go to the lower key."""
    there = [j for j, score in enumerate(scores) if score > -math.inf]
    return sorted(there, key=lambda j: (-scores[j], j))[:k]


def check_scores(attend: Attend, scores: Tensor, k: int, rows: int = 20) -> None:
    """Scores that float32 holds, as one query of 1 meets them: (keys,)."""
    keys = scores.reshape(1, 1, -1, 1)
    values = torch.ones(1, 1, len(scores), 16)
    _, graph = attend(torch.ones(1, 1, rows, 1), keys, values, k=k, scale=1.0)
    order = sorted_edges(scores.tolist(), k)
    empty = graph.k - len(order)
    for row in (0, rows // 2, rows - 1):
        assert graph.keys[0, 0, row].tolist() == order + [-1] * empty
        found = graph.scores[0, 0, row].tolist()
        assert found == [float(scores[j]) for j in order] + [-math.inf] * empty
        assert not graph.weights[0, 0, row, len(order) :].any()


@pytest.mark.parametrize("k", [8, 32, 40, 100])
def test_a_threshold_that_candidates_equal(attend: Attend, k: int) -> None:
    """A few scores above many equal ones, then some more: fewer than k exceed the threshold."""
    for few in (0, 5):
        for more in (k // 5, k // 2, k):
            scores = torch.ones(1500)
            scores[100 : 100 + few] = 3
            scores[600 : 600 + more] = 2
            check_scores(attend, scores, k)
            check_scores(attend, scores.flip(0), k)


@pytest.mark.parametrize("gap", [1e-7, 1e-6, 1e-5, 1e-3])
def test_scores_that_differ_in_their_last_bits_are_in_order(attend: Attend, gap: float) -> None:
    """What sorts by the upper bits of a score sees where those are not enough."""
    generator = torch.Generator().manual_seed(0)
    for length in (5, 33, 64, 128, 700):
        steps = torch.randperm(length, generator=generator).float()
        for scores in (1 + gap * steps, -1 - gap * steps, gap * (steps - length // 2)):
            check_scores(attend, scores, 32)
            check_scores(attend, scores, 7)


@pytest.mark.parametrize(("rows", "length"), [(100, 100), (1, 1600), (9, 5000)])
def test_what_is_left_of_thousands_of_equal_edges(attend: Attend, rows: int, length: int) -> None:
    """A sink has what its keys have not: sums of numbers that are rounded alike are told here."""
    queries = keys = torch.zeros(1, 1, length, 8)
    sinks = torch.tensor([-0.2934])
    call = (queries[:, :, :rows], keys, keys)
    _, graph = attend(*call, k=length, sinks=sinks)
    beside = math.exp(-0.2934)
    rest = torch.full((1, 1, rows), beside / (length + beside), dtype=torch.float64)
    torch.testing.assert_close(graph.rest.double(), rest, rtol=0, atol=1e-6)


@pytest.mark.parametrize("length", [8, 40, 100, 128, 700])
def test_what_is_no_number_is_no_edge(attend: Attend, length: int) -> None:
    """Of keys at minus infinity, and of one that is NaN."""
    scores = torch.randn(length, generator=torch.Generator().manual_seed(length))
    for there in (length, 31, 3, 1, 0):
        hidden = scores.clone()
        hidden[there:] = -math.inf
        check_scores(attend, hidden, 32)
        check_scores(attend, hidden.flip(0), 5)
    scores[length // 2] = math.nan
    check_scores(attend, scores, 32)


@pytest.mark.parametrize("size", [1e6, 1e10, 3e38])
def test_short_rows_of_scores_far_from_0(attend: Attend, size: float) -> None:
    scores = torch.tensor([size, -size, size / 2, size, 0.0] * 8)
    keys, values = scores.reshape(1, 1, 40, 1), torch.eye(40)[None, None, :, :32].contiguous()
    output, graph = attend(torch.ones(1, 1, 20, 1), keys, values, k=4, scale=1.0)
    # Half of the highest is so far below that it weighs nothing.
    assert torch.equal(graph.weights[0, 0, 5], torch.full((4,), 1 / 16))
    assert graph.keys[0, 0, 5].tolist() == [0, 3, 5, 8]
    assert float(output[0, 0, 5].sum()) == 13 / 16  # of 32 columns, the keys 0, 3, 5, ... 30
    assert abs(float(graph.entropy[0, 0, 5]) - math.log(16)) < 1e-5
    assert float(graph.lse[0, 0, 5]) == pytest.approx(size + math.log(16), rel=2e-7)


@pytest.mark.parametrize("length", [5, 17, 33, 128])
@pytest.mark.parametrize("k", [1, 7, 32])
def test_numbers_of_every_kind_are_in_order(attend: Attend, length: int, k: int) -> None:
    """What is sorted is a part of a score's bits and its place."""
    generator = torch.Generator().manual_seed(length + k)
    random = torch.randn(length, generator=generator)
    places = torch.arange(length)
    kinds = {
        "normal": random,
        "zeros": torch.where(places % 2 == 0, 0.0, -0.0),
        "zeros and smallest": torch.where(places % 3 == 0, -0.0, random.sign() * 2e-38),
        "smallest differences": torch.where(random > 0, 1.5e-38, 1.6e-38),
        "ties": (random * 2).round(),
        "last bits": 1 + 1e-7 * torch.randperm(length, generator=generator),
        "last bits, negative": -1 - 1e-7 * torch.randperm(length, generator=generator),
        "far from 0": 1e6 + torch.randperm(length, generator=generator),
        "largest": random.sign() * torch.where(places % 2 == 0, 3.4e38, 2e38),
        "largest beside minus infinity": torch.where(
            places == 2, 3e38, torch.where(places % 3 == 0, -math.inf, -2e38)
        ),
        "all sizes": random.sign() * 10.0 ** (random * 12).clamp(-36, 37),
        "minus infinity": torch.where(places % 4 == 0, -math.inf, random),
        "low beside minus infinity": torch.where(places % 2 == 0, -math.inf, -2e38),
    }
    for scores in kinds.values():
        check_scores(attend, scores, k)
