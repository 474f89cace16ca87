"""Images: each of one class, normalised by the training data."""

from __future__ import annotations

import hashlib
from collections.abc import Callable, Sequence
from functools import partial

import numpy as np
import torch
from numpy.typing import NDArray
from torch import Tensor

from headloom.errors import InputError
from headloom.formats.files import JsonObject
from headloom.formats.images import LabelledImages, read_images
from headloom.models.image_classifier import ImageShape
from headloom.models.predictor import Predictor
from headloom.training.batches import Batch
from headloom.training.data import DataDescription, classes_of
from headloom.training.labelled import read_parts
from headloom.training.measures.corpus import Results, digest, mean_measure
from headloom.training.measures.labels import label_measures
from headloom.training.sections import ImagesConfig
from headloom.training.tasks.task import Plan, Probe, Task

__all__ = ["ImagesTask", "images_task", "mean_deviation", "normalised", "shape_of"]

#: Pixels of the images that are measured at once.
_AT_ONCE = 65_536


def shape_of(data: DataDescription) -> ImageShape:
    """The size of the images that a run sees. Raises: DataError: data.json does not say it."""
    sizes = data.facts.get("shape")
    whole = isinstance(sizes, list) and all(type(size) is int and size > 0 for size in sizes)
    if not isinstance(sizes, list) or not whole or len(sizes) != 3:
        raise data.fault("data.json of this run says no size of images")
    return ImageShape(*sizes)


def mean_deviation(data: DataDescription) -> tuple[Tensor, Tensor]:
    """Of each channel, (channels, 1, 1), over the training data.

    Raises: DataError: data.json does not say them.
    """
    channels = shape_of(data).channels
    numbers = [data.facts.get(name) for name in ("mean", "deviation")]
    if any(
        not isinstance(values, list)
        or len(values) != channels
        or any(type(value) not in (int, float) for value in values)
        for values in numbers
    ):
        raise data.fault("data.json of this run lacks the mean and deviation of its images")
    mean, deviation = (torch.tensor(values).view(-1, 1, 1) for values in numbers)
    return mean, deviation


def normalised(images: NDArray[np.float32], data: DataDescription) -> Tensor:
    """``(x - mean) / deviation`` of each channel, by the training data.

    Args: images: (images, channels, rows, columns), 0 to 1; data: of the run.
    Raises: DataError: data.json does not say the means.
    """
    mean, deviation = mean_deviation(data)
    return (torch.from_numpy(images) - mean) / deviation


class ImagesTask(Task):
    """Labelled images.

    Args:
        seed: of the order of the examples.
        data: classes, size of the images, mean and deviation of their channels.
        split: the examples of "train", "valid" and "test".
    """

    def __init__(self, seed: int, data: DataDescription, split: dict[str, LabelledImages]) -> None:
        self.seed, self.description, self.split = seed, data, split
        self.classes, self.shape = classes_of(data), shape_of(data)
        self._pixels = self.shape.rows * self.shape.columns
        self._images = {part: normalised(each.images, data) for part, each in split.items()}
        number = {name: place for place, name in enumerate(self.classes)}
        self._targets = {
            part: torch.tensor([number[label] for label in each.labels], dtype=torch.long)
            for part, each in split.items()
        }

    @property
    def has_test(self) -> bool:
        """See Task.has_test."""
        return bool(self.split["test"].labels)

    def sizes(self) -> dict[str, int]:
        """See Task.sizes."""
        counts = {f"{part} images": len(each.labels) for part, each in self.split.items()}
        return {
            **counts,
            "classes": len(self.classes),
            "rows": self.shape.rows,
            "columns": self.shape.columns,
            "channels": self.shape.channels,
        }

    def plan_epoch(self, epoch: int, batch_tokens: int) -> list[Plan]:
        """See Task.plan_epoch. The tokens of an image are its pixels."""
        count = len(self._targets["train"])
        seed = (self.seed * 1_000_003 + epoch) % 2**63
        generator = torch.Generator().manual_seed(seed)
        return self._cut(torch.randperm(count, generator=generator).tolist(), batch_tokens)

    def _cut(self, places: Sequence[int], batch_tokens: int) -> list[Plan]:
        size = max(1, batch_tokens // self._pixels)
        return [list(places[start : start + size]) for start in range(0, len(places), size)]

    def batch(self, plan: Plan) -> Batch:
        """See Task.batch."""
        return self._batch("train", plan)

    def _batch(self, part: str, plan: Plan) -> Batch:
        images, targets = self._images[part][plan], self._targets[part][plan]
        return Batch({"images": images}, targets, len(plan) * self._pixels)

    def validation(self, batch_tokens: int) -> list[Batch]:
        """See Task.validation."""
        plans = self._cut(range(len(self._targets["valid"])), batch_tokens)
        return [self._batch("valid", plan) for plan in plans]

    def probe(self) -> Probe:
        """The first validation image."""
        return Probe({"images": self._images["valid"][:1]}, {})

    def check_split(self, split: str) -> None:
        """See Task.check_split."""
        if split not in ("valid", "test") or not self.split[split].labels:
            raise InputError(
                f"this run has no {split} data: use --split valid, or train one with task.test or "
                "task.test_share."
            )

    def digest(self, split: str) -> str:
        """See Task.digest."""
        self.check_split(split)
        return _digest(self.split[split])

    @torch.no_grad()
    def results(
        self, model: Predictor, *, split: str, beam: int, progress: Callable[[int, int], None]
    ) -> Results:
        """Accuracy, macro-F1 and loss on the images of a split."""
        self.check_split(split)
        expected = self._targets[split].numpy()
        rows, done = [], 0
        for plan in self._cut(range(len(expected)), _AT_ONCE):
            batch = self._batch(split, plan)
            rows.append(model(**batch.inputs).double().log_softmax(-1).numpy())
            done += len(plan)
            progress(done, len(expected))
        logs = np.concatenate(rows)
        nats = -logs[np.arange(len(expected)), expected]
        loss = mean_measure("loss", "loss, nats", nats, np.ones(len(nats)), higher=False)
        measures = [*label_measures(expected, logs.argmax(1), len(self.classes)), loss]
        facts: JsonObject = {"examples": len(expected), "classes": len(self.classes)}
        return Results(split, "images", measures, facts)


def images_task(config: ImagesConfig, seed: int, data: DataDescription | None) -> ImagesTask:
    """The task with its images read, and split where the configuration names no files."""
    parts = read_parts(
        config,
        data,
        read=partial(read_images, colour=config.colour, size=config.size),
        labels_of=lambda examples: examples.labels,
        chosen=LabelledImages.chosen,
        digest_of=_digest,
        order=_order,
    )
    if data is None:
        data = DataDescription(None, {**parts.facts, **_measured(parts.examples["train"])})
    shape = shape_of(data)
    for part, examples in parts.examples.items():
        own = examples.images.shape[1:]
        if own != (shape.channels, shape.rows, shape.columns):
            raise InputError(
                f"{parts.sources[part]}: images have {own[0]} channels, {own[1]} x {own[2]} "
                f"pixels; those that are learned from have {shape.channels}, {shape.rows} x "
                f"{shape.columns}. Give images of one size, or task.size and task.colour."
            )
    return ImagesTask(seed, data, parts.examples)


def _digest(examples: LabelledImages) -> str:
    """What tells labelled images from others."""
    content = hashlib.sha256(np.ascontiguousarray(examples.images).data).hexdigest()
    return digest([content, examples.labels])


def _measured(train: LabelledImages) -> JsonObject:
    """The size of training images, and the mean and deviation of their channels."""
    exact = train.images.astype(np.float64)
    deviation = exact.std((0, 2, 3))
    return {
        "shape": list(train.images.shape[1:]),
        "mean": exact.mean((0, 2, 3)).tolist(),
        # A channel that is the same everywhere is left at 0.
        "deviation": np.where(deviation > 0, deviation, 1.0).tolist(),
    }


def _order(label: str) -> tuple[int, int, str]:
    """Whole numbers by their size, before all else.

    >>> sorted(["10", "9", "cat"], key=_order)
    ['9', '10', 'cat']
    """
    number = label.removeprefix("-").isdecimal() and label.isascii()
    return (0, int(label[:18]), label) if number else (1, 0, label)
