"""Claim: one head of 65,536 tokens is captured in under a gigabyte.

Eager attention holds a matrix of weights for it, of 4 bytes a cell, 17 GB: the peer, which is not
run. Prints seconds, the peak memory of the process, and last its ratio to that matrix.

    python benchmarks/bench_long.py [--length 65536]
"""

from __future__ import annotations

import argparse
import time

import torch

import headloom
from side_by_side import peak_memory


def main() -> None:
    """Run and print."""
    parser = argparse.ArgumentParser(description=(__doc__ or "").partition("\n")[0])
    parser.add_argument("--length", type=int, default=65_536, help="tokens")
    length = parser.parse_args().length
    torch.set_num_threads(2)
    queries, keys, values = (torch.randn(1, length, 64) for _ in range(3))
    start = time.perf_counter()
    _, graph = headloom.attend(queries, keys, values, keep=headloom.Top(32), backend="native")
    seconds = time.perf_counter() - start
    peak, matrix = peak_memory(), length**2 * 4 / 2**20
    print(f"N={length} {graph} in {seconds:.1f} s, peak {peak:.0f} MB; the matrix {matrix:.0f} MB")
    print(
        f"memory, process of headloom / matrix of weights at {length} tokens: {peak / matrix:.3f}"
    )


if __name__ == "__main__":
    main()
