"""Classification: labelled examples, their split and measures; labelled texts."""

from __future__ import annotations

import random
from abc import abstractmethod
from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass
from functools import partial
from pathlib import Path
from typing import ClassVar, Generic, Protocol, Self, TypeVar

import numpy as np
import torch

from headloom.errors import InputError
from headloom.formats.files import JsonObject, read_text
from headloom.models.predictor import Predictor
from headloom.training.batches import Batch, bucketed, padded
from headloom.training.data import DataDescription, check_unchanged, classes_of
from headloom.training.examples import read_columns
from headloom.training.measures import Results, digest, label_measures, mean_measure
from headloom.training.sections import ImagesConfig, LabelsConfig
from headloom.training.tasks.task import Plan, Probe, Task, overlap_notices
from headloom.training.text import Vocabulary


class _Labelled(Protocol):
    """Examples with a label each."""

    @property
    def labels(self) -> list[str]: ...

    def chosen(self, places: list[int]) -> Self: ...


Examples = TypeVar("Examples", bound=_Labelled)


@dataclass(frozen=True)
class Parts(Generic[Examples]):
    """Labelled examples split into parts.

    examples: of "train", "valid" and "test"; sources: their paths.
    facts: contents of data.json, such as the names of the classes.
    """

    examples: dict[str, Examples]
    sources: dict[str, str]
    facts: JsonObject


class LabelledTask(Task):
    """Classification task; subclasses make the batches.

    unit: plural name of an example; at_once: tokens per batch of the evaluation.
    classes: the names of the classes, in the order of their numbers.
    targets: the classes of the examples of "train", "valid" and "test".
    """

    unit: ClassVar[str]
    at_once: ClassVar[int]

    def __init__(
        self, seed: int, description: DataDescription, examples: Mapping[str, _Labelled]
    ) -> None:
        self.seed, self.description = seed, description
        self.classes = classes_of(description)
        number = {name: place for place, name in enumerate(self.classes)}
        self.targets = {
            part: torch.tensor([number[label] for label in data.labels], dtype=torch.long)
            for part, data in examples.items()
        }

    @abstractmethod
    def plans(self, part: str, batch_tokens: int, seed: int | None = None) -> list[Plan]:
        """Plan the batches of a part; seed: shuffle by it, None: keep the order."""

    @abstractmethod
    def batch_of(self, part: str, plan: Plan) -> Batch:
        """Return a planned batch of a part."""

    @property
    def has_test(self) -> bool:
        return bool(len(self.targets["test"]))

    def plan_epoch(self, epoch: int, batch_tokens: int) -> list[Plan]:
        return self.plans("train", batch_tokens, self.seed * 1_000_003 + epoch)

    def batch(self, plan: Plan) -> Batch:
        return self.batch_of("train", plan)

    def validation(self, batch_tokens: int) -> list[Batch]:
        return [self.batch_of("valid", plan) for plan in self.plans("valid", batch_tokens)]

    def check_split(self, split: str) -> None:
        if not len(self.targets[split]):
            raise InputError(
                f"this run has no {split} data: use --split valid, or train one with task.test or "
                "task.test_share."
            )

    @torch.no_grad()
    def results(
        self, model: Predictor, *, split: str, beam: int, progress: Callable[[int, int], None]
    ) -> Results:
        """Measure accuracy, macro-F1 and loss on the examples of a split."""
        self.check_split(split)
        expected, done = self.targets[split].numpy(), 0
        logs = np.empty((len(expected), len(self.classes)))
        for plan in self.plans(split, self.at_once):
            logs[plan] = model(**self.batch_of(split, plan).inputs).double().log_softmax(-1).numpy()
            done += len(plan)
            progress(done, len(expected))
        nats = -logs[np.arange(len(expected)), expected]
        loss = mean_measure("loss", "loss, nats", nats, np.ones(len(nats)), higher=False)
        measures = [*label_measures(expected, logs.argmax(1), len(self.classes)), loss]
        facts: JsonObject = {"examples": len(expected), "classes": len(self.classes)}
        return Results(split, self.unit, measures, facts)


def read_parts(
    config: LabelsConfig | ImagesConfig,
    data: DataDescription | None,
    read: Callable[[Path], Examples],
    digest_of: Callable[[Examples], str],
) -> Parts[Examples]:
    """Read the parts that the configuration names; draw the others from the training data.

    Args:
        config: of the task.
        data: description saved by the run; None: a new run.
        read: reader of a file or a folder.
        digest_of: hash function of examples.

    Raises: InputError, DataError: they cannot be read, or have changed since the run started.
    """
    folder = Path(config.folder)
    paths = {part: name for part in ("train", "valid", "test") if (name := getattr(config, part))}
    examples = {part: read(folder / name) for part, name in paths.items()}
    shares = {"test": config.test_share, "valid": config.valid_share}
    drawn = {part: share for part, share in shares.items() if part not in examples}
    train, source = examples["train"], str(folder / config.train)
    known: JsonObject = {} if data is None else data.facts
    facts: JsonObject = {}
    if any(drawn.values()):
        facts = {"drawn_from": digest_of(train)}
        check_unchanged(known, facts, source)
    for part, places in drawn_split(train.labels, drawn, config.split_seed, source).items():
        examples[part] = train.chosen(places)
    parts = {part: examples[part] for part in ("train", "valid", "test")}
    sources = {part: str(folder / paths.get(part, config.train)) for part in parts}
    classes = sorted(set(train.labels), key=_order)
    if data is not None and "classes" in known:
        classes = classes_of(data)
    for part, members in parts.items():
        _check_labels(members.labels, classes, sources[part], all_there=part == "train")
    return Parts(parts, sources, {**facts, "classes": classes})


def _order(label: str) -> tuple[int, int, str]:
    """Return a sort key: integers by size, before all other labels."""
    number = label.removeprefix("-").isdecimal() and label.isascii()
    return (0, int(label[:18]), label) if number else (1, 0, label)


def drawn_split(
    labels: Sequence[str], shares: Mapping[str, float], seed: int, source: str
) -> dict[str, list[int]]:
    """Split examples into parts so that each part has its share of every class.

    Args:
        labels: of all examples.
        shares: of each part but "train", which gets the rest; 0: the part is empty.
        seed: of the random draw.
        source: name of the data in errors.

    Returns: the places of each part's examples, in order.
    Raises: InputError: a class has too few examples for every part to have one.

    >>> split = drawn_split(["a", "a", "b", "b"], {"valid": 0.5}, seed=1, source="x")
    >>> len(split["train"]), len(split["valid"])
    (2, 2)
    """
    wanted = {name: share for name, share in shares.items() if share > 0}
    numbers = random.Random(seed)
    places: dict[str, list[int]] = {}
    for place, label in enumerate(labels):
        places.setdefault(label, []).append(place)
    part_of = ["train"] * len(labels)
    for label, members in sorted(places.items()):
        if len(members) < len(wanted) + 1:
            raise InputError(
                f"{source}: class {label!r} has {len(members)} example{'s' * (len(members) > 1)}; "
                f"expected {len(wanted) + 1}, one for each of train, {', '.join(wanted)}. Add "
                "some, or remove the class."
            )
        numbers.shuffle(members)
        begin, room = 0, len(members) - 1  # at least one stays in "train"
        for rest, (name, share) in enumerate(wanted.items(), 1):
            # At least one for this part and for each part after it.
            most = room - begin - (len(wanted) - rest)
            count = min(max(1, round(share * len(members))), most)
            for place in members[begin : begin + count]:
                part_of[place] = name
            begin += count
    split: dict[str, list[int]] = {"train": [], **{name: [] for name in shares}}
    for place, part in enumerate(part_of):
        split[part].append(place)
    return split


def _check_labels(
    labels: Sequence[str], classes: Sequence[str], source: str, *, all_there: bool
) -> None:
    """Raise an InputError where a label is no class; all_there: or a class has no example."""
    unknown = set(labels) - set(classes)
    if unknown:
        raise InputError(
            f"{source}: unknown label {min(unknown)!r}; the model knows "
            f"{', '.join(map(repr, classes[:10]))}. Correct it, or train on data that have it."
        )
    missing = set(classes) - set(labels)
    if all_there and (missing or len(classes) < 2):
        raise InputError(
            f"{source}: the class {min(missing or set(classes))!r} has no examples, or is the only "
            "one. Give examples of two classes or more."
        )


@dataclass(frozen=True)
class LabelledTexts:
    """Texts and the label of each."""

    labels: list[str]
    texts: list[str]

    def chosen(self, places: list[int]) -> LabelledTexts:
        """Return the texts at these places."""
        labels, texts = self.labels, self.texts
        return LabelledTexts(
            [labels[place] for place in places], [texts[place] for place in places]
        )

    def digest(self) -> str:
        """Return a hash of texts and labels."""
        return digest(list(zip(self.labels, self.texts, strict=True)))


def read_labelled(path: Path, text: str | None = None, label: str | None = None) -> LabelledTexts:
    """Read labelled texts from a file or a folder.

    Args:
        path: a file of CSV, TSV, Parquet or JSON lines; or with a line for each text, label TAB
            text or label TAB id TAB text (.gz too); or a folder with a folder for each class, in
            which each .txt file is a text.
        text: a file's column of texts; see `headloom.training.examples`.
        label: its column of labels.

    Raises:
        DataError: a file is missing, not UTF-8 or damaged.
        InputError: lines without a label or a text, or no texts at all.
    """
    if path.is_dir():
        files = sorted(path.glob("*/*.txt"))
        pairs = [(file.parent.name, read_text(file, "text").strip()) for file in files]
        empty = next((file for file, pair in zip(files, pairs, strict=True) if not pair[1]), None)
        if empty is not None:
            raise InputError(f"{empty}: the file is empty. Fill it in, or remove it.")
    elif columns := read_columns(path, {"text": text, "label": label}, "labelled texts"):
        pairs = list(zip(columns[1], columns[0], strict=True))
    else:
        pairs = _read_lines(path)
    if not pairs:
        raise InputError(
            f"{path}: no labelled texts. Give lines of label TAB text, or a folder with one for "
            "each class, in which each .txt file is a text."
        )
    return LabelledTexts([label for label, _ in pairs], [text for _, text in pairs])


def _read_lines(path: Path) -> list[tuple[str, str]]:
    pairs, columns = [], 0
    text = read_text(path, "labelled texts")
    for number, line in enumerate(text.split("\n"), 1):
        if not line.strip():
            continue
        fields = [field.strip() for field in line.split("\t")]
        columns = columns or len(fields)
        if len(fields) != columns or columns not in (2, 3) or not fields[0] or not fields[-1]:
            raise InputError(
                f"{path}: line {number} has {len(fields) - 1} tabs; expected label TAB text, or "
                "label TAB id TAB text, the same in all lines, with no empty field."
            )
        pairs.append((fields[0], fields[-1]))
    return pairs


def text_ids(vocabulary: Vocabulary, text: str, max_length: int) -> list[int]:
    """Return the ids that a classifier reads of a text; see `Vocabulary.framed`."""
    return vocabulary.framed(vocabulary.encode(text), max_length)


def longest_text(data: DataDescription) -> int:
    """Return the tokens of a text that a run reads. Raises: DataError: data.json lacks it."""
    longest = data.facts.get("max_length")
    if type(longest) is not int or longest < 2:
        raise data.fault("data.json of this run lacks max_length")
    return longest


class LabelsTask(LabelledTask):
    """Task of labelled texts; ids: the texts as the model reads them."""

    unit, at_once = "texts", 8_192

    def __init__(
        self, config: LabelsConfig, seed: int, vocabulary: Vocabulary, parts: Parts[LabelledTexts]
    ) -> None:
        facts = {**parts.facts, "max_length": config.max_length}
        super().__init__(seed, DataDescription(vocabulary, facts), parts.examples)
        self.vocabulary, self.texts = vocabulary, parts.examples
        self.ids = {
            part: [
                vocabulary.framed(ids, config.max_length)
                for ids in vocabulary.encode_all(data.texts)
            ]
            for part, data in parts.examples.items()
        }

    def sizes(self) -> dict[str, int]:
        return {
            **{part: len(data.texts) for part, data in self.texts.items()},
            "classes": len(self.classes),
            "vocabulary": len(self.vocabulary),
            "train_tokens": sum(map(len, self.ids["train"])),
        }

    def notices(self) -> list[str]:
        return overlap_notices({part: data.texts for part, data in self.texts.items()})

    def longest(self) -> int:
        return max(len(ids) for part in self.ids.values() for ids in part)

    def plans(self, part: str, batch_tokens: int, seed: int | None = None) -> list[Plan]:
        return bucketed([(len(ids),) for ids in self.ids[part]], batch_tokens, seed=seed)

    def batch_of(self, part: str, plan: Plan) -> Batch:
        ids = [self.ids[part][place] for place in plan]
        tokens = {"tokens": padded(ids, self.vocabulary.pad)}
        return Batch(tokens, self.targets[part][plan], sum(map(len, ids)))

    def probe(self) -> Probe:
        """Return the validation text of median length."""
        ids = sorted(self.ids["valid"], key=len)[len(self.ids["valid"]) // 2]
        return Probe.of_tokens(ids, self.vocabulary)

    def digest(self, split: str) -> str:
        self.check_split(split)
        return self.texts[split].digest()


def labels_task(config: LabelsConfig, seed: int, data: DataDescription | None) -> LabelsTask:
    """Make the task: read its texts, and split them where no files are configured."""
    read = partial(read_labelled, text=config.text, label=config.label)
    parts = read_parts(config, data, read, LabelledTexts.digest)
    vocabulary = None if data is None else data.vocabulary
    if vocabulary is None:
        texts = parts.examples["train"].texts
        vocabulary = Vocabulary.of(config.tokens, texts, config.vocabulary)
    return LabelsTask(config, seed, vocabulary, parts)
