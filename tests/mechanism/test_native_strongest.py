"""The strongest edges by every way that the kernels find them: against a sort, and float64."""

from __future__ import annotations

import math
from collections.abc import Callable
from dataclasses import replace
from typing import Any

import pytest
import torch
from torch import Tensor

import headloom
from headloom.mechanism.backends import native
from headloom.mechanism.backends import native_request as native_call

INSTRUCTION_SETS = native.instruction_sets()
pytestmark = pytest.mark.skipif(not INSTRUCTION_SETS, reason="built without the native kernels")

#: Up to 128 keys a vector of rows is sorted at once, beyond them each row.
SHORT = (1, 2, 15, 31, 32, 33, 64, 65, 96, 100, 127, 128)
LONG = (129, 300, 511, 513, 1500)

Attend = Callable[..., tuple[Tensor, headloom.AttentionGraph]]


@pytest.fixture(params=INSTRUCTION_SETS)
def attend(request: pytest.FixtureRequest, monkeypatch: pytest.MonkeyPatch) -> Attend:
    prepare = native_call.prepare
    chosen = lambda call: replace(prepare(call), instruction_set=request.param)  # noqa: E731
    monkeypatch.setattr(native, "prepare", chosen)

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


@pytest.mark.parametrize("k", [1, 5, 31, 32, 33, 40, 100])
def test_equal_scores_go_to_the_lower_key(attend: Attend, k: int) -> None:
    generator = torch.Generator().manual_seed(k)
    for length in SHORT + LONG:
        for values in (1, 2, 3, 40):
            scores = torch.randint(0, values, (length,), generator=generator).float()
            check_scores(attend, scores - 1, k)


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


def test_zeros_of_either_sign_are_equal(attend: Attend) -> None:
    for length in (40, 128, 600):
        scores = torch.zeros(length)
        scores[::3] = -0.0
        check_scores(attend, scores, 32)


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


@pytest.mark.parametrize("length", SHORT)
@pytest.mark.parametrize("k", [0, 1, 8, 17, 32])
def test_short_rows_with_their_graph(attend: Attend, length: int, k: int) -> None:
    """Output, totals and edges against float64; padding on either side, rows of no key at all."""
    generator = torch.Generator().manual_seed(length + k)

    def random(rows: int, heads: int, width: int) -> Tensor:
        return torch.randn(5, rows, heads, width, generator=generator).transpose(1, 2)

    rows = 16 + (7 * length) % 60
    queries, keys, values = random(rows, 4, 24), random(length, 2, 24), random(length, 2, 48)
    lengths = torch.tensor([0, 1, length // 2, length - 1, length])
    left = torch.arange(length) >= length - lengths[:, None]
    front = torch.arange(length) < lengths[:, None]
    every = torch.ones(5, length, dtype=torch.bool)
    masks = ((None, every), (headloom.padding(lengths), front), (headloom.padding(left), left))
    for mask, seen in masks:
        allowed = seen[:, None, None]
        output, graph = attend(queries, keys, values, k=k, mask=mask)
        shared = [part.double().repeat_interleave(2, 1) for part in (keys, values)]
        scores = queries.double() @ shared[0].transpose(-2, -1) / math.sqrt(24)
        scores = scores.masked_fill(~allowed, -math.inf)
        weights = scores.softmax(-1).nan_to_num(0.0)
        torch.testing.assert_close(output.double(), weights @ shared[1], rtol=0, atol=4e-6)
        torch.testing.assert_close(graph.lse.double(), scores.logsumexp(-1), rtol=0, atol=4e-6)
        entropy = torch.special.entr(weights).sum(-1)
        torch.testing.assert_close(graph.entropy.double(), entropy, rtol=0, atol=4e-6)
        assert torch.equal(graph.count.long(), allowed.sum(-1).expand(5, 4, rows))
        kept = min(k, length)
        strongest = scores.topk(kept).values
        torch.testing.assert_close(graph.scores[..., :kept].double(), strongest, rtol=0, atol=4e-6)
        there = graph.keys[..., :kept] >= 0
        assert torch.equal(there, strongest > -math.inf)
        assert (graph.keys[..., kept:] == -1).all() and not graph.weights[..., kept:].any()
        at = graph.keys[..., :kept].clamp(min=0).long()
        expected = weights.gather(-1, at) * there
        torch.testing.assert_close(graph.weights[..., :kept].double(), expected, rtol=0, atol=4e-6)
        whole = weights.sum(-1) - expected.sum(-1)
        torch.testing.assert_close(graph.rest.double(), whole, rtol=0, atol=4e-6)
        certain = graph.count == 1
        assert not graph.entropy[certain].any()


def test_a_bad_query_of_a_short_row_stays_in_its_row(attend: Attend) -> None:
    generator = torch.Generator().manual_seed(0)
    queries, keys, values = torch.randn(3, 1, 2, 70, 32, generator=generator).unbind(0)
    mask = headloom.padding(60)
    clean, clean_graph = attend(queries, keys, values, k=9, mask=mask)
    keys[0, :, 60:] = math.nan  # hidden: never read
    for bad in (math.nan, math.inf):
        queries[0, 1, 7, 3] = bad
        output, graph = attend(queries, keys, values, k=9, mask=mask)
        other = torch.ones(1, 2, 70, dtype=torch.bool)
        other[0, 1, 7] = False
        assert output[0, 1, 7].isnan().all() and graph.lse[0, 1, 7].isnan()
        assert torch.equal(output[other], clean[other])
        for name in ("keys", "scores", "weights", "lse", "entropy", "rest", "count"):
            assert torch.equal(getattr(graph, name)[other], getattr(clean_graph, name)[other])


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


def test_neither_threads_nor_the_graph_change_the_output_of_short_rows(attend: Attend) -> None:
    """Both take one path, and tasks are cut by the shapes alone."""
    generator = torch.Generator().manual_seed(0)
    queries = torch.randn(1, 2, 200, 32, generator=generator)
    keys, values = (torch.randn(1, 2, 90, 32, generator=generator) for _ in range(2))
    with torch.no_grad():
        alone = headloom.attention(queries, keys, values, backend="native")
    before, found = torch.get_num_threads(), []
    try:
        for threads in (1, 2, 5):
            torch.set_num_threads(threads)
            output, graph = attend(queries, keys, values, k=32)
            assert torch.equal(output, alone)
            found.append((graph.keys, graph.weights, graph.lse, graph.entropy, graph.rest))
    finally:
        torch.set_num_threads(before)
    for other in found[1:]:
        assert all(torch.equal(a, b) for a, b in zip(found[0], other, strict=True))
