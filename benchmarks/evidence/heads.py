"""Claim: several heads are better than one of the same size.

    python benchmarks/evidence/heads.py --folder PATH          (of Multi30k, task 1 raw)

Trains the same encoder-decoder of width 128 with 1, 2, 4 and 8 heads, of depth 128, 64, 32 and 16:
as many numbers to learn. Finished trainings stay in --runs and are not trained again; their figures
in figures/.

Source: Vaswani et al. 2017, table 3, rows A: one head loses 0.9 BLEU against 8, and too many lose
again (25.8 of the base model's, 24.9 with 1 head, 25.5 with 4, 25.8 with 16, 25.4 with 32).
"""

from __future__ import annotations

import argparse
from functools import partial
from pathlib import Path

from record import Claim, mean_and_spread, record
from runs import ROOT, Figures, captions, results_of, trained, value_of

HEADS = (1, 2, 4, 8)


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__.splitlines()[0])
    parser.add_argument("--folder", type=Path, required=True)
    parser.add_argument("--runs", type=Path, default=Path("runs/evidence"))
    parser.add_argument("--seeds", type=int, default=3)
    parser.add_argument("--steps", type=int, default=600)
    parser.add_argument("--again", action="store_true", help="measure anew what is in figures/")
    options = parser.parse_args()
    kept = Figures("heads", again=options.again)
    config = ROOT / "examples" / "multi30k.toml"

    def measure(name: str, changes: list[str]) -> dict[str, float]:
        run, seconds = trained(options.runs / name, config, changes)
        results = results_of(run, beam=5)
        return {"seconds": seconds, **{of: value_of(results, of) for of in ("bleu", "loss")}}

    bleu: dict[int, list[float]] = {heads: [] for heads in HEADS}
    loss: dict[int, list[float]] = {heads: [] for heads in HEADS}
    for seed in range(1, options.seeds + 1):
        for heads in HEADS:
            name = f"heads-{heads}-{seed}"
            changes = [f"model.heads={heads}", *captions(options.folder, seed, options.steps)]
            found = kept.of(name, config, changes, partial(measure, name, changes))
            bleu[heads].append(found["bleu"])
            loss[heads].append(found["loss"])
            print(f"{heads} heads, seed {seed}: {bleu[heads][-1]:.2f}", flush=True)
    rows = [
        f"| {heads} | {128 // heads} | {mean_and_spread(bleu[heads])} | "
        f"{mean_and_spread(loss[heads], digits=3)} |"
        for heads in HEADS
    ]
    differences = [four - one for four, one in zip(bleu[4], bleu[1], strict=True)]
    record(
        Claim(
            name="One head against several of the same size",
            claim="Several heads translate better than one that has as many numbers to learn.",
            source="Vaswani et al. 2017, table 3 (A), https://arxiv.org/abs/1706.03762",
            published="WMT 2014, development set: 24.9 BLEU with 1 head, 25.5 with 4, 25.8 with 8 "
            "and 16, 25.4 with 32",
            ours=f"Multi30k: 4 heads against 1: {mean_and_spread(differences, 'BLEU')}",
            command="python benchmarks/evidence/heads.py --folder PATH",
            seconds=kept.seconds(),
            megabytes=kept.megabytes(),
            machine=kept.machine(),
            details="\n".join(
                [
                    "| heads | depth | BLEU, cased | loss, nats |",
                    "|---|---|---|---|",
                    *rows,
                    "",
                    f"2 + 2 layers, {options.steps:,} steps each.",
                ]
            ),
        )
    )


if __name__ == "__main__":
    main()
