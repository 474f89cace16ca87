"""Claim: one head of 65,536 tokens is captured in under a gigabyte.

Eager attention holds a matrix of 17 GB for it. Prints seconds and the peak memory of the process.

    python benchmarks/bench_long.py
"""

from __future__ import annotations

import time

import torch

import weft
from side_by_side import peak_memory


def main() -> None:
    """Run and print."""
    torch.set_num_threads(2)
    length = 65_536
    queries, keys, values = (torch.randn(1, length, 64) for _ in range(3))
    start = time.perf_counter()
    _, graph = weft.attend(queries, keys, values, keep=weft.Top(32), backend="native")
    seconds = time.perf_counter() - start
    print(f"N={length} {graph} in {seconds:.1f} s, peak {peak_memory():.0f} MB")


if __name__ == "__main__":
    main()
