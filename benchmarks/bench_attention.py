"""Claim: output, log-sum-exp, entropy and the exact top 32 edges cost no more than attention alone.

Peer: torch's scaled_dot_product_attention, which returns the output alone. 12 heads, depth 64.
Prints seconds and, last on each line, the ratios weft / peer of `attention` and `attend`.

    python benchmarks/bench_attention.py --lengths 1024 4096 8192 16384
    python benchmarks/bench_attention.py --dtype bfloat16
"""

from __future__ import annotations

import argparse
import time
from collections.abc import Callable

import torch
from torch.nn.functional import scaled_dot_product_attention

import weft
from side_by_side import side_by_side
from weft.mechanism.backends import native


def main() -> None:
    """Run and print."""
    parser = argparse.ArgumentParser(description=__doc__)
    parser.add_argument("--lengths", type=int, nargs="+", default=[1024, 4096, 8192])
    parser.add_argument("--dtype", choices=["float32", "bfloat16"], default="float32")
    parser.add_argument("--keep", type=int, default=32)
    parser.add_argument("--threads", type=int, default=2)
    parser.add_argument("--processor-time", action="store_true", help="one thread, on a busy host")
    options = parser.parse_args()
    torch.set_num_threads(1 if options.processor_time else options.threads)
    clock = time.thread_time if options.processor_time else time.perf_counter
    torch.manual_seed(0)
    kernels = native.chosen_instruction_set()
    print(f"{options.dtype}, {torch.get_num_threads()} threads, kernels: {kernels}")
    for length in options.lengths:
        for causal in (False, True):
            measure(length, causal, getattr(torch, options.dtype), options.keep, clock)


def measure(
    length: int, causal: bool, dtype: torch.dtype, k: int, clock: Callable[[], float]
) -> None:
    """One line."""
    queries, keys, values = (torch.randn(1, 12, length, 64).to(dtype) for _ in range(3))
    mask = weft.causal() if causal else None

    def peer() -> object:
        return scaled_dot_product_attention(queries, keys, values, is_causal=causal)

    def output() -> object:
        return weft.attention(queries, keys, values, mask=mask, backend="native")

    def graph() -> object:
        return weft.attend(queries, keys, values, mask=mask, keep=weft.Top(k), backend="native")

    one, plain, captured = side_by_side(peer, output, graph, clock=clock)
    print(
        f"N={length:6} {'causal' if causal else 'full  '} sdpa {one * 1e3:8.1f} ms  "
        f"attention {plain / one:.2f}  attend {captured / one:.2f}",
        flush=True,
    )


if __name__ == "__main__":
    main()
