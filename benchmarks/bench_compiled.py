"""Claim: in a program that torch.compile made, attention is the kernels' still, at their price.

Peer: torch's scaled_dot_product_attention, compiled likewise. 12 heads, depth 64, causal: the
output alone, and with the exact top 32 of every row; forward, and with the backward pass of the
output. Beside them what a compiled call of headloom was before it had operators: torch's
operations, which the compiler joins (`backend="torch"`). Prints seconds and, last on each line, the
ratios to the peer, with the quartiles of the rounds. Needs g++, as torch's compiler does.

    python benchmarks/bench_compiled.py --lengths 1024 4096
"""

from __future__ import annotations

import argparse
from collections.abc import Callable

import torch
from torch import Tensor
from torch.nn.functional import scaled_dot_product_attention

import headloom
from side_by_side import in_turn, ratio

Call = Callable[[Tensor, Tensor, Tensor], Tensor]


def peer(queries: Tensor, keys: Tensor, values: Tensor) -> Tensor:
    return scaled_dot_product_attention(queries, keys, values, is_causal=True)


def output(queries: Tensor, keys: Tensor, values: Tensor) -> Tensor:
    return headloom.attention(queries, keys, values, mask=headloom.causal())


def graph(queries: Tensor, keys: Tensor, values: Tensor) -> Tensor:
    found, edges = headloom.attend(
        queries, keys, values, mask=headloom.causal(), keep=headloom.Top(32)
    )
    return found + edges.entropy.detach()[..., None] * 0


def by_torch(queries: Tensor, keys: Tensor, values: Tensor) -> Tensor:
    return headloom.attention(queries, keys, values, mask=headloom.causal(), backend="torch")


def main() -> None:
    """Run and print."""
    parser = argparse.ArgumentParser(description=(__doc__ or "").partition("\n")[0])
    parser.add_argument("--lengths", type=int, nargs="+", default=[1024, 4096])
    parser.add_argument("--threads", type=int, default=2)
    parser.add_argument("--rounds", type=int, default=10)
    options = parser.parse_args()
    torch.set_num_threads(options.threads)
    for length in options.lengths:
        for backward in (False, True):
            measure(length, backward, options.rounds)


def measure(length: int, backward: bool, rounds: int) -> None:
    """One line."""
    torch.manual_seed(0)
    given = [torch.randn(1, 12, length, 64, requires_grad=backward) for _ in range(3)]

    def runs(call: Call) -> Callable[[], object]:
        program = torch.compile(call, fullgraph=True)
        if not backward:
            return lambda: program(*given)
        return lambda: torch.autograd.grad(program(*given).sum(), given)

    calls = {"attention": output, "attend": graph, "torch's operations": by_torch}
    one, *others = in_turn(*map(runs, (peer, *calls.values())), repeats=rounds)
    shown = "  ".join(
        f"{name} {ratio(ours, one)}" for name, ours in zip(calls, others, strict=True)
    )
    print(
        f"N={length:6} {'forward and backward' if backward else 'forward':20}  "
        f"sdpa {sorted(one)[len(one) // 2] * 1e3:8.1f} ms  {shown}",
        flush=True,
    )


if __name__ == "__main__":
    main()
