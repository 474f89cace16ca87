"""Attention over a sequence that several processes share: keys and values travel in a ring.

Process r of R holds the r-th part of the queries, keys and values. In R rounds each attends from
its queries to the part of the keys that it has, and passes that part on. What the rounds find is
merged exactly, since a softmax over all keys follows from those over their parts:

    lse    = log(exp(lse_1) + exp(lse_2))
    output = exp(lse_1 - lse) output_1 + exp(lse_2 - lse) output_2

A part's kept edges carry their scores before the softmax, so the strongest edges of all are the
strongest of the parts' strongest, and their weights are exp(score - lse).

Source: Liu, Zaharia and Abbeel 2023, "Ring Attention with Blockwise Transformers for Near-Infinite
Context"; Milakov and Gimelshein 2018 (the merge).
"""

from __future__ import annotations

from collections.abc import Callable, Iterator
from dataclasses import dataclass, replace
from typing import TYPE_CHECKING

import torch
from torch import Tensor

from headloom.errors import InputError, ShapeError
from headloom.mechanism.checked import check_tensors
from headloom.mechanism.function import attend
from headloom.mechanism.graph import AttentionGraph, Top
from headloom.mechanism.mask import KeyRanges, Mask, as_mask
from headloom.mechanism.positions import ALiBi, Buckets, Relative, Shaw
from headloom.mechanism.ring_merge import ROWS, Merged
from headloom.mechanism.scores import Score
from headloom.mechanism.shapes import in_words

if TYPE_CHECKING:
    from torch.distributed import ProcessGroup

__all__ = ["ring_attend"]

#: The types that tensors may have: what is sent as one of them cannot be received as another.
_TYPES = (torch.float32, torch.float64, torch.bfloat16, torch.float16, "no floating-point type")


def ring_attend(
    queries: Tensor,
    keys: Tensor,
    values: Tensor,
    *,
    mask: Mask | Tensor | None = None,
    score: Score | None = None,
    relative: Relative | None = None,
    scale: float | None = None,
    softcap: float | None = None,
    sinks: Tensor | None = None,
    keep: Top = Top(32),  # noqa: B008 - frozen
    group: ProcessGroup | None = None,
) -> tuple[Tensor, AttentionGraph]:
    """`attend` over a sequence of which each process of a group holds a part.

    Every process of the group calls it, with its part of the queries, keys and values; the parts
    follow each other in the order of the processes, and may differ in length. No process ever holds
    more than its own keys and values and those of two others.

    Args:
        queries: this process's, (batch, heads, its queries, depth); the batch may be left out.
        keys: (batch, kv_heads, its keys, depth).
        values: (batch, kv_heads, its keys, value_depth).
        mask: of the whole sequence: of all queries, to all keys.
        score: see `attention`.
        relative: of the whole sequence.
        scale: see `attention`.
        softcap: see `attention`.
        sinks: see `attention`.
        keep: ``Top(k)``.
        group: the processes; None: all of torch.distributed.

    Returns: the output of this process's queries, (batch, heads, its queries, value_depth), and the
        graph of their edges to the keys of all processes, numbered through.

    Raises:
        ShapeError: the shapes do not fit together.
        InputError: torch.distributed has not been started, gradients are asked for, which do not
            travel, or an argument cannot be used.
    Source: Liu et al. 2023.
    """

    def check() -> None:
        check_tensors("ring_attend", queries, keys, values)
        _whole(mask)
        _shiftable(relative)
        _check_options((queries, keys, values, sinks), score, relative, keep)
        # The rest as `attend` checks it, where there is nothing to compute.
        nothing = (part[..., :0, :] for part in (queries, keys, values))
        attend(
            *nothing, score=score, relative=relative, scale=scale, softcap=softcap, sinks=sinks,
            keep=keep,
        )  # fmt: skip

    if not torch.distributed.is_available() or not torch.distributed.is_initialized():
        check()
        raise InputError(
            "ring_attend: torch.distributed is not started. Call "
            "torch.distributed.init_process_group in each process, or start them by torchrun."
        )
    _check_everywhere(check, keys, group)
    ring = _Ring.of(queries, keys, values, group)
    whole, shiftable = _whole(mask), _shiftable(relative)

    def check_mask() -> None:
        if whole is not None:
            batch = queries.shape[0] if queries.ndim == 4 else 1
            whole.check(batch, queries.shape[-3], ring.queries, ring.keys)

    _check_everywhere(check_mask, keys, group)
    merged = Merged.empty(queries, values, keep.places(ring.keys))
    for owner, part_keys, part_values in ring.rounds(keys, values):
        first = ring.key_starts[owner]
        for start in range(0, queries.shape[-2], ROWS):
            rows = slice(start, start + ROWS)
            here = queries[..., rows, :]
            place = ring.query_start + start
            part = None if whole is None else _Part(whole, place, ring.queries, first, ring.keys)
            if part is not None and owner != ring.rank and part.is_empty(here, part_keys):
                continue
            # Counted once: by the round of the keys that are here from the start.
            own_sinks = sinks if owner == ring.rank else None
            output, graph = attend(
                here,
                part_keys,
                part_values,
                mask=part,
                score=score,
                relative=_moved(shiftable, place - first),
                scale=scale,
                softcap=softcap,
                sinks=own_sinks,
                keep=keep,
            )
            merged.join(rows, output, _numbered(graph, first), own_sinks)
    return merged.output.to(values.dtype), merged.graph(ring.keys)


def _whole(mask: Mask | Tensor | None) -> Mask | None:
    return None if mask is None else as_mask(mask)


def _check_options(
    tensors: tuple[Tensor | None, ...],
    score: Score | None,
    relative: Relative | None,
    keep: Top,
) -> None:
    of_options = [
        part for owner in (score, relative) for part in getattr(owner, "__dict__", {}).values()
    ]
    given = (*tensors, *of_options)
    if torch.is_grad_enabled() and any(getattr(part, "requires_grad", False) for part in given):
        raise InputError(
            "ring_attend: gradients do not travel in the ring, and queries, keys, values, sinks or "
            "a parameter of the score or of relative positions needs one. Call it under "
            "torch.no_grad()."
        )
    if not isinstance(keep, Top):
        raise InputError(f"ring_attend: keep={in_words(keep)}; expected headloom.Top(k).")


def _shiftable(relative: Relative | None) -> Shaw | ALiBi | Buckets | None:
    if relative is None or isinstance(relative, Shaw | ALiBi | Buckets):
        return relative
    raise InputError(
        f"ring_attend: relative={type(relative).__name__}; expected Shaw, ALiBi or Buckets."
    )


def _check_everywhere(check: Callable[[], None], keys: Tensor, group: ProcessGroup | None) -> None:
    """Check in every process: where one has an error, the others have one too, and do not wait."""
    dist, wrong_here = torch.distributed, True
    try:
        check()
        wrong_here = False
    finally:
        device = keys.device if isinstance(keys, Tensor) else None
        mine = torch.tensor([wrong_here], dtype=torch.int32, device=device)
        wrong = [torch.empty_like(mine) for _ in range(dist.get_world_size(group))]
        dist.all_gather(wrong, mine, group=group)
    check_none_wrong([bool(flag) for flag in wrong])


def check_none_wrong(wrong: list[bool]) -> None:
    """Raise an InputError where a process, of which this is not one, has an error of its own."""
    if any(wrong):
        raise InputError(
            f"ring_attend: process {wrong.index(True)} cannot use what it was given; its own error "
            "says why. Nothing was computed."
        )


def _numbered(graph: AttentionGraph, first: int) -> AttentionGraph:
    """A graph whose keys are numbered from the first of its part on."""
    keys = torch.where(graph.keys >= 0, graph.keys + first, graph.keys)
    return replace(graph, keys=keys)


def check_alike(rank: int, parts: list[tuple[int, ...]]) -> None:
    """Raise a ShapeError where processes differ in what must be the same everywhere.

    rank: of this process.
    parts: of each process: the place of its type in `_TYPES`, and the sizes of its queries, keys
        and values without their lengths, -1 at the end.
    """
    mine, *others = (
        f"{_TYPES[kind]} and batch, heads and depths {[size for size in sizes if size >= 0]}"
        for kind, *sizes in (parts[rank], *parts)
    )
    for other, theirs in enumerate(others):
        if theirs != mine:
            raise ShapeError(
                f"ring_attend: process {rank} has {mine}, process {other} {theirs}. Give all the "
                "same."
            )


@dataclass(frozen=True)
class _Ring:
    """Who holds what.

    rank: this process's number in the group.
    query_start: this process's first query among all.
    key_starts: each process's first key among all.
    key_counts: how many keys each has.
    queries, keys: how many there are in all.
    """

    rank: int
    group: ProcessGroup | None
    query_start: int
    key_starts: list[int]
    key_counts: list[int]
    queries: int
    keys: int

    @classmethod
    def of(cls, queries: Tensor, keys: Tensor, values: Tensor, group: ProcessGroup | None) -> _Ring:
        """The ring of a group, which agrees on the sizes."""
        dist = torch.distributed
        rank, count = dist.get_rank(group), dist.get_world_size(group)
        mine = torch.tensor([queries.shape[-2], keys.shape[-2]], device=keys.device)
        # What must be the same everywhere: what is received is as large as what is here.
        kind = _TYPES.index(keys.dtype) if keys.dtype in _TYPES else len(_TYPES) - 1
        sizes_here = [*queries.shape[:-2], *keys.shape[:-2], keys.shape[-1], values.shape[-1]]
        shape = torch.tensor([kind, *sizes_here], device=keys.device)
        sizes = [torch.empty_like(mine) for _ in range(count)]
        dist.all_gather(sizes, mine, group=group)
        shapes = [torch.zeros(8, dtype=shape.dtype, device=keys.device) for _ in range(count)]
        padded = torch.nn.functional.pad(shape, (0, 8 - len(shape)), value=-1)
        dist.all_gather(shapes, padded, group=group)
        check_alike(rank, [tuple(theirs.tolist()) for theirs in shapes])
        query_counts = [int(size[0]) for size in sizes]
        key_counts = [int(size[1]) for size in sizes]
        return cls(
            rank,
            group,
            sum(query_counts[:rank]),
            [sum(key_counts[:other]) for other in range(count)],
            key_counts,
            sum(query_counts),
            sum(key_counts),
        )

    def rounds(self, keys: Tensor, values: Tensor) -> Iterator[tuple[int, Tensor, Tensor]]:
        """Each process's keys and values, this one's first; while they are used, the next come."""
        count, part = len(self.key_counts), (keys.contiguous(), values.contiguous())
        for step in range(count):
            owner = (self.rank - step) % count
            waiting: list[torch.distributed.Work] = []
            coming = part
            if step < count - 1:
                waiting, coming = self._pass_on(part, (owner - 1) % count)
            yield owner, *part
            for work in waiting:
                work.wait()
            part = coming

    def _pass_on(
        self, part: tuple[Tensor, Tensor], owner: int
    ) -> tuple[list[torch.distributed.Work], tuple[Tensor, Tensor]]:
        """Begin to send a part to the next process, and to receive that of an owner."""
        dist, count, size = torch.distributed, len(self.key_counts), self.key_counts[owner]
        keys, values = (p.new_empty((*p.shape[:-2], size, p.shape[-1])) for p in part)
        after, before = ((self.rank + step) % count for step in (1, -1))
        if self.group is not None:
            after, before = (dist.get_global_rank(self.group, r) for r in (after, before))
        operations = [dist.P2POp(dist.isend, tensor, after, group=self.group) for tensor in part]
        operations += [
            dist.P2POp(dist.irecv, tensor, before, group=self.group) for tensor in (keys, values)
        ]
        return dist.batch_isend_irecv(operations), (keys, values)


@dataclass(frozen=True, eq=False)
class _Part(Mask):
    """A block of a mask: the queries of one process, the keys of another.

    first_query, queries: of the block's queries among all, and how many all are.
    first_key, keys: likewise.
    """

    mask: Mask
    first_query: int
    queries: int
    first_key: int
    keys: int

    def check(self, batch: int, heads: int, queries: int, keys: int) -> None:
        """See Mask.check: the whole mask was checked."""

    def block(self, rows: range, keys: int, device: torch.device) -> Tensor:
        """See Mask.block."""
        start = self.first_query
        whole = self.mask.cells(range(rows.start + start, rows.stop + start), self.keys, device)
        return whole[..., self.first_key : self.first_key + keys]

    def bounds(self, queries: int, keys: int) -> KeyRanges:
        """See Mask.bounds."""
        whole = self.mask.bounds(self.queries, self.keys)
        shift = self.first_query - self.first_key
        band = whole.band and (whole.band[0] + shift, whole.band[1] + shift)
        rows = slice(self.first_query, self.first_query + queries)
        by_query = None if whole.by_query is None else whole.by_query[..., rows]
        return KeyRanges(
            band,
            self._here(whole.by_sequence, keys),
            self._here(by_query, keys),
            None if whole.rest is None else replace(self, mask=whole.rest),
        )

    def _here(self, ranges: Tensor | None, keys: int) -> Tensor | None:
        """Ranges of all keys, as ranges of this block's."""
        return None if ranges is None else (ranges - self.first_key).clamp(0, keys)

    def is_empty(self, queries: Tensor, keys: Tensor) -> bool:
        """Whether the band alone hides all of the block: a causal mask's later keys."""
        band = self.bounds(queries.shape[-2], keys.shape[-2]).band
        return band is not None and (
            queries.shape[-2] - 1 + band[1] < 0 or band[0] > keys.shape[-2] - 1
        )


def _moved(relative: Shaw | ALiBi | Buckets | None, shift: int) -> Relative | None:
    """Relative positions of a block whose first query lies so many keys after its first key."""
    return relative and replace(relative, offset=relative.offset + shift)
