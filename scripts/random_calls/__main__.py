"""Random legal attention calls against a formula in float64 that shares no code with headloom.

    python scripts/random_calls --calls 100000 --seed 0 --workers 2
    python scripts/random_calls --seed 0 --only 4711          # one call again, by its number
    python scripts/random_calls --device cuda                 # by a GPU's kernel, where it serves

Draws inputs, masks, scores, positions, biases, caps, sinks, types, backends and instruction sets;
compares output, graph, dense weights and, for a quarter of the calls, gradients, each within what
the rounding of its scores allows. The last line: "N calls, N wrong, N NaN that float64 has not".
"""

from __future__ import annotations

import argparse
import re
import subprocess
import sys
import time
from collections.abc import Iterator
from itertools import pairwise
from queue import SimpleQueue
from threading import Thread

import torch
from comparing import FAULTS, problems
from drawing import Case, draw

from headloom.mechanism.backends import compiled

#: Calls between two looks at what was found.
PORTION = 50
#: The last line.
TOTAL = re.compile(r"(\d+) calls, (\d+) wrong, (\d+) NaN that float64 has not")


def drawn(seed: int, number: int, device: str) -> Case:
    """Return a call by its number, on a device."""
    case = draw(seed, number, compiled.instruction_sets() if device == "cpu" else [])
    case.device = device
    return case


def run(
    seed: int, first: int, end: int, fault: str | None, device: str
) -> tuple[int, int, int, list[str]]:
    """Run calls first to end; return their number, wrong ones, ones with NaN, and the problems."""
    wrong = nan = 0
    lines = []
    for number in range(first, end):
        case = drawn(seed, number, device)
        said = problems(case, fault)
        wrong += bool(said)
        nan += any(line.startswith("NaN") for line in said)
        if said:
            lines.append(f"seed {seed} call {number}: {'; '.join(said)} | {case}")
    return end - first, wrong, nan, lines


def _shared(asked: argparse.Namespace) -> Iterator[str]:
    """Yield the output lines of the worker processes, each with its share of the calls."""
    cuts = [asked.first + asked.calls * n // asked.workers for n in range(asked.workers + 1)]
    fault = ["--fault", asked.fault] if asked.fault else []
    processes = [
        subprocess.Popen(
            [
                *(sys.executable, sys.argv[0], f"--seed={asked.seed}"),
                *(f"--first={first}", f"--calls={end - first}", *fault),
                f"--device={asked.device}",
            ],
            stdout=subprocess.PIPE,
            text=True,
        )
        for first, end in pairwise(cuts)
    ]
    lines: SimpleQueue[str | None] = SimpleQueue()

    def read(process: subprocess.Popen[str]) -> None:
        assert process.stdout is not None
        for line in process.stdout:
            lines.put(line)
        lines.put(None)

    for process in processes:
        Thread(target=read, args=(process,), daemon=True).start()
    left = len(processes)
    while left:
        line = lines.get()
        if line is None:
            left -= 1
        else:
            yield line


def main() -> int:
    """Run the calls that the command line asks for; 1 where any is wrong."""
    parser = argparse.ArgumentParser(
        description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter
    )
    parser.add_argument("--calls", type=int, default=1000)
    parser.add_argument("--first", type=int, default=0, help="number of the first call")
    parser.add_argument("--seed", type=int, default=0)
    parser.add_argument("--workers", type=int, default=1)
    parser.add_argument("--only", type=int, help="this call alone")
    parser.add_argument("--fault", choices=FAULTS, help="plant a fault that must be found")
    parser.add_argument("--device", default="cpu", help="cpu or cuda")
    asked = parser.parse_args()
    first, end = asked.first, asked.first + asked.calls
    if asked.only is not None:
        first, end = asked.only, asked.only + 1
        print(drawn(asked.seed, first, asked.device))
    calls = wrong = nan = 0
    if asked.workers > 1 and asked.only is None:
        for line in _shared(asked):
            total = TOTAL.fullmatch(line.strip())
            if total is None:
                print(line, end="", flush=True)
            else:
                part = [int(number) for number in total.groups()]
                calls, wrong, nan = calls + part[0], wrong + part[1], nan + part[2]
    else:
        began = time.monotonic()
        for start in range(first, end, PORTION):
            some, some_wrong, some_nan, lines = run(
                asked.seed, start, min(start + PORTION, end), asked.fault, asked.device
            )
            calls, wrong, nan = calls + some, wrong + some_wrong, nan + some_nan
            print(*lines, sep="\n", end="\n" if lines else "", flush=True)
            if calls % (20 * PORTION) == 0:
                seconds = time.monotonic() - began
                print(f"{calls:,} of {end - first:,}, {seconds:.0f} s", file=sys.stderr, flush=True)
    print(f"{calls} calls, {wrong} wrong, {nan} NaN that float64 has not")
    if calls < end - first:
        print(f"{end - first - calls} calls were not made: a process ended early", file=sys.stderr)
    return 1 if wrong or calls < end - first else 0


if __name__ == "__main__":
    torch.set_num_threads(1)
    sys.exit(main())
