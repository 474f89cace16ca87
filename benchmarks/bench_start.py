"""Claim: `import headloom` takes at most 0.3 s over nothing, and `headloom --help` at most 0.4 s.

Peer: `python -c pass`, in turn with both. Files are read once before, so that the system has them
in memory. Prints seconds on the clock and on the processor, medians, and last what headloom adds.

    python benchmarks/bench_start.py
"""

from __future__ import annotations

import os
import statistics
import subprocess
import sys
import time
from collections.abc import Sequence

REPEATS = 15
LIMITS = {"import headloom": 0.3, "headloom --help": 0.4}


def main() -> None:
    """Run and print."""
    programs = {
        "python -c pass": ["-c", "pass"],
        "import headloom": ["-c", "import headloom"],
        "headloom --help": ["-m", "headloom", "--help"],
    }
    taken: dict[str, list[tuple[float, float]]] = {name: [] for name in programs}
    for repeat in range(REPEATS + 1):
        for name, words in programs.items():
            seconds = measure(words)
            if repeat:  # the first reads the files
                taken[name].append(seconds)
    medians = {
        name: tuple(statistics.median(column) for column in zip(*times, strict=True))
        for name, times in taken.items()
    }
    for name, (clock, processor) in medians.items():
        print(f"{name:<16} {clock:6.3f} s, {processor:6.3f} s of the processor", flush=True)
    nothing = medians["python -c pass"]
    for name, limit in LIMITS.items():
        clock = medians[name][0] - nothing[0]
        processor = medians[name][1] - nothing[1]
        print(f"{name} adds {clock:.3f} s ({processor:.3f} s of the processor), limit {limit} s")


def measure(words: Sequence[str]) -> tuple[float, float]:
    """Seconds of one start: on the clock, and of the processor."""
    before, start = os.times(), time.perf_counter()
    subprocess.run([sys.executable, *words], stdout=subprocess.DEVNULL, check=True)
    clock, after = time.perf_counter() - start, os.times()
    used = after.children_user + after.children_system
    return clock, used - before.children_user - before.children_system


if __name__ == "__main__":
    main()
