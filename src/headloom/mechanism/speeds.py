"""How quick the kernels of each instruction set are here: for who names one, and for `headloom
doctor`.

Which is the quickest is not always the widest: a matrix unit that other programs keep busy serves
worse than none. headloom never chooses by the clock, since results of two instruction sets differ
in their last bits: docs/decisions/0032.
"""

from __future__ import annotations

import statistics
import time
from collections.abc import Callable
from functools import partial

import torch

from headloom.mechanism.backends import native
from headloom.mechanism.call import AttentionCall
from headloom.mechanism.graph import Top
from headloom.mechanism.scores import ScaledDot

__all__ = ["instruction_set_seconds"]

#: Heads, tokens and depth of the call that is timed: some milliseconds on a vector unit.
_SIZES = (4, 512, 64)


def instruction_set_seconds(
    repeats: int = 5, clock: Callable[[], float] = time.thread_time
) -> dict[str, float]:
    """Median seconds of a call of `headloom.attend`, by the instruction sets that run here.

    4 heads of 512 tokens and depth 64 in float32, 32 edges of each query, on one thread. The
    instruction sets take turns, so that a slow moment hits all alike.

    Args:
        repeats: calls of each, after one that is not counted.
        clock: processor time of this thread, in seconds; others that wait for it do not count.

    Returns: in the order of `instruction_sets`, the widest first; empty without kernels.
    """
    generator = torch.Generator().manual_seed(0)
    queries, keys, values = (torch.randn(1, *_SIZES, generator=generator) for _ in range(3))
    call = AttentionCall(queries, keys, values, ScaledDot(), _SIZES[-1] ** -0.5)
    runs = {
        name: partial(native.attend, call, Top(32), instruction_set=name)
        for name in native.instruction_sets()
    }
    seconds: dict[str, list[float]] = {name: [] for name in runs}
    threads = torch.get_num_threads()
    torch.set_num_threads(1)
    try:
        with torch.no_grad():
            for run in runs.values():
                run()
            for _ in range(repeats):
                for name, run in runs.items():
                    start = clock()
                    run()
                    seconds[name].append(clock() - start)
    finally:
        torch.set_num_threads(threads)
    return {name: statistics.median(times) for name, times in seconds.items()}
