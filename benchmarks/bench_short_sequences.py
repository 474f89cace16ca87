"""Claim: short sequences cost no more than the peer's, padded ones and small calls alike.

Peer: torch's scaled_dot_product_attention, which returns the output alone; of padded sequences (64
of 8 heads) with a bool mask. Small calls, of one sequence or a few, are the defaults: `attention`,
and `attend` with its top 32. Prints microseconds and, last, the ratios headloom / peer of medians,
with the quartiles of the ratios of neighbouring runs.

    python benchmarks/bench_short_sequences.py
"""

from __future__ import annotations

import argparse
import time
from collections.abc import Callable

import torch
from torch.nn.functional import scaled_dot_product_attention

import headloom
from side_by_side import in_turn, ratio

#: Small calls: batch, heads, tokens, depth; and whether they are padded.
SMALL = (
    ((1, 12, 128, 64), False),
    ((1, 12, 256, 64), False),
    ((1, 4, 64, 32), False),
    ((1, 8, 16, 32), False),
    ((1, 8, 1, 32), False),
    ((8, 8, 32, 32), True),
    ((64, 8, 16, 32), True),
)


def main() -> None:
    """Run and print."""
    parser = argparse.ArgumentParser(description=__doc__.splitlines()[0])
    parser.add_argument("--threads", type=int, default=2)
    parser.add_argument("--processor-time", action="store_true", help="one thread, on a busy host")
    options = parser.parse_args()
    torch.set_num_threads(1 if options.processor_time else options.threads)
    clock = time.thread_time if options.processor_time else time.perf_counter
    torch.manual_seed(0)
    with torch.no_grad():
        for depth in (32, 64):
            for length in (32, 64, 128):
                measure((64, 8, length, depth), padded=True, repeats=25, clock=clock)
        for shape, padded in SMALL:
            measure(shape, padded=padded, repeats=400, clock=clock)


def measure(
    shape: tuple[int, int, int, int], *, padded: bool, repeats: int, clock: Callable[[], float]
) -> None:
    """One line."""
    batch, heads, length, depth = shape
    inputs = [torch.randn(shape) for _ in range(3)]
    lengths = torch.randint(1, length + 1, (batch,))
    dense = (torch.arange(length) < lengths[:, None])[:, None, None, :] if padded else None
    mask = headloom.padding(lengths) if padded else None

    def peer() -> object:
        return scaled_dot_product_attention(*inputs, attn_mask=dense)

    def output() -> object:
        return headloom.attention(*inputs, mask=mask)

    def graph() -> object:
        return headloom.attend(*inputs, mask=mask, keep=headloom.Top(32))

    theirs, plain, captured = in_turn(peer, output, graph, repeats=repeats, clock=clock)
    print(
        f"{batch:2} x {heads:2} heads, N={length:4}, depth {depth}, "
        f"{'padded' if padded else 'whole '}  sdpa {1e6 * sorted(theirs)[repeats // 2]:8.1f} us  "
        f"attention {ratio(plain, theirs)}  attend {ratio(captured, theirs)}",
        flush=True,
    )


if __name__ == "__main__":
    main()
