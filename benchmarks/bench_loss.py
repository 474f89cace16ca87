"""Claim: in bfloat16, the loss of the last map and its gradients take less than half the time.

Peer: torch's linear map and cross_entropy with label smoothing, forward and backward, in float32.
headloom computes the same in float32 in pieces, and in bfloat16 without logits in memory, where the
processor has such products. All in turn. Prints medians, what each takes in memory, and the ratios,
headloom / peer, last.

    python benchmarks/bench_loss.py                   # 2,048 rows of width 128, 10,000 choices
    python benchmarks/bench_loss.py --rows 1024 --width 512 --choices 32000
"""

from __future__ import annotations

import argparse
from collections.abc import Callable

import torch

from headloom.mechanism.linear import Products, products
from headloom.training.loss import projected_loss
from side_by_side import extra_memory, side_by_side


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__.splitlines()[0])
    parser.add_argument("--rows", type=int, default=2_048)
    parser.add_argument("--width", type=int, default=128)
    parser.add_argument("--choices", type=int, default=10_000)
    parser.add_argument("--threads", type=int, default=2)
    options = parser.parse_args()
    torch.set_num_threads(options.threads)
    torch.manual_seed(0)
    x = torch.randn(options.rows, options.width, requires_grad=True)
    matrix = (torch.randn(options.choices, options.width) * 0.1).requires_grad_()
    targets = torch.randint(options.choices, (options.rows,))

    def peer() -> tuple[torch.Tensor, ...]:
        loss = torch.nn.functional.cross_entropy(
            x @ matrix.T, targets, label_smoothing=0.1, reduction="sum"
        )
        return torch.autograd.grad(loss, [x, matrix])

    def ours(kind: Products) -> Callable[[], tuple[torch.Tensor, ...]]:
        def run() -> tuple[torch.Tensor, ...]:
            with products(kind):
                loss = projected_loss(x, matrix, None, targets, smoothing=0.1)
            return torch.autograd.grad(loss, [x, matrix])

        return run

    sides = {"torch": peer, "headloom": ours("float32"), "headloom, bfloat16": ours("bfloat16")}
    seconds = dict(zip(sides, side_by_side(*sides.values(), repeats=9), strict=True))
    for name, run in sides.items():
        memory = extra_memory(run)
        print(f"{name:<15}{1e3 * seconds[name]:8.1f} ms {memory:8.0f} MB more")
    for name in ("headloom", "headloom, bfloat16"):
        print(f"ratio {seconds[name] / seconds['torch']:.2f} ({name} / torch)")


if __name__ == "__main__":
    main()
