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

from collections.abc import Iterator
from dataclasses import dataclass, replace
from typing import TYPE_CHECKING

import torch
from torch import Tensor

from weft.errors import InputError, ShapeError
from weft.mechanism.checked import check_tensors
from weft.mechanism.function import attend
from weft.mechanism.graph import AttentionGraph, Top
from weft.mechanism.mask import KeyRanges, Mask, as_mask
from weft.mechanism.positions import ALiBi, Buckets, Relative, Shaw
from weft.mechanism.scores import Score

if TYPE_CHECKING:
    from torch.distributed import ProcessGroup

__all__ = ["ring_attend"]

#: Queries that attend and are merged at once: what they need on the way is small beside the rest.
ROWS = 256
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
    check_tensors("ring_attend", queries, keys, values)
    of_options = [
        part for owner in (score, relative) for part in getattr(owner, "__dict__", {}).values()
    ]
    given = (queries, keys, values, sinks, *of_options)
    if torch.is_grad_enabled() and any(getattr(part, "requires_grad", False) for part in given):
        raise InputError(
            "ring_attend: gradients do not travel in the ring, and queries, keys, values, sinks or "
            "a parameter of the score or of relative positions needs one. Call it under "
            "torch.no_grad()."
        )
    if not isinstance(keep, Top):
        raise InputError(f"ring_attend: keep={keep!r}; expected weft.Top(k).")
    if relative is not None and not isinstance(relative, Shaw | ALiBi | Buckets):
        raise InputError(
            f"ring_attend: relative={type(relative).__name__}; expected Shaw, ALiBi or Buckets."
        )
    if not torch.distributed.is_available() or not torch.distributed.is_initialized():
        raise InputError(
            "ring_attend: torch.distributed is not started. Call "
            "torch.distributed.init_process_group in each process, or start them by torchrun."
        )
    ring = _Ring.of(queries, keys, values, group)
    whole = None if mask is None else as_mask(mask)
    if whole is not None:
        heads = queries.shape[-3]
        batch = queries.shape[0] if queries.ndim == 4 else 1
        whole.check(batch, heads, ring.queries, ring.keys)
    merged = _Merged.empty(queries, values, keep.places(ring.keys))
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
                relative=_moved(relative, place - first),
                scale=scale,
                softcap=softcap,
                sinks=own_sinks,
                keep=keep,
            )
            merged.join(rows, output, _numbered(graph, first), own_sinks)
    return merged.output.to(values.dtype), merged.graph(ring.keys)


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
        whole = self.mask.block(range(rows.start + start, rows.stop + start), self.keys, device)
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


@dataclass(eq=False)
class _Merged:
    """What was found among the keys of some rounds; others are merged in place.

    output: (..., queries, value_depth).
    lse: (..., queries): log-sum-exp of the scores, a sink's included; float64.
    mass, score: (..., queries): sums of the weights, and of the scores by their weights; float64.
    count: (..., queries).
    keys, scores: (..., queries, places).
    """

    output: Tensor
    lse: Tensor
    mass: Tensor
    score: Tensor
    count: Tensor
    keys: Tensor
    scores: Tensor

    @classmethod
    def empty(cls, queries: Tensor, values: Tensor, places: int) -> _Merged:
        """Nothing yet."""
        rows, device = queries.shape[:-1], queries.device
        kind = torch.promote_types(queries.dtype, torch.float32)
        zeros = torch.zeros(rows, dtype=torch.float64, device=device)
        return cls(
            torch.zeros((*rows, values.shape[-1]), dtype=kind, device=device),
            torch.full_like(zeros, -torch.inf),
            zeros,
            zeros.clone(),
            torch.zeros(rows, dtype=torch.int32, device=device),
            torch.full((*rows, places), -1, dtype=torch.int32, device=device),
            torch.full((*rows, places), -torch.inf, dtype=kind, device=device),
        )

    def join(
        self, rows: slice, output: Tensor, graph: AttentionGraph, sinks: Tensor | None
    ) -> None:
        """Merge what some queries found among other keys."""
        other = graph.lse.double()
        sunk = 0.0 if sinks is None else (sinks.double()[:, None] - other).exp()
        mass = torch.where(graph.count > 0, 1.0 - sunk, 0.0).to(other.dtype)
        # entropy = sum of weight * (lse - score); a row without keys has none.
        score = torch.where(graph.count > 0, other * mass - graph.entropy, 0.0)

        before = self.lse[..., rows]
        lse = torch.logaddexp(before, other)
        mine, theirs = _share(before, lse), _share(other, lse)
        self.lse[..., rows] = lse
        self.mass[..., rows] = mine * self.mass[..., rows] + theirs * mass
        self.score[..., rows] = mine * self.score[..., rows] + theirs * score
        self.count[..., rows] += graph.count
        sums = self.output[..., rows, :]
        sums.mul_(mine[..., None].to(sums.dtype))
        sums.add_(output * theirs[..., None].to(sums.dtype))

        pairs = (self.keys[..., rows, :], graph.keys), (self.scores[..., rows, :], graph.scores)
        keys, scores = _strongest(*(torch.cat(pair, -1) for pair in pairs))
        places = self.keys.shape[-1]
        self.keys[..., rows, :] = keys[..., :places]
        self.scores[..., rows, :] = scores[..., :places]

    def graph(self, length: int) -> AttentionGraph:
        """The graph of all rounds."""
        weights = torch.empty_like(self.scores)
        for start in range(0, self.lse.shape[-1], ROWS):
            rows = slice(start, start + ROWS)
            weights[..., rows, :] = (self.scores[..., rows, :] - self.lse[..., rows, None]).exp()
        weights.masked_fill_(self.keys < 0, 0.0)
        # A row that sees sinks alone has all its weight on them.
        real = self.lse > -torch.inf
        entropy = torch.where(real, (self.lse * self.mass - self.score).clamp(min=0.0), 0.0)
        rest = torch.where(real, (1 - weights.sum(-1)).clamp(min=0.0), 0.0)
        kind = self.scores.dtype
        return AttentionGraph(
            self.keys,
            self.scores,
            weights,
            self.lse.to(kind),
            entropy.to(kind),
            rest.to(kind),
            self.count,
            length,
        )


def _strongest(keys: Tensor, scores: Tensor) -> tuple[Tensor, Tensor]:
    """Edges in their order: strongest first, ties to the lower key, empty places last."""
    order = torch.where(keys < 0, torch.iinfo(keys.dtype).max, keys).argsort(dim=-1, stable=True)
    best = scores.gather(-1, order).argsort(dim=-1, descending=True, stable=True)
    order = order.gather(-1, best)
    return keys.gather(-1, order), scores.gather(-1, order)


def _share(part: Tensor, whole: Tensor) -> Tensor:
    """exp(part - whole): 0 where no key was seen at all."""
    return torch.where(whole == -torch.inf, 0.0, (part - whole).exp())
