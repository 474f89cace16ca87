"""An induction circuit from random matrices: trained, found, named, and when it formed.

    python examples/induction.py

Trains a language model of two layers and one of one layer on sequences whose first half comes
again (examples/repeats.toml), tests both on the repeated half, says what each head does on
sequences that were never seen, takes heads away to see which are needed, and prints when they
formed. Pictures go to the run's folder. What was trained already is not trained again.
"""

from __future__ import annotations

import argparse
import time
from collections.abc import Callable
from pathlib import Path

import torch

import headloom
from headloom.analysis.effects.ablation import Ablation, ablate
from headloom.analysis.heads.formation import formation, trace_of_snapshot
from headloom.analysis.heads.roles import HeadRole, head_roles
from headloom.api.trace import Trace
from headloom.formats.history import History
from headloom.studio.pictures import save_picture, snapshots
from headloom.training.config import load_config
from headloom.training.inference import TrainedRun, open_run
from headloom.training.loop import train
from headloom.training.progress import Callback
from headloom.training.tasks import make_task
from headloom.training.tasks.language import SYMBOLS
from headloom.training.validation import Evaluation, evaluate_batches

CONFIG = Path(__file__).parent / "repeats.toml"

#: Sequences on which heads are named and taken away.
TEXTS = 21


def trained(folder: Path, layers: int, steps: int | None) -> TrainedRun:
    """Return a run of so many layers, trained if it is not there."""
    changed = [f"model.decoder_layers={layers}"]
    if steps is not None:
        changed += [f"training.max_steps={steps}", f"training.warmup={steps // 10}"]
    start = time.perf_counter()
    done = train(load_config(CONFIG, changed), folder, Callback())
    print(
        f"{layers} layer{'s' * (layers > 1)}: {done.steps:,} steps, trained in "
        f"{done.seconds:.0f} s ({time.perf_counter() - start:.0f} s now)."
    )
    return open_run(folder)


def tested(run: TrainedRun) -> tuple[Callable[[], float], Callable[[], float]]:
    """Functions that give the loss and the accuracy on the repeated half of unseen sequences."""
    task = make_task(run.config, run.data)
    batches = task.validation(4_096)

    def measured() -> Evaluation:
        return evaluate_batches(run.model, batches, run.vocabulary.pad)

    return lambda: measured().loss, lambda: measured().accuracy


def unseen(run: TrainedRun) -> list[Trace]:
    """Traces of one sequence of each length."""
    task = make_task(run.config, run.data)
    found = []
    for batch in task.validation(64)[:TEXTS]:
        trace = headloom.trace(run.model, batch.inputs["tokens"][:1], tokenizer=run.vocabulary)
        assert isinstance(trace, Trace)
        found.append(trace)
    return found


def say_roles(found: list[HeadRole]) -> None:
    """Print the role and the scores of each head, beside the scores of chance."""
    print("\nhead  role        score   chance  sd      z      previous  same   induction  entropy")
    for one in found:
        said = (
            ""
            if one.score is None
            else f"{one.score:6.3f}  {one.chance:6.3f}  {one.chance_sd:.4f}  {one.z:5.1f}"
        )
        columns = "  ".join(
            f"{one.scores[name]:{width}.3f}"
            for name, width in (("previous", 8), ("same", 5), ("induction", 9), ("entropy", 7))
        )
        print(f"{one.layer}.{one.head}   {one.role:10}  {said:28}  {columns}")


def say_ablation(loss: Ablation, accuracy: Ablation) -> None:
    """Print loss and accuracy without some heads."""
    print("\nwithout                loss    accuracy on the repeated half")
    print(f"nothing              {loss.baseline:6.3f}    {accuracy.baseline:.3f}")
    for worse, right in zip(loss.effects, accuracy.effects, strict=True):
        heads = " ".join(f"{layer}.{head}" for layer, head in worse.heads)
        print(f"{heads:20} {worse.value:6.3f}    {right.value:.3f}")


def say_formation(history: History, shown: dict[str, list[tuple[int, int]]], since: int) -> None:
    """Draw the scores of heads on the run's probe, from random to trained."""
    names = [f"{name} {layer}.{head}" for name, heads in shown.items() for layer, head in heads]
    print("\n  step   loss  " + "  ".join(names))
    of_measure = {name: formation(history, name) for name in shown}
    for place, moment in enumerate(next(iter(of_measure.values()))):
        if 0 < moment.step < since:
            continue
        loss = "     " if moment.loss is None else f"{moment.loss:5.2f}"
        columns = [
            f"{of_measure[name][place].scores[head]:{len(name) + 4}.2f}"
            for name, heads in shown.items()
            for head in heads
        ]
        print(f"{moment.step:6,}  {loss}  {'  '.join(columns)}")


def draw(history: History, layer: int, head: int, measure: str, since: int, path: Path) -> None:
    """Draw the weights of a head on the probe over training, above its score and the loss."""
    kept = [snapshot for snapshot in history if not 0 < snapshot.step < since]
    matrices = [
        trace_of_snapshot(snapshot).layers[layer].graph.to_dense()[head] for snapshot in kept
    ]
    steps = {snapshot.step for snapshot in kept}
    moments = [moment for moment in formation(history, measure) if moment.step in steps]
    scores = [(moment.step, moment.scores[layer, head]) for moment in moments]
    losses = [(s.step, s.loss) for s in kept if s.loss is not None]
    figure = snapshots(
        [snapshot.step for snapshot in kept],
        matrices,
        {measure: scores, "loss": losses},
        title=f"{layer}.{head}: from random to {measure}",
        shown=8,
    )
    save_picture(figure, path)
    print(f"Picture: {path}")


def main() -> None:
    """See the module."""
    parser = argparse.ArgumentParser(description=__doc__.splitlines()[0])
    parser.add_argument("--runs", type=Path, default=Path("runs"), help="where the runs go")
    parser.add_argument("--steps", type=int, help="of each training, instead of the example's")
    parser.add_argument("--since", type=int, default=150, help="the first step that is printed")
    given = parser.parse_args()
    two = trained(given.runs / "repeats", 2, given.steps)
    one = trained(given.runs / "repeats-one-layer", 1, given.steps)
    loss, accuracy = tested(two)
    with torch.no_grad():
        print(
            f"Right on the repeated half: two layers {accuracy():.2%}, one layer "
            f"{tested(one)[1]():.2%}; one symbol of all {1 / len(SYMBOLS):.2%}."
        )

    found = head_roles(unseen(two))
    say_roles(found)

    heads = [(head.layer, head.head) for head in found]
    of_role = {
        role: tuple((head.layer, head.head) for head in found if head.role == role)
        for role in ("previous", "induction")
    }
    together = [of_role["induction"], *(tuple(x for x in heads if x[0] == n) for n in (0, 1))]
    groups = [*heads, *dict.fromkeys(group for group in together if len(group) > 1)]
    say_ablation(
        ablate(two.model, loss, kind="mean", heads=groups),
        ablate(two.model, accuracy, kind="mean", heads=groups),
    )

    history = History(two.folder.history)

    def strongest(role: str) -> tuple[int, int]:
        best = max(found, key=lambda head: head.scores[role])
        return best.layer, best.head

    previous, induction = strongest("previous"), strongest("induction")
    shown = {"previous": [previous], "induction": list(of_role["induction"]) or [induction]}
    say_formation(history, shown, given.since)
    for role, head in (("previous", previous), ("induction", induction)):
        draw(history, *head, role, given.since, two.folder.path / f"{role}-head.png")


if __name__ == "__main__":
    main()
