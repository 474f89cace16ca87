"""Claim: questions to the whole matrix cost about one attention call each, in linear memory.

Peer: the forward pass of torch's scaled_dot_product_attention. 8 heads, depth 64, float32. Each
time of headloom includes making the AttentionMatrix. Prints the ratio headloom / peer, last; and,
with --spectrum, the seconds that SciPy takes for the 8 leading singular values of one long head.

    python benchmarks/bench_matrix.py --lengths 4096 16384 --spectrum 32768
"""

from __future__ import annotations

import argparse
import time

import scipy.sparse.linalg
import torch
from torch.nn.functional import scaled_dot_product_attention

from headloom.mechanism.matrix.attention_matrix import AttentionMatrix
from side_by_side import extra_memory, side_by_side


def main() -> None:
    """Run and print."""
    parser = argparse.ArgumentParser(description=__doc__)
    parser.add_argument("--lengths", type=int, nargs="+", default=[4096])
    parser.add_argument("--spectrum", type=int)
    options = parser.parse_args()
    torch.set_num_threads(2)
    torch.manual_seed(0)
    for length in options.lengths:
        queries, keys, values = (torch.randn(8, length, 64) for _ in range(3))
        questions = {
            "received": lambda: AttentionMatrix(queries, keys).received(),  # noqa: B023
            "T @ values": lambda: AttentionMatrix(queries, keys).T @ values,  # noqa: B023
            "entropy": lambda: AttentionMatrix(queries, keys).entropy(),  # noqa: B023
            "reciprocity": lambda: AttentionMatrix(queries, keys).reciprocity(),  # noqa: B023
        }

        def peer() -> object:
            inputs = (queries, keys, values)  # noqa: B023
            return scaled_dot_product_attention(*(tensor[None] for tensor in inputs))

        one, *others = side_by_side(peer, *questions.values(), repeats=3)
        for (name, ask), seconds in zip(questions.items(), others, strict=True):
            print(
                f"N={length:6} sdpa {one * 1e3:7.1f} ms  {name:12} {extra_memory(ask):5.0f} MB more"
                f"  ratio {seconds / one:.2f}",
                flush=True,
            )
    if options.spectrum:
        queries, keys = torch.randn(2, 1, options.spectrum, 64)
        start = time.perf_counter()
        head = AttentionMatrix(queries, keys).head(0)
        found = scipy.sparse.linalg.svds(head, k=8, return_singular_vectors=False, tol=1e-3)
        seconds = time.perf_counter() - start
        print(f"N={options.spectrum} 8 singular values {sorted(found)[::-1]} in {seconds:.1f} s")


if __name__ == "__main__":
    main()
