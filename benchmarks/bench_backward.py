"""Claim: a training step through attention takes at most 0.8 of the peer's time.

Peer: torch's scaled_dot_product_attention, forward and backward. 12 heads, depth 64, float32.
Prints milliseconds and the ratio weft / peer, last.

    python benchmarks/bench_backward.py
"""

from __future__ import annotations

import torch
from torch.nn.functional import scaled_dot_product_attention

import weft
from side_by_side import side_by_side


def main() -> None:
    """Run and print."""
    torch.set_num_threads(2)
    torch.manual_seed(0)
    for length in (512, 4096):
        for causal in (False, True):
            inputs = [torch.randn(1, 12, length, 64, requires_grad=True) for _ in range(3)]
            gradient = torch.randn(1, 12, length, 64)
            mask = weft.causal() if causal else None

            def peer() -> object:
                output = scaled_dot_product_attention(*inputs, is_causal=causal)  # noqa: B023
                return torch.autograd.grad(output, inputs, gradient)  # noqa: B023

            def ours() -> object:
                output = weft.attention(*inputs, mask=mask, backend="native")  # noqa: B023
                return torch.autograd.grad(output, inputs, gradient)  # noqa: B023

            one, other = side_by_side(peer, ours)
            print(
                f"N={length:5} {'causal' if causal else 'full  '} sdpa {one * 1e3:8.1f} ms  "
                f"weft {other * 1e3:8.1f} ms  ratio {other / one:.2f}",
                flush=True,
            )


if __name__ == "__main__":
    main()
