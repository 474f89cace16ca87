"""Claim: where another program keeps the matrix unit busy, the kernels are no slower for using it.

Peer: headloom's own kernels without the unit (HEADLOOM_INSTRUCTION_SET=avx512). Both attend in
turn, each in a process of its own, 12 heads of depth 64 with the top 32, float32, while a third
process multiplies bfloat16 matrices by torch on as many threads. Prints the median seconds of each,
and the ratio last, with the lowest and the highest of one round.

    python benchmarks/bench_busy_unit.py [--lengths 1024 4096 8192]
"""

from __future__ import annotations

import argparse
import os
import statistics
import subprocess
import sys

#: Attends once for each line it is given, and prints the seconds.
ATTEND = """
import sys, time, torch, headloom
threads, length = map(int, sys.argv[1:])
torch.set_num_threads(threads)
torch.manual_seed(0)
queries, keys, values = (torch.randn(1, 12, length, 64) for _ in range(3))
headloom.attend(queries, keys, values, keep=headloom.Top(32))
for _ in sys.stdin:
    start = time.perf_counter()
    headloom.attend(queries, keys, values, keep=headloom.Top(32))
    print(time.perf_counter() - start, flush=True)
"""
#: Keeps the unit busy until it is ended.
BUSY = """
import sys, torch
torch.set_num_threads(int(sys.argv[1]))
matrix = torch.randn(2048, 2048).bfloat16()
while True:
    matrix @ matrix
"""


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__.splitlines()[0])
    parser.add_argument("--lengths", type=int, nargs="+", default=[1024, 4096, 8192])
    parser.add_argument("--threads", type=int, default=2)
    parser.add_argument("--rounds", type=int, default=10)
    options = parser.parse_args()
    busy = subprocess.Popen([sys.executable, "-c", BUSY, str(options.threads)])
    try:
        for length in options.lengths:
            unit, plain = in_turn(length, options.threads, options.rounds)
            ratios = sorted(one / other for one, other in zip(unit, plain, strict=True))
            print(
                f"N={length:6} with the unit {1000 * statistics.median(unit):7.0f} ms, without "
                f"{1000 * statistics.median(plain):7.0f} ms, ratio {statistics.median(ratios):.2f} "
                f"({ratios[0]:.2f} to {ratios[-1]:.2f})",
                flush=True,
            )
    finally:
        busy.kill()


def in_turn(length: int, threads: int, rounds: int) -> tuple[list[float], list[float]]:
    """Seconds of `attend` by the widest instruction set, and by avx512."""
    command = [sys.executable, "-c", ATTEND, str(threads), str(length)]
    pipes = {"stdin": subprocess.PIPE, "stdout": subprocess.PIPE, "text": True, "bufsize": 1}
    environments = os.environ, {**os.environ, "HEADLOOM_INSTRUCTION_SET": "avx512"}
    sides = [subprocess.Popen(command, env=each, **pipes) for each in environments]
    seconds: tuple[list[float], list[float]] = [], []
    for _ in range(rounds):
        for side, times in zip(sides, seconds, strict=True):
            assert side.stdin is not None
            assert side.stdout is not None
            side.stdin.write("\n")
            times.append(float(side.stdout.readline()))
    for side in sides:
        side.communicate()
    return seconds


if __name__ == "__main__":
    main()
