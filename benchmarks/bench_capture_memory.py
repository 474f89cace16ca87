"""Claim: keeping edges takes little more memory than the edges themselves; the aim is 2.5 times.

Peer: the bytes of keys, scores and weights of the edges in the graph. headloom: the peak memory of
a process that calls `attend` once, less that of one that calls `attention`. Depth 64, the top 32.

    python benchmarks/bench_capture_memory.py
"""

from __future__ import annotations

import subprocess
import sys

import torch

import headloom
from side_by_side import peak_memory


def main() -> None:
    """Run and print; with arguments, one call."""
    torch.set_num_threads(2)
    if len(sys.argv) > 1:
        call(sys.argv[1], *map(int, sys.argv[2:]))
        return
    for heads, length in ((12, 4_096), (12, 8_192), (1, 65_536)):
        plain, _ = in_a_process("attention", heads, length)
        captured, size = in_a_process("attend", heads, length)
        more = captured - plain
        print(
            f"{heads:2} heads, N={length:6}: edges {size:5.1f} MB, "
            f"capture {more:5.1f} MB more than output alone, ratio {more / size:.2f}",
            flush=True,
        )


def in_a_process(operation: str, heads: int, length: int) -> list[float]:
    """Peak memory and the size of the edges, in megabytes."""
    command = [sys.executable, __file__, operation, str(heads), str(length)]
    printed = subprocess.run(command, check=True, capture_output=True, text=True).stdout
    return [float(number) for number in printed.split()]


def call(operation: str, heads: int, length: int) -> None:
    """Call once, and print what `in_a_process` reads."""
    inputs = [torch.randn(heads, length, 64) for _ in range(3)]
    size = 0
    if operation == "attention":
        headloom.attention(*inputs, backend="native")
    else:
        _, graph = headloom.attend(*inputs, keep=headloom.Top(32), backend="native")
        edges = graph.keys, graph.scores, graph.weights
        size = sum(part.numel() * part.element_size() for part in edges)
    print(peak_memory(), size / 2**20)


if __name__ == "__main__":
    main()
