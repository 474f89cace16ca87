"""In-strength: who is looked at; and heavy hitters: the few who are looked at by nearly all."""

from __future__ import annotations

from dataclasses import dataclass

import torch
from torch import Tensor

from headloom.analysis.arguments import check_norms, check_source, real_number
from headloom.analysis.interval import Interval, Source, check_numbers, left_out, to_others
from headloom.mechanism.graph import AttentionGraph
from headloom.mechanism.shapes import check_flag

__all__ = ["HeavyHitters", "heavy_hitters", "received"]


def received(source: Source, value_norms: Tensor | None = None) -> Interval:
    """What each key receives from all queries: its in-strength, the column sums.

        r_j = sum_i w_ij,    with norms sum_i w_ij |v_j|

    From kept edges: exactly, where the graph holds it (`headloom.attend(..., received=True)`); else
    the kept ones below, and above, each row that left key j out gives it at most the largest weight
    that it can have left out.

    Args:
        source: all weights, or the kept edges.
        value_norms: |v_j|, (heads, keys) or (kv_heads, keys): see `headloom.analysis.graphs.norms`.

    Returns: (heads, keys).
    Source: Barrat et al. 2004 (strength of a weighted graph); of keys, Zhang et al. 2023 (H2O).

    >>> import math, headloom
    >>> first = torch.tensor([[[8.0, 0.0], [8.0, 0.0]]])
    >>> _, graph = headloom.attend(first, torch.eye(2)[None], first, scale=10.0,
    ...                             keep=headloom.Top(1))
    >>> received(graph).lower
    tensor([[2., 0.]])
    """
    check_source("received", source)
    if value_norms is not None:
        check_norms("received", source.shape, value_norms)
    check_numbers(source, "received")
    known = source.received if isinstance(source, AttentionGraph) else source.received()
    if known is not None:
        mass_received = Interval(known, known)
    elif isinstance(source, AttentionGraph):
        lower = source.strength()
        mass, largest = left_out(source)
        more = torch.minimum(to_others(source, largest), mass.sum(-1, keepdim=True))
        mass_received = Interval(lower, lower + more)
    if value_norms is None:
        return mass_received
    norms = value_norms.repeat_interleave(mass_received.lower.shape[0] // value_norms.shape[0], 0)
    return Interval(mass_received.lower * norms, mass_received.upper * norms)


@dataclass(frozen=True, eq=False)
class HeavyHitters:
    """The smallest set of keys that holds a share of all mass.

    keys: (heads, keys), those who receive most first. The first ``count`` are the set.
    count: how many, (heads,): from kept edges, the smallest set has at least ``lower`` keys, and
    the first ``upper`` hold the share for certain.
    share: of all mass.
    """

    keys: Tensor
    count: Interval
    share: float

    def of(self, head: int) -> Tensor:
        """The keys of a head's set, those who receive most first."""
        return self.keys[head, : int(self.count.upper[head])]


def heavy_hitters(source: Source, share: float = 0.9, *, together: bool = False) -> HeavyHitters:
    """The smallest set of keys that holds a share of all mass: what a cache of keys must keep.

    Args:
        source: all weights, or the kept edges.
        share: above 0, at most 1.
        together: one set for all heads, by what a key receives from all of them.

    Returns: for each head, or with `together` for the one row; no key where there is no mass.
    Source: Zhang et al. 2023 (H2O), section 3.

    From kept edges, with T all mass and r the in-strength, in order of its lower bounds: a set of m
    keys holds at most the m largest upper bounds, and at most its lower bounds and all that was
    left out; the first m hold at least the sum of their lower bounds.

    >>> import headloom
    >>> first = torch.tensor([[[8.0, 0.0], [8.0, 0.0]]])
    >>> _, graph = headloom.attend(first, torch.eye(2)[None], first, scale=10.0,
    ...                             keep=headloom.Top(2))
    >>> heavy_hitters(graph).of(0)
    tensor([0])
    """
    check_source("heavy_hitters", source)
    share = real_number("heavy_hitters", "share", share, above=True)
    check_flag("heavy_hitters", "together", together)
    got = received(source)
    lower, upper = got.lower.double(), got.upper.double()
    if isinstance(source, AttentionGraph) and source.received is None:
        missing = left_out(source)[0].double().sum(-1)
    else:
        missing = torch.zeros(lower.shape[0], dtype=torch.float64)
    if together:
        lower, upper = lower.sum(0, keepdim=True), upper.sum(0, keepdim=True)
        missing = missing.sum(0, keepdim=True)
    mass = lower.sum(-1) + missing
    ordered = lower.sort(dim=-1, descending=True, stable=True)
    certain = ordered.values.cumsum(-1)
    possible = torch.minimum(
        upper.sort(dim=-1, descending=True).values.cumsum(-1), certain + missing[:, None]
    )
    # Rounding must not ask for one more key than there are.
    # At least so many reach the share of what is certain: of what was left out, sinks may have all.
    counts = [
        torch.where(
            mass > 0,
            (sums < (share * all_mass * (1 - 1e-9))[:, None])
            .sum(-1)
            .add(1)
            .clamp(max=lower.shape[-1]),
            0,
        )
        for sums, all_mass in ((possible, lower.sum(-1)), (certain, mass))
    ]
    return HeavyHitters(ordered.indices, Interval(counts[0], counts[1]), share)
