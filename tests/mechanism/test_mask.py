"""What can be asked of a mask, against its cells: every class, and one with the defaults alone."""

from __future__ import annotations

from collections.abc import Callable
from dataclasses import dataclass
from typing import Any

import pytest
import torch
from hypothesis import given, settings
from hypothesis import strategies as st
from torch import Tensor

import headloom
from headloom.mechanism.adjacency import Neighbours
from headloom.mechanism.backends.compiled import NativeMask
from headloom.mechanism.mask import Both, Either, Explicit, Mask, Not
from headloom.mechanism.masks import Padding, Ranges, Window

BATCH, HEADS = 2, 2
sides = st.none() | st.integers(0, 6)


@dataclass(frozen=True)
class Striped(Mask):
    """A mask of a user's: nothing but `block`. Holes, and heads that differ."""

    step: int

    def block(self, rows: range, keys: int, device: torch.device) -> Tensor:
        head = torch.arange(HEADS, device=device)[:, None, None]
        query = torch.arange(rows.start, rows.stop, device=device)[:, None]
        return ((head + query + torch.arange(keys, device=device)) % self.step == 0)[None]


@dataclass(frozen=True)
class Flat(Mask):
    """Likewise, of two dimensions: the same for all."""

    def block(self, rows: range, keys: int, device: torch.device) -> Tensor:
        query = torch.arange(rows.start, rows.stop, device=device)[:, None]
        return torch.arange(keys, device=device) <= query


@dataclass(frozen=True)
class ByHead(Mask):
    """Likewise, of three: head 0 sees what is before, head 1 every second key of it."""

    def block(self, rows: range, keys: int, device: torch.device) -> Tensor:
        query = torch.arange(rows.start, rows.stop, device=device)[:, None]
        back = query - torch.arange(keys, device=device)
        return torch.stack([(back >= 0) & (back % (head + 1) == 0) for head in range(HEADS)])


def bits(draw: st.DrawFn, *shape: int) -> Tensor:
    size = int(torch.tensor(shape).prod())
    cells = draw(st.lists(st.booleans(), min_size=size, max_size=size))
    return torch.tensor(cells, dtype=torch.bool).reshape(shape)


def whole_numbers(draw: st.DrawFn, least: int, most: int, size: int) -> Tensor:
    numbers = draw(st.lists(st.integers(least, most), min_size=size, max_size=size))
    return torch.tensor(numbers, dtype=torch.int64)


def explicit(draw: st.DrawFn, batch: int, queries: int, keys: int) -> Mask:
    sizes = ((1, batch), (1, HEADS), (1, queries), (1, keys))
    return Explicit(bits(draw, *(draw(st.sampled_from(size)) for size in sizes)))


def ranges(draw: st.DrawFn, batch: int, queries: int, keys: int) -> Mask:
    first, end = (whole_numbers(draw, -1, keys + 1, queries) for _ in range(2))
    if draw(st.booleans()):  # as packed sequences have them
        first, end = first.sort().values, torch.maximum(first, end).sort().values
    return Ranges(first, end)


def pair(kind: Callable[[Mask, Mask], Mask]) -> Callable[[st.DrawFn, int, int, int], Mask]:
    def draw_pair(draw: st.DrawFn, batch: int, queries: int, keys: int) -> Mask:
        simple = st.sampled_from([one for one in MASKS if one not in (Both, Either, Not)])
        return kind(*(MASKS[draw(simple)](draw, batch, queries, keys) for _ in range(2)))

    return draw_pair


#: One of each class, for a call of these sizes. A new mask needs a line here, and no other test.
MASKS: dict[type[Mask], Callable[[st.DrawFn, int, int, int], Mask]] = {
    Striped: lambda draw, *_: Striped(draw(st.integers(1, 3))),
    Window: lambda draw, *_: Window(draw(sides), draw(sides), draw(st.integers(-3, 3))),
    Padding: lambda draw, batch, _, keys: Padding(
        whole_numbers(draw, 0, keys, batch) if draw(st.booleans()) else bits(draw, batch, keys)
    ),
    Ranges: ranges,
    Explicit: explicit,
    Neighbours: lambda draw, _, queries, keys: headloom.neighbours(
        bits(draw, queries, keys).float()
    ),
    Both: pair(Both),
    Either: pair(Either),
    Not: lambda draw, batch, queries, keys: Not(
        MASKS[draw(st.sampled_from([Striped, Window, Ranges, Explicit, Flat, ByHead]))](
            draw, batch, queries, keys
        )
    ),
    Flat: lambda draw, *_: Flat(),
    ByHead: lambda draw, *_: ByHead(),
}


def test_every_mask_of_headloom_is_here() -> None:
    kinds, below = set(), [Mask]
    while below:
        kind = below.pop()
        below += kind.__subclasses__()
        if kind.__module__.startswith("headloom.") and not kind.__name__.startswith("_"):
            kinds.add(kind)
    assert kinds - {Mask, NativeMask} == set(MASKS) - {Striped, Flat, ByHead}


@pytest.mark.parametrize(
    ("block", "message"),
    [
        (torch.zeros(3, 4), "Own.block: gave torch.float32; expected a tensor of bool"),
        ([[True]], "Own.block: gave list; expected a tensor of bool"),
        (torch.ones(2, 4).bool(), r"Own.block: gave \(2, 4\) for [13] rows and 4 keys; expected"),
        (torch.ones(3, 3).bool(), "a shape that broadcasts to .batch, heads, rows, keys."),
        (torch.ones(1, 1, 1, 3, 4).bool(), "a shape that broadcasts to"),
    ],
)
def test_blocks_that_are_no_cells(block: Any, message: str) -> None:
    class Own(Mask):
        def block(self, rows: range, keys: int, device: torch.device) -> Tensor:
            return block

    queries, keys = torch.randn(1, 2, 3, 4), torch.randn(1, 2, 4, 4)
    for ask in (
        lambda: Own().dense(3, 4),
        lambda: Own().ranges(3, 4),
        lambda: headloom.attention(queries, keys, keys, mask=Own(), backend="torch"),
        lambda: headloom.attend(queries, keys, keys, mask=Own()),
    ):
        with pytest.raises(headloom.HeadloomError, match=message):
            ask()


@st.composite
def masks(draw: st.DrawFn, batch: int, least: int = 0) -> tuple[Mask, int, int]:
    queries, keys = draw(st.integers(least, 5)), draw(st.integers(least, 5))
    return MASKS[draw(st.sampled_from(list(MASKS)))](draw, batch, queries, keys), queries, keys


def whole(mask: Mask, queries: int, keys: int, heads: int = HEADS) -> Tensor:
    return mask.dense(queries, keys).expand(BATCH, heads, queries, keys)


@settings(max_examples=400, deadline=None)
@given(masks(BATCH))
def test_each_operation_says_what_the_cells_say(case: tuple[Mask, int, int]) -> None:
    mask, queries, keys = case
    mask.check(BATCH, HEADS, queries, keys)
    cells = whole(mask, queries, keys)
    turned = mask.transposed(queries, keys)
    turned.check(BATCH, HEADS, keys, queries)
    assert torch.equal(whole(turned, keys, queries), cells.transpose(-2, -1))
    for head in range(HEADS):
        of_head = mask.of_head(head)
        assert torch.equal(whole(of_head, queries, keys, 1), cells[:, head : head + 1])
    for sample in range(BATCH):
        found = mask.ranges(queries, keys, sample)
        assert (found is not None) == all(
            len(set(map(tuple, cells[sample, :, i].tolist()))) == 1
            and "01" not in "".join("01"[cell] for cell in cells[sample, 0, i].tolist()).strip("0")
            for i in range(queries)
        )
        if found is not None:
            assert found.shape == (2, queries)
            assert torch.equal(Ranges(*found).dense(queries, keys)[0, 0], cells[sample, 0])
            assert not found[:, found[0] == found[1]].any()


@settings(max_examples=200, deadline=None)
@given(masks(BATCH))
def test_the_kernels_see_what_the_cells_say(case: tuple[Mask, int, int]) -> None:
    mask, queries, keys = case
    cells = whole(mask, queries, keys)
    bounds = mask.bounds(queries, keys)
    rest = torch.tensor(True) if bounds.rest is None else bounds.rest.dense(queries, keys)
    for sample in range(BATCH):
        inside = Ranges(*bounds.of_sample(queries, keys, sample)).dense(queries, keys)
        allowed = (inside & rest).expand(BATCH, HEADS, queries, keys)
        assert torch.equal(allowed[sample], cells[sample])
    generator = torch.Generator().manual_seed(1)
    tensors = [
        torch.randn(BATCH, HEADS, length, 3, generator=generator)
        for length in (queries, keys, keys)
    ]
    for backend in ("torch", "native"):
        _, graph = headloom.attend(*tensors, mask=mask, backend=backend)
        assert torch.equal(graph.count, cells.sum(-1).int())


@settings(max_examples=100, deadline=None)
@given(masks(1, least=1), st.integers(0, HEADS - 1))
def test_the_matrix_of_a_call_sees_what_the_cells_say(
    case: tuple[Mask, int, int], head: int
) -> None:
    mask, queries, keys = case
    generator = torch.Generator().manual_seed(2)
    tensors = [torch.randn(HEADS, n, 3, generator=generator) for n in (queries, keys)]
    matrix = headloom.AttentionMatrix(*tensors, mask=mask)
    weights = matrix.to_dense()
    allowed = whole(mask, queries, keys)[0]
    assert torch.equal(weights > 0, allowed)
    assert torch.allclose(matrix.received(), weights.sum(1), atol=1e-5)
    largest, sums = matrix.block_summaries(head, 2)
    tiles = torch.nn.functional.pad(weights[head], (0, keys % 2, 0, queries % 2))
    tiles = tiles.unfold(0, 2, 2).unfold(1, 2, 2).flatten(-2)
    assert torch.allclose(largest, tiles.amax(-1), atol=1e-5)
    assert torch.allclose(sums, tiles.sum(-1), atol=1e-5)
    if queries == keys:
        both = (weights * weights.transpose(1, 2)).sum(-1)
        assert torch.allclose(matrix.reciprocity(), both, atol=1e-5)
