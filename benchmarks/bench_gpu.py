"""Claim: on a GPU, output and exact graph cost little more than fused attention, in linear memory.

Peers: torch's FlashAttention (of float32 its efficient attention), which returns the output alone,
and what torch chooses by itself (on Hopper cuDNN's); FlexAttention with lse and largest scores;
eager attention with `topk`, which forms the weights, where these fit; plain torch in blocks, which
headloom runs where the kernels do not serve. Prints milliseconds, and ratios to FlashAttention
last.

    python benchmarks/bench_gpu.py                      # needs a CUDA device and its extra gpu
    python benchmarks/bench_gpu.py --lengths 4096 131072 --depths 64 128
"""

from __future__ import annotations

import argparse
import statistics
import sys
from collections.abc import Callable

import torch
from torch.nn.functional import scaled_dot_product_attention

import headloom

#: Bytes of weights that eager attention may form.
EAGER = 8 * 2**30


def main() -> None:
    """Run and print."""
    parser = argparse.ArgumentParser(description=__doc__)
    lengths = [4096, 16384, 65536, 131072]
    parser.add_argument("--lengths", type=int, nargs="+", default=lengths)
    parser.add_argument("--depths", type=int, nargs="+", default=[64, 128])
    parser.add_argument("--heads", type=int, default=12)
    parser.add_argument("--keep", type=int, default=32)
    parser.add_argument("--repeats", type=int, default=10)
    parser.add_argument("--flex", action="store_true", help="FlexAttention too, compiled first")
    parser.add_argument("--dtype", choices=["float32", "bfloat16"], default="bfloat16")
    options = parser.parse_args()
    if not torch.cuda.is_available():
        sys.exit("bench_gpu: no CUDA device here; run it where torch.cuda.is_available() is true.")
    print(torch.cuda.get_device_name(), options.dtype, f"top {options.keep}, {options.heads} heads")
    for depth in options.depths:
        for length in options.lengths:
            for causal in (False, True):
                measure(options, length, depth, causal)


def measure(options: argparse.Namespace, length: int, depth: int, causal: bool) -> None:
    """One line."""
    dtype = getattr(torch, options.dtype)
    shape = (1, options.heads, length, depth)
    queries, keys, values = (torch.randn(shape, device="cuda", dtype=dtype) for _ in range(3))
    mask = headloom.causal() if causal else None
    top = headloom.Top(options.keep)

    def chosen() -> object:
        return scaled_dot_product_attention(queries, keys, values, is_causal=causal)

    def flash() -> object:
        # As torch calls them; to choose by its context manager takes longer than short calls do.
        if dtype == torch.float32:  # FlashAttention has none
            efficient = torch.ops.aten._scaled_dot_product_efficient_attention
            return efficient(queries, keys, values, None, False, 0.0, causal)
        return torch.ops.aten._scaled_dot_product_flash_attention(
            queries, keys, values, 0.0, causal
        )

    def output() -> object:
        return headloom.attend(
            queries, keys, values, mask=mask, keep=headloom.Top(0), backend="triton"
        )

    def kernel() -> object:
        return headloom.attend(queries, keys, values, mask=mask, keep=top, backend="triton")

    def blocks() -> object:
        return headloom.attend(queries, keys, values, mask=mask, keep=top, backend="torch")

    def eager() -> object:
        scores = queries @ keys.transpose(-1, -2) * depth**-0.5
        if causal:
            hidden = torch.ones(length, length, dtype=torch.bool, device="cuda").triu(1)
            scores.masked_fill_(hidden, -torch.inf)
        weights = scores.softmax(-1)
        return weights @ values, weights.topk(options.keep, -1)

    runs: dict[str, Callable[[], object]] = {"flash": flash, "chosen": chosen}
    runs |= {"attend(Top(0))": output, "attend": kernel}
    if options.flex:
        runs["flex"] = flex(queries, keys, values, causal)
    if length <= 16384:
        runs["blocks"] = blocks
    if 3 * options.heads * length**2 * dtype.itemsize <= EAGER:
        runs["eager"] = eager
    times, memory = in_turn(runs, options.repeats)
    others = [name for name in times if name != "flash"]
    ratios = "  ".join(f"{name} {times[name] / times['flash']:.2f}" for name in others)
    held = ", ".join(f"{name} {size:,.0f}" for name, size in memory.items())
    print(
        f"N={length:7} depth {depth:3} {'causal' if causal else 'full  '} "
        f"flash {times['flash']:9.3f} ms  extra MB: {held}  ratios: {ratios}",
        flush=True,
    )


def flex(
    queries: torch.Tensor, keys: torch.Tensor, values: torch.Tensor, causal: bool
) -> Callable[[], object]:
    """FlexAttention as torch compiles it, with what it can say of each row."""
    from torch.nn.attention.flex_attention import AuxRequest, create_block_mask, flex_attention

    length = queries.shape[2]
    mask = None
    if causal:
        mask = create_block_mask(
            lambda batch, head, row, key: row >= key, None, None, length, length, device="cuda"
        )
    compiled = torch.compile(flex_attention, dynamic=False)
    wanted = AuxRequest(lse=True, max_scores=True)
    return lambda: compiled(queries, keys, values, block_mask=mask, return_aux=wanted)


def in_turn(
    runs: dict[str, Callable[[], object]], repeats: int = 10
) -> tuple[dict[str, float], dict[str, float]]:
    """Median milliseconds of each, taken in turn, and the megabytes that each adds."""
    milliseconds: dict[str, list[float]] = {name: [] for name in runs}
    memory = {}
    for name, run in runs.items():
        run()
        torch.cuda.synchronize()
        before = torch.cuda.memory_allocated()
        torch.cuda.reset_peak_memory_stats()
        run()
        torch.cuda.synchronize()
        memory[name] = (torch.cuda.max_memory_allocated() - before) / 2**20
    for _ in range(repeats):
        for name, run in runs.items():
            first, last = (torch.cuda.Event(enable_timing=True) for _ in range(2))
            first.record()
            run()
            last.record()
            torch.cuda.synchronize()
            milliseconds[name].append(first.elapsed_time(last))
    return {name: statistics.median(times) for name, times in milliseconds.items()}, memory


if __name__ == "__main__":
    main()
