"""Claim: batches of short padded sequences are not slower than the peer's.

Peer: torch's scaled_dot_product_attention with a bool mask. 64 sequences of 8 heads.
Prints milliseconds and the ratio weft / peer, last.

    python benchmarks/bench_short_sequences.py
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
    for depth in (32, 64):
        for length in (32, 64, 128):
            inputs = [torch.randn(64, 8, length, depth) for _ in range(3)]
            lengths = torch.randint(1, length + 1, (64,))
            dense = (torch.arange(length) < lengths[:, None])[:, None, None, :]
            mask = weft.padding(lengths)

            def peer() -> object:
                return scaled_dot_product_attention(*inputs, attn_mask=dense)  # noqa: B023

            def ours() -> object:
                return weft.attention(*inputs, mask=mask, backend="native")  # noqa: B023

            one, other = side_by_side(peer, ours, repeats=25)
            print(
                f"depth {depth} N={length:4} sdpa {one * 1e3:7.2f} ms  weft {other * 1e3:7.2f} ms  "
                f"ratio {other / one:.2f}",
                flush=True,
            )


if __name__ == "__main__":
    main()
