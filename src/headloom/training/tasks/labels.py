"""Labels: texts, each of one class."""

from __future__ import annotations

from collections.abc import Callable, Sequence

import numpy as np
import torch

from headloom.errors import InputError
from headloom.formats.files import JsonObject
from headloom.models.predictor import Predictor, other_kind
from headloom.training.batches import Batch, bucketed, padded
from headloom.training.data import DataDescription, classes_of
from headloom.training.labelled import LabelledText, read_labelled, read_parts
from headloom.training.measures.corpus import Results, digest, mean_measure
from headloom.training.measures.labels import label_measures
from headloom.training.sections import LabelsConfig
from headloom.training.tasks.task import Plan, Probe, Task, told_before
from headloom.training.text import Vocabulary

__all__ = ["LabelsTask", "Prediction", "classify", "labels_task", "longest_text", "text_ids"]

#: Examples of a part: ids, and the number of the class.
Examples = list[tuple[list[int], int]]


def text_ids(vocabulary: Vocabulary, text: str, max_length: int) -> list[int]:
    """What a classifier reads of a text: see `Vocabulary.framed`."""
    return vocabulary.framed(vocabulary.encode(text), max_length)


def longest_text(data: DataDescription) -> int:
    """How many tokens of a text a run reads. Raises: DataError: data.json does not say."""
    longest = data.facts.get("max_length")
    if type(longest) is not int or longest < 2:
        raise data.fault("data.json of this run does not say how long a text may be")
    return longest


class LabelsTask(Task):
    """Labelled texts.

    Args:
        vocabulary: of the texts.
        classes: their names, whose places are the numbers of the classes.
        split: the examples of "train", "valid" and "test".
        facts: what data.json must know of them.
    """

    def __init__(
        self,
        config: LabelsConfig,
        seed: int,
        vocabulary: Vocabulary,
        classes: Sequence[str],
        split: dict[str, list[LabelledText]],
        facts: JsonObject,
    ) -> None:
        self.config, self.seed = config, seed
        self.vocabulary, self.classes, self.texts = vocabulary, list(classes), split
        self.description = DataDescription(vocabulary, {**facts, "max_length": config.max_length})
        self._train, self._valid = self._encode(split["train"]), self._encode(split["valid"])

    def _encode(self, examples: Sequence[LabelledText]) -> Examples:
        framed, longest = self.vocabulary.framed, self.config.max_length
        number = {name: place for place, name in enumerate(self.classes)}
        encoded = self.vocabulary.encode_all([text for _, text in examples])
        return [
            (framed(ids, longest), number[label])
            for ids, (label, _) in zip(encoded, examples, strict=True)
        ]

    @property
    def has_test(self) -> bool:
        """See Task.has_test."""
        return bool(self.texts["test"])

    def sizes(self) -> dict[str, int]:
        """See Task.sizes."""
        return {
            **{part: len(examples) for part, examples in self.texts.items()},
            "classes": len(self.classes),
            "vocabulary": len(self.vocabulary),
            "train_tokens": sum(len(ids) for ids, _ in self._train),
        }

    def notices(self) -> list[str]:
        """See Task.notices."""
        return told_before(
            {part: [text for _, text in examples] for part, examples in self.texts.items()}
        )

    def longest(self) -> int:
        """See Task.longest."""
        return max(len(ids) for ids, _ in (*self._train, *self._valid))

    def plan_epoch(self, epoch: int, batch_tokens: int) -> list[Plan]:
        """See Task.plan_epoch."""
        lengths = [(len(ids),) for ids, _ in self._train]
        return bucketed(lengths, batch_tokens, seed=self.seed * 1_000_003 + epoch)

    def batch(self, plan: Plan) -> Batch:
        """See Task.batch."""
        return self._batch(self._train, plan)

    def _batch(self, examples: Examples, plan: Plan) -> Batch:
        tokens = padded([examples[index][0] for index in plan], self.vocabulary.pad)
        targets = torch.tensor([examples[index][1] for index in plan])
        return Batch({"tokens": tokens}, targets, sum(len(examples[index][0]) for index in plan))

    def validation(self, batch_tokens: int) -> list[Batch]:
        """See Task.validation."""
        lengths = [(len(ids),) for ids, _ in self._valid]
        return [self._batch(self._valid, plan) for plan in bucketed(lengths, batch_tokens)]

    def probe(self) -> Probe:
        """The validation text of median length."""
        ids, _ = sorted(self._valid, key=lambda example: len(example[0]))[len(self._valid) // 2]
        return Probe.of_tokens(ids, self.vocabulary)

    def examples(self, split: str) -> list[LabelledText]:
        """The labelled texts of a split. Raises: InputError: it has none."""
        if not self.texts.get(split):
            raise InputError(f"this run has no {split} data; name it in the configuration.")
        return self.texts[split]

    def encoded(self, split: str) -> Examples:
        """What the model reads of each text of a split, and the number of its class."""
        return self._encode(self.examples(split))

    def digest(self, split: str) -> str:
        """See Task.digest."""
        return digest(self.examples(split))

    def results(
        self, model: Predictor, *, split: str, beam: int, progress: Callable[[int, int], None]
    ) -> Results:
        """Accuracy, macro-F1 and loss on the texts of a split."""
        examples = self.examples(split)
        expected = np.array([self.classes.index(label) for label, _ in examples])
        logs = _log_probabilities(model, [ids for ids, _ in self.encoded(split)],
                                  self.vocabulary.pad, progress)  # fmt: skip
        nats = -logs[np.arange(len(expected)), expected]
        loss = mean_measure("loss", "loss, nats", nats, np.ones(len(nats)), higher=False)
        measures = [*label_measures(expected, logs.argmax(1), len(self.classes)), loss]
        facts: JsonObject = {"examples": len(examples), "classes": len(self.classes)}
        return Results(split, "texts", measures, facts)


@torch.no_grad()
def _log_probabilities(
    model: Predictor,
    sequences: Sequence[list[int]],
    filler: int,
    progress: Callable[[int, int], None] = lambda done, total: None,
) -> np.ndarray[tuple[int, ...], np.dtype[np.float64]]:
    """``log softmax(logits)`` of each sequence, (sequences, classes)."""
    rows: dict[int, np.ndarray[tuple[int, ...], np.dtype[np.float64]]] = {}
    for plan in bucketed([(len(ids),) for ids in sequences], 8_192):
        logits = model(padded([sequences[index] for index in plan], filler))
        logs = logits.double().log_softmax(-1).numpy()
        rows.update(zip(plan, logs, strict=True))
        progress(len(rows), len(sequences))
    return np.stack([rows[index] for index in range(len(sequences))])


class Prediction(dict[str, float]):
    """The probability of each class, by its name, the likeliest first."""

    @property
    def label(self) -> str:
        """The likeliest class."""
        return next(iter(self))

    @property
    def probability(self) -> float:
        """Its probability."""
        return self[self.label]


def classify(
    model: Predictor, data: DataDescription, texts: Sequence[str]
) -> list[Prediction | None]:
    """The probabilities of the classes of texts, by a trained classifier.

    Args: model: in evaluation mode; data: of its run; texts: an empty one gets None.
    Raises: InputError: the model is no classifier.
    """
    if not getattr(model, "classifies_texts", False) or data.vocabulary is None:
        raise other_kind(model, "classify texts", "a classifier")
    names, words = classes_of(data), data.vocabulary
    full = [index for index, text in enumerate(texts) if text.strip()]
    results: list[Prediction | None] = [None] * len(texts)
    if full:
        longest = longest_text(data)
        sequences = [text_ids(words, texts[index], longest) for index in full]
        probabilities = np.exp(_log_probabilities(model, sequences, words.pad))
        for index, row in zip(full, probabilities, strict=True):
            order = np.argsort(-row, kind="stable")
            results[index] = Prediction({names[place]: float(row[place]) for place in order})
    return results


def labels_task(config: LabelsConfig, seed: int, data: DataDescription | None) -> LabelsTask:
    """The task with its texts read, and split where the configuration names no files."""
    parts = read_parts(
        config,
        data,
        read=read_labelled,
        labels_of=lambda examples: [label for label, _ in examples],
        chosen=lambda examples, places: [examples[place] for place in places],
        digest_of=digest,
    )
    vocabulary = None if data is None else data.vocabulary
    if vocabulary is None:
        texts = [text for _, text in parts.examples["train"]]
        if config.tokens == "characters":
            vocabulary = Vocabulary.of_characters(texts)
        elif config.tokens == "pieces":
            vocabulary = Vocabulary.of_pieces(texts, config.vocabulary)
        else:
            vocabulary = Vocabulary.of_words(texts, config.vocabulary)
    return LabelsTask(config, seed, vocabulary, parts.classes, parts.examples, parts.facts)
