"""Labelled examples: texts read from lines or from folders; parts that are read or drawn."""

from __future__ import annotations

import random
from collections import Counter
from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass
from pathlib import Path
from typing import Generic, TypeVar

from headloom.errors import DataError, InputError
from headloom.formats.files import JsonMapping, JsonObject, read_text
from headloom.formats.lines import check_line_ends
from headloom.training.config import ImagesConfig, LabelsConfig

__all__ = [
    "LabelledText",
    "Parts",
    "check_classes",
    "check_labels",
    "drawn_split",
    "read_labelled",
    "read_parts",
]

#: A label and its text.
LabelledText = tuple[str, str]
#: The fact, in data.json, that tells the examples from which parts were drawn: their digest.
_DRAWN_FROM = "drawn_from"
#: What has a label, and many of them.
Example = TypeVar("Example")
Examples = TypeVar("Examples")


@dataclass(frozen=True)
class Parts(Generic[Examples]):
    """Labelled examples in parts.

    examples, labels, sources: of "train", "valid" and "test"; sources: where they are from.
    facts: what data.json must know of them.
    """

    examples: dict[str, Examples]
    labels: dict[str, list[str]]
    sources: dict[str, str]
    facts: JsonObject

    def check(self, classes: Sequence[str]) -> None:
        """Raise an InputError where a label is no class, or a class has nothing to learn from."""
        for part, labels in self.labels.items():
            check_labels(labels, classes, self.sources[part], all_there=part == "train")


def read_parts(
    config: LabelsConfig | ImagesConfig,
    known: JsonMapping,
    *,
    read: Callable[[Path], Examples],
    labels_of: Callable[[Examples], list[str]],
    chosen: Callable[[Examples, list[int]], Examples],
    digest_of: Callable[[Examples], str],
) -> Parts[Examples]:
    """The parts that the configuration names; the others are drawn from what is learned from.

    Args:
        config: of the task.
        known: the facts of a run that goes on; of a new one empty.
        read: a file or a folder.
        labels_of: the label of each example.
        chosen: the examples at some places.
        digest_of: what tells examples from others.

    Raises: InputError, DataError: they cannot be read, or not be drawn as they were.
    """
    folder = Path(config.folder)
    paths = {part: name for part in ("train", "valid", "test") if (name := getattr(config, part))}
    examples = {part: read(folder / name) for part, name in paths.items()}
    shares = {"test": config.test_share, "valid": config.valid_share}
    drawn = {part: share for part, share in shares.items() if part not in examples}
    train, source, facts = examples["train"], str(folder / config.train), {}
    if any(drawn.values()):
        facts = {_DRAWN_FROM: digest_of(train)}
        _check_drawn_from(known, facts[_DRAWN_FROM], source)
    places = [(label, place) for place, label in enumerate(labels_of(train))]
    for part, numbered in drawn_split(places, drawn, config.split_seed, source).items():
        examples[part] = chosen(train, [place for _, place in numbered])
    parts = {part: examples[part] for part in ("train", "valid", "test")}
    return Parts(
        parts,
        {part: labels_of(of_part) for part, of_part in parts.items()},
        {part: str(folder / paths.get(part, config.train)) for part in parts},
        facts,
    )


def read_labelled(path: Path) -> list[LabelledText]:
    """Labelled texts.

    Args:
        path: a file with a line for each text, label TAB text or label TAB id TAB text (.gz too);
            or a folder with a folder for each class, in which each .txt file is a text.

    Raises:
        DataError: a file is missing, not UTF-8 or damaged.
        InputError: lines without a label or a text, a class without texts, nothing at all.
    """
    return _read_folder(path) if path.is_dir() else _read_lines(path)


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
        if len(fields) != columns or columns not in (2, 3):
            expected = (
                f"{columns - 1}, as in the lines before"
                if columns in (2, 3)
                else "label TAB text, or label TAB id TAB text"
            )
            raise InputError(
                f"{path}: line {number} has {len(fields) - 1} tabs; expected {expected}."
            )
        if not fields[0] or not fields[-1]:
            what = "label" if not fields[0] else "text"
            raise InputError(f"{path}: line {number} has no {what}. Fill it in, or remove it.")
        examples.append((fields[0], fields[-1]))
    if not examples:
        raise InputError(f"{path}: no labelled texts; the file is empty.")
    return examples


def _read_folder(folder: Path) -> list[LabelledText]:
    try:
        classes = sorted(path for path in folder.iterdir() if path.is_dir())
        files = {path.name: sorted(path.glob("*.txt")) for path in classes}
    except OSError as error:
        raise DataError(f"{folder}: cannot be read: {error.strerror}.") from error
    if not files:
        raise InputError(
            f"{folder}: no folders in it; expected one for each class, with a .txt file a text."
        )
    for name, paths in files.items():
        if not paths:
            raise InputError(
                f"{folder / name}: the class {name!r} has no examples. Put .txt files there, or "
                "remove the folder."
            )
    examples = []
    for name, paths in files.items():
        for path in paths:
            text = read_text(path, "text").strip()
            if not text:
                raise InputError(f"{path}: the text is empty. Fill it in, or remove the file.")
            examples.append((name, text))
    return examples


def drawn_split(
    examples: Sequence[tuple[str, Example]], shares: Mapping[str, float], seed: int, source: str
) -> dict[str, list[tuple[str, Example]]]:
    """Examples drawn into parts, so that each part has its share of every class.

    Args:
        examples: all of them, each with its label before it.
        shares: of each part but the first, "train", which has the rest; 0: the part is empty.
        seed: of what is drawn; the same for the same numbers of examples gives the same.
        source: where they are from, for errors.

    Returns: the parts, each in the order of the examples.
    Raises: InputError: a class has too few examples for every part to have one.

    >>> examples = [("a", "1"), ("a", "2"), ("b", "3"), ("b", "4")]
    >>> split = drawn_split(examples, {"valid": 0.5}, seed=1, source="x")
    >>> [label for label, _ in split["train"]], [label for label, _ in split["valid"]]
    (['a', 'b'], ['a', 'b'])
    """
    wanted = {name: share for name, share in shares.items() if share > 0}
    numbers = random.Random(seed)
    places: dict[str, list[int]] = {}
    for place, (label, _) in enumerate(examples):
        places.setdefault(label, []).append(place)
    part_of = ["train"] * len(examples)
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
    split: dict[str, list[tuple[str, Example]]] = {"train": [], **{name: [] for name in shares}}
    for part, example in zip(part_of, examples, strict=True):
        split[part].append(example)
    return split


def _check_drawn_from(facts: JsonMapping, found: str, source: str) -> None:
    """Raise an InputError where parts of a run were drawn from other examples.

    From others, other parts are drawn: what is measured on would have been learned from.

    Args: facts: that the run knows; found: the digest of the examples; source: where they are from.
    """
    if facts.get(_DRAWN_FROM, found) != found:
        raise InputError(
            f"{source}: it has changed since this run drew its parts from it, and others would be "
            "drawn now. Put it back, or train again in another folder with --run."
        )


def check_classes(classes: Sequence[str], source: str) -> None:
    """Raise an InputError where there are not two classes."""
    if len(classes) < 2:
        raise InputError(
            f"{source}: one class, {classes[0]!r}; expected two or more, or there is nothing to "
            "learn."
        )


def check_labels(
    labels: Sequence[str], classes: Sequence[str], source: str, *, all_there: bool
) -> None:
    """Raise an InputError where a label is no class; all_there: or where a class has no example."""
    counts = Counter(labels)
    for label in counts:
        if label not in classes:
            examples = f"{counts[label]} example{'s' if counts[label] > 1 else ''}"
            known = ", ".join(map(repr, classes[:10])) + (", ..." if len(classes) > 10 else "")
            raise InputError(
                f"{source}: unknown label {label!r}, of {examples}; the model knows "
                f"{known}. Correct the label, or learn it from training data that have it."
            )
    for label in classes:
        if all_there and not counts[label]:
            raise InputError(
                f"{source}: the class {label!r} has no examples. Add some, or train another run "
                "without it."
            )
