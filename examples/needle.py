"""A needle in a haystack, in a model trained here: which heads fetch it, and are they needed?

    python examples/needle.py

Trains the two-layer model of examples/repeats.toml (a minute; not again where it is there), whose
training sequences repeat as a whole and from their start. It is asked something else here: symbols
at random, the haystack, with eight among them, the needle, at some depth; then the first of the
eight again, the question. Right is who writes the other seven. Prints how many are, by depth; the
retrieval score of each head (Wu et al. 2024); and what is left when heads are taken away, those
that retrieve best or least.
"""

from __future__ import annotations

import argparse
from collections.abc import Sequence
from dataclasses import dataclass
from pathlib import Path

import torch
from torch import Tensor, nn

import headloom
from headloom.analysis.effects.ablation import Ablation, ablate
from headloom.analysis.heads.retrieval import Needle, needle_mass, retrieval_score
from headloom.analysis.heads.scores import HeadScores
from headloom.training.config import load_config
from headloom.training.inference import TrainedRun, open_run
from headloom.training.loop import train
from headloom.training.progress import Callback
from headloom.training.tasks.language import START, SYMBOLS

CONFIG = Path(__file__).parent / "repeats.toml"

#: Symbols of a haystack, needle included; of a needle, question included.
HAYSTACK, NEEDLE = 48, 8
#: Where needles begin, as shares of the way to the last place that has room.
DEPTHS = (0.0, 0.25, 0.5, 0.75, 1.0)


@dataclass(frozen=True)
class Texts:
    """Haystacks with a question and its answer, all with the needle at one depth.

    tokens: ids, (texts, 1 + HAYSTACK + NEEDLE); needle: where its answer is found and written.
    """

    tokens: Tensor
    needle: Needle


def texts(run: TrainedRun, depth: float, count: int) -> Texts:
    """Texts that depend on the depth alone."""
    generator = torch.Generator().manual_seed(round(100 * depth))
    symbols = torch.tensor(run.vocabulary.encode(SYMBOLS))
    order = torch.rand(count, len(symbols), generator=generator).argsort(-1)
    hay = symbols[order[:, :HAYSTACK]]
    place = round(depth * (HAYSTACK - NEEDLE))
    start = torch.full((count, 1), run.vocabulary.encode(START)[0])
    tokens = torch.cat((start, hay, hay[:, place : place + NEEDLE]), 1)
    # The first symbol is given; the others are to be found, from one place further on.
    return Texts(tokens, Needle(1 + place + 1, 1 + HAYSTACK + 1, NEEDLE - 1))


def right(model: nn.Module, asked: Texts) -> Tensor:
    """Which symbols of each answer are foretold, (texts, NEEDLE - 1)."""
    with torch.no_grad():
        logits = model(asked.tokens[:, :-1])
    answer = asked.needle.answer
    return logits[:, answer - 1 :].argmax(-1) == asked.tokens[:, answer:]


def retrieving(run: TrainedRun, asked: Sequence[Texts]) -> dict[tuple[int, int], tuple[float, ...]]:
    """Of each head its retrieval score, its mass on the needle's symbol, and chance's mass."""
    copied: dict[int, list[Tensor]] = {}
    mass: dict[int, HeadScores] = {}
    for one in asked:
        traces = headloom.trace(run.model, one.tokens, tokenizer=run.vocabulary)
        for trace in traces if isinstance(traces, list) else [traces]:
            for number, layer in enumerate(trace.layers):
                copied.setdefault(number, []).append(retrieval_score(layer, one.needle))
                found = needle_mass(layer, one.needle)
                mass[number] = mass[number] + found if number in mass else found
    found = {}
    for number, scores in copied.items():
        for head, score in enumerate(torch.stack(scores).mean(0).tolist()):
            of_mass = (float(mass[number].score[head]), float(mass[number].chance[head]))
            found[number, head] = (score, *of_mass)
    return found


def without(run: TrainedRun, asked: Sequence[Texts], ranked: Sequence[tuple[int, int]]) -> Ablation:
    """Which share of symbols is right without the n first of the ranked heads, and the n last."""

    def accuracy() -> float:
        return float(torch.cat([right(run.model, one) for one in asked]).float().mean())

    counts = range(1, len(ranked) // 2 + 1)
    groups = [*(ranked[:count] for count in counts), *(ranked[-count:] for count in counts)]
    return ablate(run.model, accuracy, kind="mean", heads=groups)


def main() -> None:
    """See the module."""
    parser = argparse.ArgumentParser(description=__doc__.splitlines()[0])
    parser.add_argument("--run", type=Path, default=Path("runs/repeats"), help="where the run is")
    parser.add_argument("--texts", type=int, default=200, help="of each depth")
    parser.add_argument("--steps", type=int, help="of the training, instead of the example's")
    given = parser.parse_args()
    changed = []
    if given.steps is not None:
        changed = [f"training.max_steps={given.steps}", f"training.warmup={given.steps // 10}"]
    train(load_config(CONFIG, changed), given.run, Callback())
    run = open_run(given.run)
    asked = [texts(run, depth, given.texts) for depth in DEPTHS]

    print(f"{HAYSTACK} symbols, a needle of {NEEDLE}; {given.texts} texts of each depth.\n")
    few = [Texts(one.tokens[:20], one.needle) for one in asked]
    print("depth   symbols right   whole needles   best retrieval score")
    for depth, one, some in zip(DEPTHS, asked, few, strict=True):
        hits = right(run.model, one)
        shares = float(hits.float().mean()), float(hits.all(1).float().mean())
        best = max(score for score, _, _ in retrieving(run, [some]).values())
        print(f"{depth:5.0%}   {shares[0]:13.3f}   {shares[1]:13.3f}   {best:20.3f}")

    scores = retrieving(run, few)
    ranked = sorted(scores, key=lambda head: scores[head], reverse=True)
    print("\nhead   retrieval   mass on the needle's symbol   by chance")
    for layer, head in ranked:
        score, mass, chance = scores[layer, head]
        print(f"{layer}.{head}    {score:9.3f}   {mass:27.3f}   {chance:9.3f}")

    found = without(run, asked, ranked)
    print(f"\nwithout               symbols right\nnothing               {found.baseline:13.3f}")
    for effect in found.effects:
        heads = " ".join(f"{layer}.{head}" for layer, head in effect.heads)
        print(f"{heads:20}  {effect.value:13.3f}")


if __name__ == "__main__":
    main()
