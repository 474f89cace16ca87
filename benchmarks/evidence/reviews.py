"""Claim: for the mood of a text, which words it has says nearly all; who attends to whom, little.

Three models read the same tokens of the same drawn splits, a split and a start for each seed:

    bag of words    logistic regression on which words occur (scikit-learn); its penalty is the one
                    of seven that is best on the validation texts
    uniform         headloom's classifier whose attention weights are the mean over all words
    learned         headloom's classifier with learned attention weights, all else alike

    python benchmarks/evidence/reviews.py --folder PATH       (sentence_polarity.tsv and
                                                               movie_reviews.tsv.gz)

Finished trainings stay in --runs and are not trained again; their figures in figures/.

Sources: Wang and Manning 2012, "Baselines and Bigrams", table 2 (SVM on words, by
cross-validation); Kim 2014, "Convolutional Neural Networks for Sentence Classification", table 2
(CNN-rand); Wiegreffe and Pinter 2019, "Attention is not not Explanation", section 3.2 (uniform
weights as the baseline of learned ones). The data: Pang and Lee 2004 and 2005.
"""

from __future__ import annotations

import argparse
import time
from dataclasses import dataclass
from pathlib import Path
from typing import Any

import numpy as np
import torch
from record import Claim, mean_and_spread, record
from runs import ROOT, Figures, results_of, trained, value_of
from scipy.sparse import csr_array
from sklearn.linear_model import LogisticRegression

from headloom.training.config import load_config
from headloom.training.tasks import make_task
from headloom.training.tasks.labels import LabelsTask

EXAMPLE = ROOT / "examples" / "polarity.toml"
#: Inverse strengths of the penalty of the logistic regression.
PENALTIES = (0.01, 0.03, 0.1, 0.3, 1.0, 3.0, 10.0)
MODELS = ("bag of words", "uniform", "learned")


@dataclass(frozen=True)
class Data:
    """A set of texts: its name, the changes of examples/polarity.toml, the published accuracies."""

    name: str
    changes: tuple[str, ...]
    published: str


OF_SENTENCES = "76.2 % (SVM on words), 76.1 % (CNN-rand)"
SETS = (
    Data("sentences, max pooling", (), OF_SENTENCES),
    Data("sentences, mean pooling", ("model.pooling=mean",), OF_SENTENCES),
    Data(
        "long reviews, mean pooling",
        (
            "task.train=movie_reviews.tsv.gz",
            "task.max_length=512",
            "model.pooling=mean",
            "model.dropout=0.3",
            "training.batch_tokens=8192",
            "training.max_epochs=8",
            "training.peak_learning_rate=3e-3",
            "training.warmup=50",
            "training.validate_every=50",
            "training.patience=6",
        ),
        "86.25 % (SVM on words, whole reviews)",
    ),
)


def changes_of(folder: Path, data: Data, seed: int, weights: str) -> list[str]:
    """What is changed of the example, for one split of one set."""
    return [
        f"task.folder={folder}", *data.changes, f"task.split_seed={seed}",
        f"training.seed={seed}", f"model.weights={weights}",
    ]  # fmt: skip


def occurrences(task: LabelsTask, part: str) -> tuple[csr_array, np.ndarray[Any, Any]]:
    """Which tokens each text has, (texts, vocabulary), as the classifier reads it; and classes."""
    examples = [(sorted(set(ids[1:])), label) for ids, label in task.encoded(part)]
    columns = np.concatenate([np.array(ids, dtype=np.int64) for ids, _ in examples])
    starts = np.cumsum([0, *(len(ids) for ids, _ in examples)])
    shape = (len(examples), len(task.vocabulary))
    matrix = csr_array((np.ones(len(columns)), columns, starts), shape=shape)
    return matrix, np.array([label for _, label in examples])


def bag_of_words(task: LabelsTask) -> float:
    """Accuracy on the test texts, in percent."""
    parts = {part: occurrences(task, part) for part in ("train", "valid", "test")}
    fitted = [
        LogisticRegression(C=penalty, max_iter=2_000).fit(*parts["train"]) for penalty in PENALTIES
    ]
    best = max(fitted, key=lambda model: model.score(*parts["valid"]))
    return 100 * float(best.score(*parts["test"]))


def measure(
    options: argparse.Namespace, kept: Figures, data: Data, seed: int, model: str
) -> dict[str, float]:
    """The accuracy of a model on one split."""
    label = data.name.replace(",", "").replace(" ", "-")
    changes = changes_of(options.folder, data, seed, "learned" if model == MODELS[0] else model)
    name = f"{label}-{model.replace(' ', '-')}-{seed}"

    def words() -> dict[str, float]:
        start = time.perf_counter()
        task = make_task(load_config(EXAMPLE, changes))
        if not isinstance(task, LabelsTask):
            raise TypeError("examples/polarity.toml is a task of labels")
        accuracy = bag_of_words(task)
        return {"seconds": time.perf_counter() - start, "accuracy": accuracy}

    def encoder() -> dict[str, float]:
        run, seconds = trained(options.runs / name, EXAMPLE, changes)
        accuracy = 100 * value_of(results_of(run, beam=1), "accuracy")
        return {"seconds": seconds, "accuracy": accuracy}

    return kept.of(name, EXAMPLE, changes, words if model == MODELS[0] else encoder)


def accuracies(options: argparse.Namespace, kept: Figures, data: Data) -> dict[str, list[float]]:
    """Those of each model, seed by seed."""
    results: dict[str, list[float]] = {name: [] for name in MODELS}
    for seed in range(1, options.seeds + 1):
        for model, of in results.items():
            of.append(measure(options, kept, data, seed, model)["accuracy"])
        latest = ", ".join(f"{name} {values[-1]:.2f}" for name, values in results.items())
        print(f"{data.name}, seed {seed}: {latest}", flush=True)
    return results


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__.split("\n", 1)[0])
    parser.add_argument("--folder", type=Path, required=True)
    parser.add_argument("--runs", type=Path, default=Path("runs/evidence"))
    parser.add_argument("--seeds", type=int, default=3)
    parser.add_argument("--threads", type=int, default=2)
    parser.add_argument("--again", action="store_true", help="measure anew what is in figures/")
    options = parser.parse_args()
    kept = Figures("reviews", again=options.again)
    torch.set_num_threads(options.threads)
    rows = ["| texts | " + " | ".join(MODELS) + " | learned - uniform | published |",
            "|---|---|---|---|---|---|"]  # fmt: skip
    ours = []
    for data in SETS:
        results = accuracies(options, kept, data)
        cells = [mean_and_spread(results[name], "%") for name in MODELS]
        pairs = zip(results["learned"], results["uniform"], strict=True)
        differences = [learned - uniform for learned, uniform in pairs]
        gain = mean_and_spread(differences)
        rows.append(f"| {data.name} | {' | '.join(cells)} | {gain} | {data.published} |")
        named = ", ".join(f"{name} {cell}" for name, cell in zip(MODELS, cells, strict=True))
        ours.append(f"{data.name}: {named}")
    details = "\n".join(rows) + (
        "\n\nAccuracy on a tenth of each class, drawn with the seed; of the long reviews all "
        "models read the\nfirst 511 words. The bag of words is a logistic regression on which "
        "words occur."
    )
    record(
        Claim(
            name="Reviews: words, uniform and learned attention",
            claim="For the mood of a text, which words it has says nearly all: uniform attention "
            "weights do about as well as learned ones, and a bag of words is hard to beat.",
            source="Wang and Manning 2012, table 2, https://aclanthology.org/P12-2018; Kim 2014, "
            "table 2, https://aclanthology.org/D14-1181; Wiegreffe and Pinter 2019, section 3.2, "
            "https://aclanthology.org/D19-1002",
            published="; ".join(f"{data.name}: {data.published}" for data in SETS),
            ours="; ".join(ours),
            command="python benchmarks/evidence/reviews.py --folder PATH",
            seconds=kept.seconds(),
            megabytes=kept.megabytes(),
            machine=kept.machine(),
            details=details,
        )
    )


if __name__ == "__main__":
    main()
