"""Claim: output, log-sum-exp, entropy and the exact top 32 edges cost no more than attention alone.

Peer: torch's scaled_dot_product_attention, which returns the output alone. 12 heads, depth 64.
Prints seconds and, last on each line, the ratios headloom / peer of `attention` and `attend`: of
the medians of ten rounds, with the lowest and the highest of one round. Before them stands, as
"products", what QK^T and PV alone would take of the peer's time at the speed of torch's product of
two matrices of 2,048 x 2,048 of that type, measured in the same rounds; causal, half of both. No
attention that leaves its products to torch can be quicker; the kernels' own may be.

    python benchmarks/bench_attention.py --lengths 1024 4096 8192 16384
    python benchmarks/bench_attention.py --dtype bfloat16
"""

from __future__ import annotations

import argparse
import statistics
import time
from collections.abc import Callable

import torch
from torch.nn.functional import scaled_dot_product_attention

import headloom
from headloom.mechanism.backends import compiled
from side_by_side import in_turn

#: Rows of the square matrices whose product tells the speed of products.
LARGE = 2_048


def main() -> None:
    """Run and print."""
    parser = argparse.ArgumentParser(description=__doc__)
    parser.add_argument("--lengths", type=int, nargs="+", default=[1024, 4096, 8192])
    parser.add_argument("--dtype", choices=["float32", "bfloat16"], default="float32")
    parser.add_argument("--keep", type=int, default=32)
    parser.add_argument("--threads", type=int, default=2)
    parser.add_argument("--rounds", type=int, default=10)
    parser.add_argument("--processor-time", action="store_true", help="one thread, on a busy host")
    options = parser.parse_args()
    torch.set_num_threads(1 if options.processor_time else options.threads)
    clock = time.thread_time if options.processor_time else time.perf_counter
    torch.manual_seed(0)
    kernels = compiled.chosen_instruction_set()
    print(f"{options.dtype}, {torch.get_num_threads()} threads, kernels: {kernels}")
    for length in options.lengths:
        for causal in (False, True):
            dtype = getattr(torch, options.dtype)
            measure(length, causal, dtype, options.keep, options.rounds, clock)


def measure(
    length: int, causal: bool, dtype: torch.dtype, k: int, rounds: int, clock: Callable[[], float]
) -> None:
    """One line."""
    queries, keys, values = (torch.randn(1, 12, length, 64).to(dtype) for _ in range(3))
    mask = headloom.causal() if causal else None

    def peer() -> object:
        return scaled_dot_product_attention(queries, keys, values, is_causal=causal)

    def output() -> object:
        return headloom.attention(queries, keys, values, mask=mask, backend="native")

    def graph() -> object:
        return headloom.attend(
            queries, keys, values, mask=mask, keep=headloom.Top(k), backend="native"
        )

    large = torch.randn(2, LARGE, LARGE).to(dtype)

    def product() -> object:
        return large[0] @ large[1]

    runs = (peer, output, graph, product)
    one, plain, captured, products = in_turn(*runs, repeats=rounds, clock=clock)
    operations = 2 * queries.shape[1] * length**2 * queries.shape[-1] / (2 if causal else 1)
    alone = statistics.median(products) * operations / LARGE**3 / statistics.median(one)
    print(
        f"N={length:6} {'causal' if causal else 'full  '} "
        f"sdpa {statistics.median(one) * 1e3:8.1f} ms  products {alone:.2f}  "
        f"attention {spread(plain, one)}  attend {spread(captured, one)}",
        flush=True,
    )


def spread(ours: list[float], peer: list[float]) -> str:
    """Return the ratio of the medians, and the lowest and highest of one round."""
    each = [one / other for one, other in zip(ours, peer, strict=True)]
    middle = statistics.median(ours) / statistics.median(peer)
    return f"{middle:.2f} ({min(each):.2f} to {max(each):.2f})"


if __name__ == "__main__":
    main()
