"""What attention is for in a classifier: the two words that belong together, found and shown.

    python examples/asked.py

Draws sentences that ask for one of three things, trains a classifier with learned attention
weights, one whose weights are uniform, all else alike, and one with learned weights and rotary
positions, and tests them on unseen sentences of two to six things. In the last of them, finds the
heads that look from the thing that is asked for to the question, and to the word that says how it
was. Pictures of them go to the run's folder. What was trained already is not trained again.
"""

from __future__ import annotations

import argparse
import random
from pathlib import Path

import torch

import headloom
from headloom.api.trace import Trace
from headloom.formats.files import atomic_file
from headloom.studio.pictures import alignment, save_picture
from headloom.training.config import load_config
from headloom.training.inference import TrainedRun, classify, open_run
from headloom.training.loop import train
from headloom.training.progress import Callback
from headloom.training.tasks.labels import text_ids

CONFIG = Path(__file__).parent / "asked.toml"
THINGS = ("plot", "music", "acting", "ending", "light", "pace")
MOODS = {"good": ("superb", "warm", "witty", "fine"), "bad": ("dull", "cold", "flat", "weak")}
#: How many things the sentences of the training speak of, and those of the test.
TRAINED, TESTED = 3, (2, 3, 4, 5, 6)
#: What is trained; uniform weights know no relative positions.
KINDS = {
    "uniform": ["model.weights=uniform"],
    "learned": [],
    "learned, rotary": ["model.positions=rotary"],
}
SHOWN = "the music ? the plot was dull , the music was superb , the light was cold"
#: Sentences on which heads are searched.
TEXTS = 40
#: Sentences of each test.
TESTS = 1_000


def sentence(numbers: random.Random, count: int = TRAINED) -> tuple[str, str]:
    """Return a label, and a sentence of `count` things whose words have it only together."""
    things = numbers.sample(THINGS, count)
    moods = [numbers.choice(list(MOODS)) for _ in things]
    asked = numbers.randrange(count)
    clauses = (
        f"the {thing} was {numbers.choice(MOODS[mood])}"
        for thing, mood in zip(things, moods, strict=True)
    )
    return moods[asked], f"the {things[asked]} ? {' , '.join(clauses)}"


def draw(path: Path, count: int) -> None:
    """Write sentences, unless they are there."""
    if not path.exists():
        numbers = random.Random(1)
        path.parent.mkdir(parents=True, exist_ok=True)
        with atomic_file(path) as temporary:
            temporary.write_text(
                "".join("\t".join(sentence(numbers)) + "\n" for _ in range(count)), "utf-8"
            )


def trained(folder: Path, changes: list[str]) -> TrainedRun:
    """Return a run, trained if it is not there."""
    train(load_config(CONFIG, changes), folder, Callback())
    return open_run(folder)


def accuracy(run: TrainedRun, count: int) -> float:
    """Return the share of unseen sentences of `count` things that a run classifies rightly."""
    numbers = random.Random(100 + count)
    labels, texts = zip(*(sentence(numbers, count) for _ in range(TESTS)), strict=True)
    predictions = classify(run.model, run.data, list(texts))
    right = sum(
        prediction.label == label for prediction, label in zip(predictions, labels, strict=True)
    )
    return right / TESTS


def places(words: list[str]) -> dict[str, int]:
    """Where the question names the thing, where the sentence does, and how it was."""
    thing = words.index(words[2], 3)
    return {"question": 2, "thing": thing, "answer": thing + 2}


#: What a person would do, a layer each: read how each thing was; look up the one that is asked for.
LOOKS = {"reads": ("thing", "answer"), "looks-up": ("question", "thing")}


def weights(run: TrainedRun, text: str) -> dict[str, list[float]]:
    """Return the weight of each look in its layer, head by head."""
    trace, words = traced(run, text)
    where = places(words)
    result = {}
    for layer, (name, (query, key)) in zip(trace.layers, LOOKS.items(), strict=True):
        matrix = layer.matrix
        if matrix is None:
            raise TypeError("a trace with queries and keys has the matrix of each layer")
        cells = [float(matrix[head, where[query], where[key]]) for head in range(layer.heads)]
        result[name] = cells
    return result


def traced(run: TrainedRun, text: str) -> tuple[Trace, list[str]]:
    """Return the trace of a text, and its tokens."""
    ids = text_ids(run.vocabulary, text, 512)
    trace = headloom.trace(run.model, torch.tensor([ids]), tokenizer=run.vocabulary)
    if not isinstance(trace, Trace):
        raise TypeError("a batch of one text gives one trace")
    return trace, run.vocabulary.token_strings(ids)


def main() -> None:
    """See the module."""
    parser = argparse.ArgumentParser(description=__doc__.splitlines()[0])
    parser.add_argument("--folder", type=Path, default=Path("runs/asked"), help="of the runs")
    parser.add_argument("--sentences", type=int, default=12_000, help="to draw")
    parser.add_argument("--steps", type=int, help="of each training; default: the file's")
    options = parser.parse_args()
    data = options.folder / "sentences.tsv"
    draw(data, options.sentences)
    changes = [f"task.folder={data.parent}"]
    if options.steps is not None:
        changes += [f"training.max_steps={options.steps}", f"training.warmup={options.steps // 10}"]
    runs = {
        name: trained(options.folder / name.replace(", ", "-"), [*changes, *more])
        for name, more in KINDS.items()
    }
    print(f"Right, of {TESTS:,} unseen sentences; all learned on sentences of {TRAINED} things:")
    print(f"{'things':>6}" + "".join(f"{name:>18}" for name in runs))
    for count in TESTED:
        shares = (accuracy(run, count) for run in runs.values())
        print(f"{count:>6}" + "".join(f"{share:>18.1%}" for share in shares))
    run = runs["learned, rotary"]
    (prediction,) = classify(run.model, run.data, [SHOWN])
    if prediction is not None:
        print(f"\n{SHOWN}\n{prediction.label}, {prediction.score:.1%}")
    trace, _ = traced(run, SHOWN)
    numbers = random.Random(2)
    unseen = [weights(run, sentence(numbers)[1]) for _ in range(TEXTS)]
    for layer, (name, cells) in zip(trace.layers, weights(run, SHOWN).items(), strict=True):
        head = cells.index(max(cells))
        query, key = LOOKS[name]
        path = options.folder / f"{name}.png"
        title = f"Layer {layer.index}, head {head}: from the {query} to the {key}"
        save_picture(alignment(layer, head, title=title), path)
        best = sum(max(found[name]) for found in unseen) / TEXTS
        print(
            f"{layer.index}.{head} looks from the {query} to the {key}: {max(cells):.2f} here; "
            f"the head that does so most, {best:.2f} in the mean of {TEXTS} sentences: {path}"
        )


if __name__ == "__main__":
    main()
