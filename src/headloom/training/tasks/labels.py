"""Labels: texts, each of one class."""

from __future__ import annotations

from collections.abc import Sequence

import torch

from headloom.formats.files import JsonObject
from headloom.models.predictor import Predictor, other_kind
from headloom.training.batches import Batch, bucketed, padded
from headloom.training.data import DataDescription, classes_of
from headloom.training.measures.corpus import digest
from headloom.training.sections import LabelsConfig
from headloom.training.tasks.labelled import LabelledTask, LabelledText, read_labelled, read_parts
from headloom.training.tasks.task import Plan, Probe, told_before
from headloom.training.text import Vocabulary

__all__ = ["LabelsTask", "Prediction", "classify", "labels_task", "longest_text", "text_ids"]

#: Tokens that are read at once.
_AT_ONCE = 8_192


def text_ids(vocabulary: Vocabulary, text: str, max_length: int) -> list[int]:
    """What a classifier reads of a text: see `Vocabulary.framed`."""
    return vocabulary.framed(vocabulary.encode(text), max_length)


def longest_text(data: DataDescription) -> int:
    """How many tokens of a text a run reads. Raises: DataError: data.json does not say."""
    longest = data.facts.get("max_length")
    if type(longest) is not int or longest < 2:
        raise data.fault("data.json of this run does not say how long a text may be")
    return longest


class LabelsTask(LabelledTask):
    """Labelled texts.

    Args:
        config: of the task; seed: of the order of the examples; vocabulary: of the texts.
        texts: the examples of "train", "valid" and "test".
        facts: what data.json must know of them.
    """

    unit, at_once = "texts", _AT_ONCE

    def __init__(
        self,
        config: LabelsConfig,
        seed: int,
        vocabulary: Vocabulary,
        texts: dict[str, list[LabelledText]],
        facts: JsonObject,
    ) -> None:
        description = DataDescription(vocabulary, {**facts, "max_length": config.max_length})
        labels = {part: [label for label, _ in own] for part, own in texts.items()}
        super().__init__(seed, description, labels)
        self.vocabulary, self.texts = vocabulary, texts
        self.ids = {
            part: [
                vocabulary.framed(ids, config.max_length)
                for ids in vocabulary.encode_all([text for _, text in own])
            ]
            for part, own in texts.items()
        }

    def sizes(self) -> dict[str, int]:
        """See Task.sizes."""
        return {
            **{part: len(examples) for part, examples in self.texts.items()},
            "classes": len(self.classes),
            "vocabulary": len(self.vocabulary),
            "train_tokens": sum(map(len, self.ids["train"])),
        }

    def notices(self) -> list[str]:
        """See Task.notices."""
        return told_before({part: [text for _, text in own] for part, own in self.texts.items()})

    def longest(self) -> int:
        """See Task.longest."""
        return max(len(ids) for own in self.ids.values() for ids in own)

    def plans(self, part: str, batch_tokens: int, seed: int | None = None) -> list[Plan]:
        """See LabelledTask.plans."""
        return bucketed([(len(ids),) for ids in self.ids[part]], batch_tokens, seed=seed)

    def batch_of(self, part: str, plan: Plan) -> Batch:
        """See LabelledTask.batch_of."""
        ids = [self.ids[part][place] for place in plan]
        tokens = {"tokens": padded(ids, self.vocabulary.pad)}
        return Batch(tokens, self.targets[part][plan], sum(map(len, ids)))

    def probe(self) -> Probe:
        """The validation text of median length."""
        ids = sorted(self.ids["valid"], key=len)[len(self.ids["valid"]) // 2]
        return Probe.of_tokens(ids, self.vocabulary)

    def digest(self, split: str) -> str:
        """See Task.digest."""
        self.check_split(split)
        return digest(self.texts[split])


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
    longest = longest_text(data)
    results: list[Prediction | None] = [None] * len(texts)
    full = [place for place, text in enumerate(texts) if text.strip()]
    ids = {place: text_ids(words, texts[place], longest) for place in full}
    for plan in bucketed([(len(ids[place]),) for place in full], _AT_ONCE):
        with torch.no_grad():
            logits = model(padded([ids[full[index]] for index in plan], words.pad))
        for index, row in zip(plan, logits.double().softmax(-1), strict=True):
            order = row.argsort(descending=True, stable=True).tolist()
            results[full[index]] = Prediction({names[n]: float(row[n]) for n in order})
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
    return LabelsTask(config, seed, vocabulary, parts.examples, parts.facts)
