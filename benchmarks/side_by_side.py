"""Peer and headloom in turn, in one run: medians, ratio, and the memory that a call takes."""

from __future__ import annotations

import resource
import statistics
import threading
import time
from collections.abc import Callable
from pathlib import Path

__all__ = ["extra_memory", "in_turn", "peak_memory", "ratio", "side_by_side"]


def in_turn(
    *runs: Callable[[], object], repeats: int = 5, clock: Callable[[], float] = time.perf_counter
) -> list[list[float]]:
    """Seconds of each run, taken in turn so that a slow moment hits all alike.

    clock: of the wall; `time.thread_time` counts the processor time of this thread, which a busy
        machine disturbs less.
    """
    for run in runs:
        run()
    seconds: list[list[float]] = [[] for _ in runs]
    for _ in range(repeats):
        for times, run in zip(seconds, runs, strict=True):
            start = clock()
            run()
            times.append(clock() - start)
    return seconds


def side_by_side(
    *runs: Callable[[], object], repeats: int = 5, clock: Callable[[], float] = time.perf_counter
) -> list[float]:
    """Median seconds of each run, taken in turn."""
    return [statistics.median(times) for times in in_turn(*runs, repeats=repeats, clock=clock)]


def ratio(ours: list[float], peer: list[float]) -> str:
    """Return the ratio of two medians, and the quartiles of the ratios of neighbouring runs."""
    each = sorted(one / other for one, other in zip(ours, peer, strict=True))
    quarter = len(each) // 4
    middle = statistics.median(ours) / statistics.median(peer)
    return f"{middle:.2f} ({each[quarter]:.2f} to {each[-1 - quarter]:.2f})"


def peak_memory() -> float:
    """Return the most memory this process has held so far, in megabytes."""
    return resource.getrusage(resource.RUSAGE_SELF).ru_maxrss / 1024


def _resident() -> float:
    """Memory held now, in megabytes."""
    pages = int(Path("/proc/self/statm").read_text().split()[1])
    return pages * resource.getpagesize() / 2**20


def extra_memory(run: Callable[[], object]) -> float:
    """Megabytes that a run holds at most beyond what is held before it, sampled while it runs."""
    before, highest, done = _resident(), 0.0, threading.Event()

    def watch() -> None:
        nonlocal highest
        while not done.wait(0.0005):
            highest = max(highest, _resident())

    watcher = threading.Thread(target=watch)
    watcher.start()
    result = run()
    highest = max(highest, _resident())
    done.set()
    watcher.join()
    del result
    return highest - before
