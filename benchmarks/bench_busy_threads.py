"""Claim: `headloom train` on two threads loses less beside other programs, and nothing without
them.

Peer: the same command with threads that wait as libgomp has it (GOMP_SPINCOUNT=300000: they look
for work for milliseconds before they sleep). In turn, first with nothing else running, then beside
programs that only count. Prints seconds of the whole command, medians and ranges, and last the
ratios of the medians, headloom / peer. Linux; some five minutes.

    python benchmarks/bench_busy_threads.py
    python benchmarks/bench_busy_threads.py --steps 60 --rounds 6 --busy 4
"""

from __future__ import annotations

import argparse
import os
import statistics
import subprocess
import sys
import tempfile
from collections.abc import Sequence
from pathlib import Path
from time import perf_counter

CONFIGURATION = Path(__file__).resolve().parents[1] / "examples" / "dates.toml"
#: How often libgomp's threads look by themselves: a compiled constant of it.
PEER = {"GOMP_SPINCOUNT": "300000"}


def main() -> None:
    """Run and print."""
    parser = argparse.ArgumentParser(description=__doc__.splitlines()[0])
    parser.add_argument("--steps", type=int, default=40, help="of the training")
    parser.add_argument("--rounds", type=int, default=3)
    parser.add_argument("--busy", type=int, default=4, help="programs that count beside it")
    given = parser.parse_args()
    ratios = {}
    for busy in (0, given.busy):
        others = [subprocess.Popen([sys.executable, "-c", "while True: pass"]) for _ in range(busy)]
        try:
            ratios[busy] = measure(given.steps, given.rounds, f"beside {busy} programs")
        finally:
            for other in others:
                other.kill()
                other.wait()
    for busy, ratio in ratios.items():
        print(f"beside {busy} programs: headloom / peer {ratio:.2f}")


def measure(steps: int, rounds: int, where: str) -> float:
    """Run both in turn; prints what each took, and returns the ratio of the medians."""
    taken: dict[str, list[float]] = {"headloom": [], "peer": []}
    for _ in range(rounds):
        taken["headloom"].append(seconds(steps, {}))
        taken["peer"].append(seconds(steps, PEER))
    for name, times in taken.items():
        middle, low, high = statistics.median(times), min(times), max(times)
        print(f"{where}: {name} {middle:.1f} s ({low:.1f} to {high:.1f})", flush=True)
    return statistics.median(taken["headloom"]) / statistics.median(taken["peer"])


def seconds(steps: int, environment: dict[str, str]) -> float:
    """What one training of so many steps takes."""
    own = {name: value for name, value in os.environ.items() if name not in _WAITING}
    with tempfile.TemporaryDirectory() as folder:
        start = perf_counter()
        subprocess.run(command(steps, folder), env=own | environment, check=True, **_SILENT)
        return perf_counter() - start


def command(steps: int, folder: str) -> Sequence[str]:
    """`headloom train`, without a look at the held-out dates in between."""
    words = [sys.executable, "-m", "headloom", "train", str(CONFIGURATION), "--threads", "2"]
    words += ["--run", f"{folder}/run"]
    for key in ("max_steps", "validate_every", "checkpoint_every"):
        words += ["--set", f"training.{key}={steps}"]
    return words


_WAITING = ("GOMP_SPINCOUNT", "OMP_WAIT_POLICY")
_SILENT = {"stdout": subprocess.DEVNULL, "stderr": subprocess.DEVNULL}

if __name__ == "__main__":
    main()
