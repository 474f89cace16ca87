"""What a family says of the images in its inputs.

A vision-language model writes the features of its images over the image tokens of its text, in
their order through the whole batch. A layout says what these features are, in the same order:
patches of an image, or what stands between them.
"""

from __future__ import annotations

from collections.abc import Callable
from dataclasses import dataclass
from typing import Any

from torch import Tensor

from headloom.formats.traced_images import Box, Size, Tile, TracedImage
from headloom.tracing.arguments import Inputs

__all__ = [
    "Feature",
    "Layout",
    "Request",
    "SeenImage",
    "image_of_tiles",
    "runs",
    "sides_of",
    "square",
]

#: The tile, the row and the column of a patch; None: a feature that is no patch, as a newline.
Feature = tuple[int, int, int] | None


@dataclass(frozen=True)
class SeenImage:
    """An image, and what each of its image tokens stands for."""

    image: TracedImage
    features: tuple[Feature, ...]


@dataclass(frozen=True)
class Request:
    """What a layout is made from: the configuration of the model, its inputs, its processor.

    tokens: how many image tokens there are in the batch. processor: of images; None: not known.
    """

    config: Any
    inputs: Inputs
    tokens: int
    processor: Any = None

    @property
    def ids(self) -> Tensor:
        """The ids of the tokens, (batch, length)."""
        ids: Tensor = self.inputs["input_ids"]
        return ids

    @property
    def pixels(self) -> Tensor:
        """What the model sees."""
        pixels: Tensor = self.inputs["pixel_values"]
        return pixels


#: The images of a whole batch, in the order of their tokens; None: the inputs say another thing.
Layout = Callable[[Request], list[SeenImage] | None]


def image_of_tiles(image: TracedImage) -> SeenImage:
    """An image whose patches are all read, tile after tile and row by row."""
    return SeenImage(
        image,
        tuple(
            (number, row, column)
            for number, tile in enumerate(image.tiles)
            for row, column in tile.patches()
        ),
    )


def square(size: int, side: int, box: Box | None = None) -> Tile:
    """A square tile of side x side patches: of so many pixels, or in a box."""
    return Tile(box or (0.0, 0.0, float(size), float(size)), side, side)


def runs(ids: list[int], token: int) -> list[tuple[int, int]]:
    """Where a token stands several times in a row: the first place and the end of each run.

    >>> runs([1, 7, 7, 2, 7], 7)
    [(1, 3), (4, 5)]
    """
    starts = [i for i, own in enumerate(ids) if own == token and (i == 0 or ids[i - 1] != token)]
    ends = [
        i + 1
        for i, own in enumerate(ids)
        if own == token and (i + 1 == len(ids) or ids[i + 1] != token)
    ]
    return list(zip(starts, ends, strict=True))


def sides_of(value: Any) -> Size:
    """Rows and columns of what may be one number for both."""
    high, wide = (value, value) if isinstance(value, int) else value
    return int(high), int(wide)
