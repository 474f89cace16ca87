"""Claim: Shaw's relative positions cost at most 1.35 of our own plain attention.

Peers: plain attention of headloom, and the formulation of tensor2tensor (the paper's equation 5),
which gathers an n x n x depth tensor of embeddings. 8 heads, depth 64, clip 16, keys and values
relative. Prints the ratios Shaw / plain and Shaw / tensor2tensor, last.

    python benchmarks/bench_shaw.py
"""

from __future__ import annotations

import math

import torch
from torch import Tensor

import headloom
from side_by_side import extra_memory, side_by_side


def tensor2tensor(
    q: Tensor, k: Tensor, v: Tensor, key_table: Tensor, value_table: Tensor
) -> Tensor:
    """Equation 5: products with embeddings gathered for every pair, heads and batch in one."""
    length, clip = q.shape[2], len(key_table) // 2
    position = torch.arange(length)
    index = (position[None, :] - position[:, None]).clamp(-clip, clip) + clip
    scores = q @ k.transpose(-2, -1) + torch.einsum("bhid,ijd->bhij", q, key_table[index])
    weights = (scores / math.sqrt(q.shape[3])).softmax(-1)
    return weights @ v + torch.einsum("bhij,ijd->bhid", weights, value_table[index])


def main() -> None:
    """Run and print."""
    torch.set_num_threads(2)
    torch.manual_seed(0)
    length = 2048
    q, k, v = (torch.randn(1, 8, length, 64) for _ in range(3))
    key_table, value_table = torch.randn(2, 33, 64)
    relative = headloom.Shaw(key_table, value_table)

    def shaw() -> Tensor:
        return headloom.attention(q, k, v, relative=relative, backend="native")

    def literal() -> Tensor:
        return tensor2tensor(q, k, v, key_table, value_table)

    plain, ours, peer = side_by_side(
        lambda: headloom.attention(q, k, v, backend="native"), shaw, literal, repeats=3
    )
    print(
        f"N={length} plain {plain * 1e3:.1f} ms, Shaw {ours * 1e3:.1f} ms and "
        f"{extra_memory(shaw):.0f} MB more, tensor2tensor {peer * 1e3:.1f} ms and "
        f"{extra_memory(literal):.0f} MB more  ratios {ours / plain:.2f} {ours / peer:.3f}"
    )


if __name__ == "__main__":
    main()
