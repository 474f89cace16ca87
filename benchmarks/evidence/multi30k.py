"""Claim: on 29,000 pairs, a small Transformer translates as well as much larger systems.

    python benchmarks/evidence/multi30k.py --folder PATH

Trains examples/multi30k.toml from several seeds and translates test_2016_flickr, beam 5. Finished
trainings stay in --runs and are not trained again; their figures in figures/.

Source: Wu et al. 2021, "Good for Misconceived Reasons: An Empirical Revisiting on the Need for
Visual Context in Multimodal Machine Translation", table 1: Transformer-Tiny, text alone, 41.02 BLEU
(tokenised, lower case) on Test2016 of English to German.
"""

from __future__ import annotations

import argparse
from functools import partial
from pathlib import Path

from record import Claim, mean_and_spread, record
from runs import ROOT, Figures, results_of, trained, value_of

MEASURES = {
    "bleu_lowercase_tokenised": "BLEU, lower case",
    "bleu": "BLEU, cased",
    "chrf": "chrF",
    "ter": "TER",
}


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__.splitlines()[0])
    parser.add_argument("--folder", type=Path, required=True, help="of Multi30k, task 1 raw")
    parser.add_argument("--runs", type=Path, default=Path("runs/evidence"))
    parser.add_argument("--seeds", type=int, nargs="+", default=[1, 2, 3])
    parser.add_argument("--again", action="store_true", help="measure anew what is in figures/")
    options = parser.parse_args()
    kept = Figures("multi30k", again=options.again)
    config = ROOT / "examples" / "multi30k.toml"

    def measure(seed: int, changes: list[str]) -> dict[str, float]:
        run, seconds = trained(options.runs / f"multi30k-{seed}", config, changes)
        results = results_of(run, beam=5)
        return {"seconds": seconds, **{name: value_of(results, name) for name in MEASURES}}

    values: dict[str, list[float]] = {name: [] for name in [*MEASURES, "seconds"]}
    for seed in options.seeds:
        changes = [f"task.folder={options.folder}", f"training.seed={seed}"]
        found = kept.of(f"multi30k-{seed}", config, changes, partial(measure, seed, changes))
        for name, of in values.items():
            of.append(found[name])
        print(f"seed {seed}:", found, flush=True)
    minutes = [seconds / 60 for seconds in values["seconds"]]
    measures = [
        f"- {label}: {mean_and_spread(values[name], digits=2)}" for name, label in MEASURES.items()
    ]
    record(
        Claim(
            name="Multi30k: a small Transformer on 29,000 pairs",
            claim="A Transformer of some two million parameters, without pretraining or images, "
            "translates image captions as well as systems many times its size.",
            source="Wu et al. 2021, table 1 (Transformer-Tiny, text alone), "
            "https://aclanthology.org/2021.acl-long.480",
            published="41.02 BLEU, tokenised, lower case, English to German, test_2016_flickr",
            ours=f"{mean_and_spread(values['bleu_lowercase_tokenised'], 'BLEU', 2)}, lower case; "
            f"{mean_and_spread(minutes, 'minutes', 0)} of training each",
            command="python benchmarks/evidence/multi30k.py --folder PATH",
            details="\n".join(
                [
                    "With a beam of 5 (`headloom evaluate RUN` prints the sacreBLEU signatures):",
                    "",
                    *measures,
                ]
            ),
            seconds=kept.seconds(),
            megabytes=kept.megabytes(),
            machine=kept.machine(),
        )
    )


if __name__ == "__main__":
    main()
