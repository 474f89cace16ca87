"""What can be asked of relative positions, against the cells they add: every class, and one with
the defaults alone."""

from __future__ import annotations

from collections.abc import Callable
from dataclasses import dataclass

import pytest
import torch
from hypothesis import given, settings
from hypothesis import strategies as st
from torch import Tensor

import headloom
from headloom.mechanism.positions import (
    ALiBi,
    Buckets,
    ByDistance,
    DistanceBias,
    Relative,
    Shaw,
    distances,
)

HEADS, DEPTH = 3, 4
FARTHEST = 12


@dataclass(frozen=True, eq=False)
class Swinging(Relative):
    """Positions of a user's: in raw scores, bias and output, and nothing else overridden."""

    pace: Tensor
    offset: int = 0

    def _wave(self, rows: range, keys: int) -> Tensor:
        distance = distances(rows, keys, self.offset, torch.device("cpu"))
        return (self.pace[:, None, None] * distance).sin()

    def key_scores(self, queries: Tensor, rows: range, keys: int) -> Tensor:
        """See Relative.key_scores."""
        return queries.sum(-1, keepdim=True) * self._wave(rows, keys)

    def bias(self, rows: range, keys: int, device: torch.device) -> Tensor:
        """See Relative.bias."""
        return self._wave(rows, keys).square()

    def value_output(self, weights: Tensor, rows: range) -> Tensor:
        """See Relative.value_output."""
        wave = self._wave(rows, weights.shape[-1])
        return (weights * wave).sum(-1, keepdim=True).expand(-1, -1, -1, DEPTH)


@dataclass(frozen=True, eq=False)
class Steps(DistanceBias):
    """Positions of a user's by distance: nothing but the bias of one."""

    height: Tensor
    offset: int = 0

    def bias_of(self, distance: Tensor) -> Tensor:
        """See DistanceBias.bias_of."""
        return (
            self.height[:, None, None] * (distance // 2)
            if distance.ndim == 2
            else (self.height[:, None] * (distance // 2))
        )


#: One of each class. New positions need a line here, and no other test of what can be asked.
KINDS: dict[type[Relative], Callable[[int], Relative]] = {
    Swinging: lambda offset: Swinging(torch.tensor([0.3, 1.0, 1.7]), offset),
    Steps: lambda offset: Steps(torch.tensor([0.1, -0.2, 0.3]), offset),
    Shaw: lambda offset: Shaw(torch.randn(HEADS, 5, DEPTH), torch.randn(5, DEPTH), offset),
    ALiBi: lambda offset: ALiBi(headloom.alibi_slopes(HEADS), offset),
    Buckets: lambda offset: Buckets(torch.randn(8, HEADS), True, 20, offset),
    ByDistance: lambda offset: ByDistance(torch.randn(HEADS, 2 * FARTHEST), FARTHEST, offset),
}

kinds = st.sampled_from(list(KINDS))
cases = given(kinds, st.integers(0, 4), st.integers(0, 5), st.integers(-2, 2))


def drawn(kind: type[Relative], offset: int) -> Relative:
    torch.manual_seed(4)
    return KINDS[kind](offset)


def test_all_positions_of_headloom_are_here() -> None:
    below, every = [Relative], set()
    while below:
        kind = below.pop()
        below += kind.__subclasses__()
        if kind.__module__.startswith("headloom.") and not kind.__name__.startswith("_"):
            every.add(kind)
    assert every - {Relative, DistanceBias} == set(KINDS) - {Swinging, Steps}


def added(
    relative: Relative, queries: Tensor, weights: Tensor, first: int = 0
) -> list[Tensor | None]:
    """All that positions add to a call: to raw scores, scores and output."""
    count, keys = weights.shape[2:]
    rows = range(first, first + count)
    return [
        relative.key_scores(queries, rows, keys),
        relative.bias(rows, keys, torch.device("cpu")),
        relative.value_output(weights, rows),
    ]


def assert_same(parts: list[Tensor | None], others: list[Tensor | None]) -> None:
    for part, other in zip(parts, others, strict=True):
        assert (part is None) == (other is None)
        if part is not None and other is not None:
            assert torch.allclose(*torch.broadcast_tensors(part, other), atol=1e-6)


@settings(max_examples=150, deadline=None)
@cases
def test_each_operation_says_what_the_cells_say(
    kind: type[Relative], queries: int, keys: int, offset: int
) -> None:
    relative = drawn(kind, offset)
    relative.check(HEADS, DEPTH, DEPTH)
    q, weights = torch.randn(2, HEADS, queries, DEPTH), torch.rand(2, HEADS, queries, keys)
    parts = added(relative, q, weights)
    by_distance = relative.by_distance(queries, keys)
    assert relative.only_bias == (by_distance is not None)
    if by_distance is not None:
        assert_same(added(by_distance, q, weights), parts)
        turned = by_distance.transposed()
        assert_same(
            [turned.bias(range(keys), queries, torch.device("cpu")).transpose(1, 2)], [parts[1]]
        )
    if (tables := relative.tables()) is not None:
        assert_same(added(Shaw(*tables, relative.offset), q, weights), parts)
    assert_same(added(relative.moved(2), q, weights), added(relative, q, weights, first=2))
    if kind is Swinging:
        for ask in (relative.in_scores, lambda: relative.of_head(0, HEADS)):
            with pytest.raises(
                headloom.InputError, match=r"Swinging: it has no .* which a matrix needs"
            ):
                ask()
        return
    assert_same(added(relative.in_scores(), q, weights), [*parts[:2], None])
    for head in range(HEADS):
        own = [
            part if part is None or n == 1 else part[:, head, None] for n, part in enumerate(parts)
        ]
        if parts[1] is not None:
            own[1] = parts[1][head, None]
        of_head = relative.of_head(head, HEADS)
        assert_same(added(of_head, q[:, head, None], weights[:, head, None]), own)
        if queries > 2:
            later = range(2, queries)
            whole = of_head.bias(range(queries), keys, torch.device("cpu"))
            part = of_head.moved(2).bias(range(queries - 2), keys, torch.device("cpu"))
            assert_same([part], [None if whole is None else whole[:, later.start :]])


@settings(max_examples=60, deadline=None)
@given(kinds, st.integers(1, 5), st.integers(1, 5), st.integers(-2, 2))
def test_kernels_and_matrix_know_them(
    kind: type[Relative], queries: int, keys: int, offset: int
) -> None:
    relative = drawn(kind, offset)
    tensors = [torch.randn(1, HEADS, n, DEPTH) for n in (queries, keys, keys)]
    expected, graph = headloom.attend(
        *tensors, relative=relative, backend="torch", keep=headloom.All()
    )
    output, _ = headloom.attend(*tensors, relative=relative)
    assert torch.allclose(output, expected, atol=1e-5)
    assert torch.allclose(headloom.attention(*tensors, relative=relative), expected, atol=1e-5)

    if kind is Swinging:
        return
    matrix = headloom.AttentionMatrix(tensors[0][0], tensors[1][0], relative=relative)
    weights = graph[0]
    assert torch.allclose(matrix.to_dense(), weights, atol=1e-5)
    assert torch.allclose(matrix.received(), weights.sum(1), atol=1e-5)
    assert torch.allclose(matrix.sum_of_squares(), weights.square().sum(-1), atol=1e-5)
    assert torch.allclose(matrix[1, 0:1, :], weights[1, 0:1], atol=1e-5)
    if queries == keys:
        both = (weights * weights.transpose(1, 2)).sum(-1)
        assert torch.allclose(matrix.reciprocity(), both, atol=1e-5)


@pytest.mark.parametrize("kind", KINDS)
def test_kernels_serve_what_they_know_and_say_what_not(kind: type[Relative]) -> None:
    tensors = [torch.randn(1, HEADS, 4, DEPTH) for _ in range(3)]
    relative = drawn(kind, 0)
    if relative.only_bias or relative.tables() is not None:
        headloom.attention(*tensors, relative=relative, backend="native")
        return
    with pytest.raises(headloom.BackendError, match="Swinging adds more than a bias by distance"):
        headloom.attention(*tensors, relative=relative, backend="native")
