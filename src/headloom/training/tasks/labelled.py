"""Labelled examples: read from lines or from folders, drawn into parts, measured."""

from __future__ import annotations

import random
from abc import abstractmethod
from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass
from pathlib import Path
from typing import ClassVar, Generic, TypeVar

import numpy as np
import torch

from headloom.errors import DataError, InputError
from headloom.formats.files import JsonObject, read_text
from headloom.formats.lines import check_line_ends
from headloom.models.predictor import Predictor
from headloom.training.batches import Batch
from headloom.training.data import DataDescription, check_unchanged, classes_of
from headloom.training.measures.corpus import Results, mean_measure
from headloom.training.measures.labels import label_measures
from headloom.training.sections import ImagesConfig, LabelsConfig
from headloom.training.tasks.task import Plan, Task

__all__ = [
    "LabelledTask",
    "LabelledText",
    "Parts",
    "check_labels",
    "drawn_split",
    "read_labelled",
    "read_parts",
]

#: A label and its text.
LabelledText = tuple[str, str]
Examples = TypeVar("Examples")


@dataclass(frozen=True)
class Parts(Generic[Examples]):
    """Labelled examples in parts.

    examples: of "train", "valid" and "test"; sources: where they are from.
    classes: the names of the classes, whose places are their numbers.
    facts: what data.json must know of them.
    """

    examples: dict[str, Examples]
    sources: dict[str, str]
    classes: list[str]
    facts: JsonObject


class LabelledTask(Task):
    """Examples, each of one class; a subclass makes batches of them.

    unit: what an example is, in the plural; at_once: tokens that are measured at once.
    classes: the names of the classes, whose places are their numbers.
    targets: the classes of the examples of "train", "valid" and "test".
    """

    unit: ClassVar[str]
    at_once: ClassVar[int]

    def __init__(
        self, seed: int, description: DataDescription, labels: Mapping[str, Sequence[str]]
    ) -> None:
        self.seed, self.description = seed, description
        self.classes = classes_of(description)
        number = {name: place for place, name in enumerate(self.classes)}
        self.targets = {
            part: torch.tensor([number[label] for label in own], dtype=torch.long)
            for part, own in labels.items()
        }

    @abstractmethod
    def plans(self, part: str, batch_tokens: int, seed: int | None = None) -> list[Plan]:
        """The batches of a part; seed: of their order, None: that of the examples."""

    @abstractmethod
    def batch_of(self, part: str, plan: Plan) -> Batch:
        """Examples of a part."""

    @property
    def has_test(self) -> bool:
        """See Task.has_test."""
        return bool(len(self.targets["test"]))

    def plan_epoch(self, epoch: int, batch_tokens: int) -> list[Plan]:
        """See Task.plan_epoch."""
        return self.plans("train", batch_tokens, self.seed * 1_000_003 + epoch)

    def batch(self, plan: Plan) -> Batch:
        """See Task.batch."""
        return self.batch_of("train", plan)

    def validation(self, batch_tokens: int) -> list[Batch]:
        """See Task.validation."""
        return [self.batch_of("valid", plan) for plan in self.plans("valid", batch_tokens)]

    def check_split(self, split: str) -> None:
        """See Task.check_split."""
        if split not in ("valid", "test") or not len(self.targets[split]):
            raise InputError(
                f"this run has no {split} data: use --split valid, or train one with task.test or "
                "task.test_share."
            )

    @torch.no_grad()
    def results(
        self, model: Predictor, *, split: str, beam: int, progress: Callable[[int, int], None]
    ) -> Results:
        """Accuracy, macro-F1 and loss on the examples of a split."""
        self.check_split(split)
        expected, done = self.targets[split].numpy(), 0
        logs = np.empty((len(expected), len(self.classes)))
        for plan in self.plans(split, self.at_once):
            batch = self.batch_of(split, plan)
            logs[plan] = model(**batch.inputs).double().log_softmax(-1).numpy()
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
    *,
    read: Callable[[Path], Examples],
    labels_of: Callable[[Examples], list[str]],
    chosen: Callable[[Examples, list[int]], Examples],
    digest_of: Callable[[Examples], str],
    order: Callable[[str], tuple[int, int, str]] = lambda label: (0, 0, label),
) -> Parts[Examples]:
    """The parts that the configuration names; the others are drawn from what is learned from.

    Args:
        config: of the task.
        data: of a run that goes on, or None.
        read: a file or a folder.
        labels_of: the label of each example.
        chosen: the examples at some places.
        digest_of: what tells examples from others.
        order: by which the classes of a new run are sorted.

    Raises: InputError, DataError: they cannot be read, or not be drawn as they were.
    """
    folder = Path(config.folder)
    paths = {part: name for part in ("train", "valid", "test") if (name := getattr(config, part))}
    examples = {part: read(folder / name) for part, name in paths.items()}
    shares = {"test": config.test_share, "valid": config.valid_share}
    drawn = {part: share for part, share in shares.items() if part not in examples}
    train, source = examples["train"], str(folder / config.train)
    facts: JsonObject = {}
    if any(drawn.values()):
        facts = {"drawn_from": digest_of(train)}
        check_unchanged({} if data is None else data.facts, facts, source)
    for part, places in drawn_split(labels_of(train), drawn, config.split_seed, source).items():
        examples[part] = chosen(train, places)
    parts = {part: examples[part] for part in ("train", "valid", "test")}
    sources = {part: str(folder / paths.get(part, config.train)) for part in parts}
    known = data is not None and "classes" in data.facts
    classes = classes_of(data) if data and known else sorted(set(labels_of(train)), key=order)
    for part, of_part in parts.items():
        check_labels(labels_of(of_part), classes, sources[part], all_there=part == "train")
    return Parts(parts, sources, classes, {**facts, "classes": classes})


def read_labelled(path: Path) -> list[LabelledText]:
    """Labelled texts.

    Args:
        path: a file with a line for each text, label TAB text or label TAB id TAB text (.gz too);
            or a folder with a folder for each class, in which each .txt file is a text.

    Raises:
        DataError: a file is missing, not UTF-8 or damaged.
        InputError: lines without a label or a text, or nothing at all.
    """
    examples = _read_folder(path) if path.is_dir() else _read_lines(path)
    if not examples:
        raise InputError(
            f"{path}: no labelled texts. Give lines of label TAB text, or a folder with one for "
            "each class, in which each .txt file is a text."
        )
    return examples


def _read_lines(path: Path) -> list[LabelledText]:
    examples: list[LabelledText] = []
    columns = 0
    text = read_text(path, "labelled texts")
    check_line_ends(text, path)
    for number, line in enumerate(text.split("\n"), 1):
        if not line.strip():
            continue
        fields = [field.strip() for field in line.split("\t")]
        columns = columns or len(fields)
        if len(fields) != columns or columns not in (2, 3) or not fields[0] or not fields[-1]:
            raise InputError(
                f"{path}: line {number} has {len(fields) - 1} tabs; expected label TAB text, or "
                "label TAB id TAB text, the same in all lines, with nothing empty."
            )
        examples.append((fields[0], fields[-1]))
    return examples


def _read_folder(folder: Path) -> list[LabelledText]:
    try:
        files = sorted(path for path in folder.glob("*/*.txt"))
        empty = [path for path in folder.iterdir() if path.is_dir() and not any(path.glob("*.txt"))]
    except OSError as error:
        raise DataError(f"{folder}: cannot be read: {error.strerror}.") from error
    examples = [(path.parent.name, read_text(path, "text").strip()) for path in files]
    empty += [path for path, (_, text) in zip(files, examples, strict=True) if not text]
    if empty:
        raise InputError(f"{empty[0]}: it holds no text. Fill it in, or remove it.")
    return examples


def drawn_split(
    labels: Sequence[str], shares: Mapping[str, float], seed: int, source: str
) -> dict[str, list[int]]:
    """The places of examples, drawn into parts so that each part has its share of every class.

    Args:
        labels: of all examples.
        shares: of each part but the first, "train", which has the rest; 0: the part is empty.
        seed: of what is drawn; the same for the same numbers of examples gives the same.
        source: where they are from, for errors.

    Returns: the parts, each in the order of the examples.
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
    for label, own in sorted(places.items()):
        if len(own) < len(wanted) + 1:
            raise InputError(
                f"{source}: the class {label!r} has {len(own)} example{'s' * (len(own) > 1)}; "
                f"expected {len(wanted) + 1}, one for each of train, {', '.join(wanted)}. Add "
                "some, or remove the class."
            )
        numbers.shuffle(own)
        begin, room = 0, len(own) - 1  # one is left to learn from
        for rest, (name, share) in enumerate(wanted.items(), 1):
            # One at least for this part, and for each that comes after it.
            count = min(max(1, round(share * len(own))), room - begin - (len(wanted) - rest))
            for place in own[begin : begin + count]:
                part_of[place] = name
            begin += count
    split: dict[str, list[int]] = {"train": [], **{name: [] for name in shares}}
    for place, part in enumerate(part_of):
        split[part].append(place)
    return split


def check_labels(
    labels: Sequence[str], classes: Sequence[str], source: str, *, all_there: bool
) -> None:
    """Raise an InputError where a label is no class; all_there: or a class has no example."""
    unknown = set(labels) - set(classes)
    if unknown:
        raise InputError(
            f"{source}: unknown label {min(unknown)!r}; the model knows "
            f"{', '.join(map(repr, classes[:10]))}. Correct it, or learn it from training data "
            "that have it."
        )
    missing = set(classes) - set(labels)
    if all_there and (missing or len(classes) < 2):
        raise InputError(
            f"{source}: the class {min(missing or set(classes))!r} has no examples, or is the only "
            "one. Give examples of two classes or more."
        )
