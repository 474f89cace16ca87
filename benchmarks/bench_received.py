"""Claim: what each key receives comes in the same pass, for at most 1.35 of `attend` without it.

12 heads, depth 64, the strongest 32 edges of each query. Beside `attend` with and without
`received=True` runs what people do today: the output by torch's scaled_dot_product_attention, and
the column sums by softmax(Q K^T) in blocks of rows. Then the peak of memory beyond what is held
before the call, each in turn, and the largest difference from column sums in float64. Seconds are
those of this thread's processor time: on a machine that others share, they are what repeats.

    python benchmarks/bench_received.py --lengths 4096 8192
    python benchmarks/bench_received.py --lengths 4096 --dtype bfloat16
"""

from __future__ import annotations

import argparse
import statistics
import time
from collections.abc import Callable

import torch
from torch import Tensor
from torch.nn.functional import scaled_dot_product_attention

import headloom
from headloom.mechanism.backends import compiled
from side_by_side import extra_memory

#: Rows of weights that are formed at a time by who sums them eagerly.
ROWS = 256


def column_sums(queries: Tensor, keys: Tensor, causal: bool, rows: int = ROWS) -> Tensor:
    """By softmax, a block of rows at a time: of (heads, positions, depth), (heads, keys)."""
    heads, length, depth = keys.shape
    sums = torch.zeros(heads, length, dtype=queries.dtype)
    for first in range(0, queries.shape[1], rows):
        some = queries[:, first : first + rows]
        scores = (some @ keys.mT) * depth**-0.5
        if causal:
            ahead = torch.arange(length) > torch.arange(first, first + some.shape[1])[:, None]
            scores.masked_fill_(ahead, -torch.inf)
        sums += scores.softmax(-1).sum(1)
    return sums


def main() -> None:
    """Run and print."""
    parser = argparse.ArgumentParser(description=__doc__)
    parser.add_argument("--lengths", type=int, nargs="+", default=[4096, 8192])
    parser.add_argument("--dtype", choices=["float32", "bfloat16"], default="float32")
    parser.add_argument("--repeats", type=int, default=5)
    options = parser.parse_args()
    torch.set_num_threads(1)
    torch.manual_seed(0)
    print(f"{options.dtype}, 1 thread, kernels: {compiled.chosen_instruction_set()}")
    for length in options.lengths:
        for causal in (False, True):
            measure(length, causal, getattr(torch, options.dtype), options.repeats)


def measure(length: int, causal: bool, dtype: torch.dtype, repeats: int) -> None:
    """One line."""
    queries, keys, values = (torch.randn(1, 12, length, 64).to(dtype) for _ in range(3))
    mask = headloom.causal() if causal else None

    def attend(received: bool | headloom.LastQueries = False) -> headloom.AttentionGraph:
        return headloom.attend(
            queries, keys, values, mask=mask, received=received, backend="native"
        )[1]

    def today() -> Tensor:
        scaled_dot_product_attention(queries, keys, values, is_causal=causal)
        return column_sums(queries[0].float(), keys[0].float(), causal)

    runs: dict[str, Callable[[], object]] = {
        "attend": attend,
        "received": lambda: attend(True),
        "window": lambda: attend(headloom.LastQueries(64)),
        "today": today,
    }
    seconds = in_turn(list(runs.values()), repeats)
    plain, received, window, eager = (statistics.median(times) for times in seconds)
    ratios = sorted(b / a for a, b in zip(seconds[0], seconds[1], strict=True))
    memory = [extra_memory(run) for run in runs.values()]
    head = slice(0, 1)
    exact = column_sums(queries[0, head].double(), keys[0, head].double(), causal)
    found = attend(True).received
    assert found is not None
    error = float((found[0, head].double() - exact).abs().max() / exact.abs().max())
    print(
        f"N={length:6} {'causal' if causal else 'full  '} attend {plain * 1e3:7.0f} ms, received "
        f"{received / plain:.2f} of it ({ratios[0]:.2f} to {ratios[-1]:.2f}), with a window of 64 "
        f"{window / plain:.2f}; SDPA and eager sums {eager / plain:.2f}: received / today "
        f"{received / eager:.2f}; memory {memory[0]:.0f}, {memory[1]:.0f}, {memory[2]:.0f}, "
        f"{memory[3]:.0f} MB; error {error:.0e}",
        flush=True,
    )


def in_turn(runs: list[Callable[[], object]], repeats: int) -> list[list[float]]:
    """Processor seconds of each run, one after the other, again and again."""
    seconds: list[list[float]] = [[] for _ in runs]
    for number in range(repeats + 1):
        for times, run in zip(seconds, runs, strict=True):
            start = time.thread_time()
            run()
            if number:  # the first time is for caches and memory
                times.append(time.thread_time() - start)
    return seconds


if __name__ == "__main__":
    main()
