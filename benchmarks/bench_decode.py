"""Claim: one query, or eight, against a long cache, with the graph, cost no more than the output.

Peer: torch's scaled_dot_product_attention, which returns the output alone; where query heads share
keys the faster of enable_gqa=True and of keys and values repeated beforehand. 12 heads of depth
64, and 32 over 8 of depth 128. Each ratio is of medians of runs in turn; in brackets, the lower
and upper quartile of the runs' own ratios. Prints milliseconds of the peer and, last, the ratios
headloom / peer of `attention` and of `attend` with its top 32.

    python benchmarks/bench_decode.py
    python benchmarks/bench_decode.py --dtype bfloat16 --lengths 8192
"""

from __future__ import annotations

import argparse
from collections.abc import Callable

import torch
from torch.nn.functional import scaled_dot_product_attention

import headloom
from headloom.mechanism.backends import compiled
from side_by_side import in_turn, ratio

#: Query heads, heads of keys, depth.
HEADS = ((12, 12, 64), (32, 8, 128))


def main() -> None:
    """Run and print."""
    parser = argparse.ArgumentParser(description=__doc__.splitlines()[0])
    parser.add_argument("--lengths", type=int, nargs="+", default=[2048, 8192, 32768])
    parser.add_argument("--queries", type=int, nargs="+", default=[1, 8])
    parser.add_argument("--dtype", choices=["float32", "bfloat16"], nargs="+")
    parser.add_argument("--keep", type=int, default=32)
    parser.add_argument("--threads", type=int, default=2)
    parser.add_argument("--repeats", type=int, default=25)
    options = parser.parse_args()
    torch.set_num_threads(options.threads)
    torch.manual_seed(0)
    print(f"{options.threads} threads, kernels: {compiled.chosen_instruction_set()}")
    with torch.no_grad():
        for dtype in options.dtype or ["float32", "bfloat16"]:
            for heads in HEADS:
                for queries in options.queries:
                    for length in options.lengths:
                        shape = (*heads, queries, length)
                        measure(shape, dtype, options.keep, options.repeats)


def measure(shape: tuple[int, int, int, int, int], dtype: str, k: int, repeats: int) -> None:
    """One line."""
    heads, kv_heads, depth, count, length = shape
    queries, keys, values = (
        torch.randn(1, some, rows, depth).to(getattr(torch, dtype))
        for some, rows in ((heads, count), (kv_heads, length), (kv_heads, length))
    )
    grouped = heads != kv_heads
    peers: list[Callable[[], object]] = [
        lambda: scaled_dot_product_attention(queries, keys, values, enable_gqa=grouped)
    ]
    if grouped:
        own = [part.repeat_interleave(heads // kv_heads, 1) for part in (keys, values)]
        peers.append(lambda: scaled_dot_product_attention(queries, *own))

    def output() -> object:
        return headloom.attention(queries, keys, values)

    def graph() -> object:
        return headloom.attend(queries, keys, values, keep=headloom.Top(k))

    *theirs, plain, captured = in_turn(*peers, output, graph, repeats=repeats)
    peer = min(theirs, key=lambda times: sorted(times)[len(times) // 2])
    print(
        f"{dtype:8} {heads:2} heads over {kv_heads:2}, depth {depth:3}, {count} queries, "
        f"N={length:6}  sdpa {1e3 * sorted(peer)[len(peer) // 2]:8.3f} ms  "
        f"attention {ratio(plain, peer)}  attend {ratio(captured, peer)}",
        flush=True,
    )


if __name__ == "__main__":
    main()
