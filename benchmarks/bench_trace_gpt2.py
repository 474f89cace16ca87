"""Claim: a trace on disk of a model of GPT-2 small's shape costs 1.10 x its plain forward.

Peer: the same model of Transformers, random weights, fused attention (sdpa), nothing caught.
Headloom keeps the 32 strongest edges of every query of 12 layers of 12 heads, verified, and writes
them and the rows layer by layer (--queries-keys: those too). Each run is a process of its own, peer
and headloom in turn; prints the median seconds and the peak memory of each, and the ratios, with
their spread, last.

    python benchmarks/bench_trace_gpt2.py                  # N = 1024
    python benchmarks/bench_trace_gpt2.py --length 8192    # the claim
"""

from __future__ import annotations

import argparse

import torch
from torch import Tensor, nn

from plain_and_traced import main, parser


def load(settings: argparse.Namespace) -> tuple[nn.Module, Tensor]:
    """The model and random ids."""
    import transformers

    torch.manual_seed(1)
    config = transformers.GPT2Config(n_positions=max(settings.length, 1024))
    model = transformers.GPT2Model._from_config(config, attn_implementation="sdpa").eval()
    return model, torch.randint(0, config.vocab_size, (1, settings.length))


if __name__ == "__main__":
    main(parser(__doc__, repeats=5), load)
