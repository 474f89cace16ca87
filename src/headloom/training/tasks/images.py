"""Image classification, with channels normalised by the training data."""

from __future__ import annotations

import hashlib
from functools import partial

import numpy as np
import torch
from numpy.typing import NDArray
from torch import Tensor

from headloom.errors import InputError
from headloom.formats.files import JsonObject
from headloom.formats.images import LabelledImages, read_images
from headloom.models.images import ImageShape
from headloom.training.batches import Batch
from headloom.training.data import DataDescription
from headloom.training.measures import digest
from headloom.training.sections import ImagesConfig
from headloom.training.tasks.labels import LabelledTask, read_parts
from headloom.training.tasks.task import Plan, Probe


def shape_of(data: DataDescription) -> ImageShape:
    """Return the image size of a run. Raises: DataError: data.json lacks it."""
    sizes = data.facts.get("shape")
    if not isinstance(sizes, list) or [type(size) for size in sizes] != [int, int, int]:
        raise data.fault("data.json of this run lacks the image size")
    return ImageShape(*sizes)


def mean_deviation(data: DataDescription) -> tuple[Tensor, Tensor]:
    """Return mean and deviation of each channel, (channels, 1, 1), over the training data.

    Raises: DataError: data.json lacks them.
    """
    try:
        values = [[float(x) for x in data.facts[name]] for name in ("mean", "deviation")]
    except (KeyError, TypeError, ValueError):
        values = []
    if [len(numbers) for numbers in values] != [shape_of(data).channels] * 2:
        raise data.fault("data.json of this run lacks the mean and deviation of its images")
    mean, deviation = torch.tensor(values)[..., None, None]
    return mean, deviation


def normalised(images: NDArray[np.float32], data: DataDescription) -> Tensor:
    """Normalise each channel by the training data: ``(x - mean) / deviation``.

    Args: images: (images, channels, rows, columns), 0 to 1; data: of the run.
    Raises: DataError: data.json lacks the means.
    """
    mean, deviation = mean_deviation(data)
    return (torch.from_numpy(images) - mean) / deviation


class ImagesTask(LabelledTask):
    """Task of labelled images.

    Args:
        seed: of the order of the examples.
        data: classes, size of the images, mean and deviation of their channels.
        split: the examples of "train", "valid" and "test".
    """

    unit, at_once = "images", 65_536

    def __init__(self, seed: int, data: DataDescription, split: dict[str, LabelledImages]) -> None:
        super().__init__(seed, data, split)
        self.split, self.shape = split, shape_of(data)
        self._pixels = self.shape.rows * self.shape.columns
        self._images = {part: normalised(examples.images, data) for part, examples in split.items()}

    def sizes(self) -> dict[str, int]:
        counts = {f"{part} images": len(data.labels) for part, data in self.split.items()}
        return {**counts, "classes": len(self.classes), **self.shape._asdict()}

    def plans(self, part: str, batch_tokens: int, seed: int | None = None) -> list[Plan]:
        """Plan the batches of a part. The tokens of an image are its pixels."""
        count = len(self.targets[part])
        places = list(range(count))
        if seed is not None:
            generator = torch.Generator().manual_seed(seed % 2**63)
            places = torch.randperm(count, generator=generator).tolist()
        size = max(1, batch_tokens // self._pixels)
        return [places[start : start + size] for start in range(0, count, size)]

    def batch_of(self, part: str, plan: Plan) -> Batch:
        images, targets = self._images[part][plan], self.targets[part][plan]
        return Batch({"images": images}, targets, len(plan) * self._pixels)

    def probe(self) -> Probe:
        """Return the first validation image."""
        return Probe({"images": self._images["valid"][:1]}, {})

    def digest(self, split: str) -> str:
        self.check_split(split)
        return _digest(self.split[split])


def images_task(config: ImagesConfig, seed: int, data: DataDescription | None) -> ImagesTask:
    """Make the task: read its images, and split them where no files are configured."""
    read = partial(read_images, colour=config.colour, size=config.size)
    parts = read_parts(config, data, read, _digest)
    if data is None:
        data = DataDescription(None, {**parts.facts, **_measured(parts.examples["train"])})
    shape = shape_of(data)
    for part, examples in parts.examples.items():
        sizes = examples.images.shape[1:]
        if sizes != (shape.channels, shape.rows, shape.columns):
            raise InputError(
                f"{parts.sources[part]}: images have {sizes[0]} channels, {sizes[1]} x {sizes[2]} "
                f"pixels; the training images have {shape.channels}, {shape.rows} x "
                f"{shape.columns}. Use images of one size, or set task.size and task.colour."
            )
    return ImagesTask(seed, data, parts.examples)


def _digest(examples: LabelledImages) -> str:
    """Return a hash of images and labels."""
    content = hashlib.sha256(np.ascontiguousarray(examples.images).data).hexdigest()
    return digest([content, examples.labels])


def _measured(train: LabelledImages) -> JsonObject:
    """Return the size of training images, and mean and deviation of their channels."""
    exact = train.images.astype(np.float64)
    deviation = exact.std((0, 2, 3))
    return {
        "shape": list(train.images.shape[1:]),
        "mean": exact.mean((0, 2, 3)).tolist(),
        # A constant channel becomes 0.
        "deviation": np.where(deviation > 0, deviation, 1.0).tolist(),
    }
