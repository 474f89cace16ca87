"""Claim: a training step through attention takes at most 0.6 of the peer's time (matrix unit).

Peer: torch's scaled_dot_product_attention, forward and backward. 12 heads, depth 64. Prints
milliseconds, then the ratio headloom / peer of ten rounds in turn, with the quartiles of the
rounds'.

    python benchmarks/bench_backward.py [--dtype bfloat16] [--lengths 512 4096] [--threads 1]
"""

from __future__ import annotations

import argparse
import statistics
import time

import torch
from torch.nn.functional import scaled_dot_product_attention

import headloom
from side_by_side import in_turn, ratio


def main() -> None:
    """Run and print."""
    parser = argparse.ArgumentParser(description=__doc__)
    parser.add_argument("--dtype", choices=("float32", "bfloat16"), default="float32")
    parser.add_argument("--lengths", type=int, nargs="+", default=[512, 4096])
    parser.add_argument("--rounds", type=int, default=10)
    parser.add_argument("--threads", type=int, default=2, help="1: by processor time")
    options = parser.parse_args()
    torch.set_num_threads(options.threads)
    torch.manual_seed(0)
    dtype = getattr(torch, options.dtype)
    clock = time.thread_time if options.threads == 1 else time.perf_counter
    for length in options.lengths:
        for causal in (False, True):
            inputs = [torch.randn(1, 12, length, 64).to(dtype).requires_grad_() for _ in range(3)]
            gradient = torch.randn(1, 12, length, 64).to(dtype)
            mask = headloom.causal() if causal else None

            def peer() -> object:
                output = scaled_dot_product_attention(*inputs, is_causal=causal)  # noqa: B023
                return torch.autograd.grad(output, inputs, gradient)  # noqa: B023

            def ours() -> object:
                output = headloom.attention(*inputs, mask=mask, backend="native")  # noqa: B023
                return torch.autograd.grad(output, inputs, gradient)  # noqa: B023

            one, other = in_turn(peer, ours, repeats=options.rounds, clock=clock)
            print(
                f"N={length:5} {'causal' if causal else 'full  '} "
                f"sdpa {statistics.median(one) * 1e3:8.1f} ms  "
                f"headloom {statistics.median(other) * 1e3:8.1f} ms  ratio {ratio(other, one)}",
                flush=True,
            )


if __name__ == "__main__":
    main()
