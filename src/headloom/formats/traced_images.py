"""Positions of image patches that a model reads between the tokens of a text.

A processor turns a picture into the model's input: it resizes, crops or pads it, and may cut it
into tiles. `TracedImage` holds the box of each tile and its patches in the resized picture, and
computes the box of the original picture. Boxes are (top, left, bottom, right) in pixels; corners
can lie between two pixels or, with cropping or padding, outside of the picture.
"""

from __future__ import annotations

import math
from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from typing import Any

from headloom.errors import InputError
from headloom.formats.files import JsonMapping, JsonObject

Size = tuple[int, int]
Box = tuple[float, float, float, float]

#: Facts about each position of a text with images: -1 where it is no patch.
NAMES = ("images", "tiles", "rows", "columns")
#: Ways in which a processor fits a picture into the model's input.
#:  stretch  each side to its length
#:  crop     the shortest side to a length, then a crop of the middle
#:  pad      bars beside the picture make it square
#:  contain  as large as possible with the same aspect ratio, bars beside it
FITS = ("stretch", "crop", "pad", "contain")
#: The most pixels of a side, and patches of it.
_MOST = 2**20


@dataclass(frozen=True)
class Tile:
    """Part of the picture that is cut into patches of one size, row by row.

    box: in pixels of the resized picture. rows, columns: of patches.
    """

    box: Box
    rows: int
    columns: int

    def patches(self) -> list[tuple[int, int]]:
        """Return row and column of each patch, in the order in which models read them."""
        return [(row, column) for row in range(self.rows) for column in range(self.columns)]


@dataclass(frozen=True)
class TracedImage:
    """Image among the tokens of a text.

    size      rows and columns of pixels of the resized picture
    tiles     in the order of the model
    fit       one of `FITS`; None: unknown
    shortest  with "crop": the length that the shortest side was resized to
    original  rows and columns of pixels of the original picture, where known
    """

    size: Size
    tiles: tuple[Tile, ...]
    fit: str | None = None
    shortest: int | None = None
    original: Size | None = None

    def frame(self, original: Size) -> Box:
        """Return the box of an original picture of this size within the resized one.

        Raises: InputError: it is not known how it was resized.
        """
        high, wide = self.size
        if self.fit == "stretch":
            return 0.0, 0.0, float(high), float(wide)
        if self.fit == "crop" and self.shortest is not None:
            return cropped(original, self.shortest, (high, wide))
        if self.fit == "pad":
            longest = max(original)
            starts = [(longest - side) // 2 for side in original]
            top, left = (start * high / longest for start in starts)
            return (
                top, left, top + original[0] * high / longest, left + original[1] * wide / longest,
            )  # fmt: skip
        if self.fit == "contain":
            return contained(original, (high, wide))
        raise InputError(
            "image_map: it is unknown whether the processor cropped, padded or stretched this "
            "picture, so the map cannot be drawn on its original pixels. Give the processor as "
            "tokenizer= when you trace the model, or leave size out for the pixels of pixel_values."
        )

    def to_manifest(self) -> JsonObject:
        """Return the manifest entry of the image."""
        return {
            "size": list(self.size),
            "tiles": [{"box": list(t.box), "grid": [t.rows, t.columns]} for t in self.tiles],
            "fit": self.fit,
            "shortest": self.shortest,
            "original": self.original and list(self.original),
        }

    @classmethod
    def from_manifest(cls, entry: JsonMapping) -> TracedImage:
        """Restore an image from its entry in the manifest."""

        def pair(value: Sequence[int] | None) -> Size | None:
            rows, columns = value or (1, 1)
            return None if value is None else (rows, columns)

        tiles = []
        for tile in entry["tiles"]:
            (top, left, bottom, right), (rows, columns) = tile["box"], tile["grid"]
            tiles.append(Tile((top, left, bottom, right), rows, columns))
        size, original = pair(entry["size"]) or (0, 0), pair(entry["original"])
        return cls(size, tuple(tiles), entry["fit"], entry["shortest"], original)


def tile_box(row: int, column: int, size: Size) -> Box:
    """Return the box of a tile in a grid of tiles of one size.

    >>> tile_box(1, 2, (10, 20))
    (10.0, 40.0, 20.0, 60.0)
    """
    high, wide = map(float, size)
    return row * high, column * wide, (row + 1) * high, (column + 1) * wide


def cropped(original: Size, shortest: int, size: Size) -> Box:
    """Return the box of a picture whose shortest side was resized before its middle was cropped.

    >>> cropped((100, 200), 50, (50, 50))
    (0.0, -25.0, 50.0, 75.0)
    """
    scale = shortest / min(original)
    # The other side is rounded down, as Transformers does.
    high, wide = (
        shortest if side == min(original) else int(shortest * side / min(original))
        for side in original
    )
    if scale <= 0 or high < size[0] or wide < size[1]:
        raise InputError(
            f"image_map: a picture of {original[0]} x {original[1]} pixels, resized to {high} x "
            f"{wide}, has no middle of {size[0]} x {size[1]}. Give the size of the picture that "
            "the processor read."
        )
    top, left = float((high - size[0]) // 2), float((wide - size[1]) // 2)
    return 0.0 - top, 0.0 - left, high - top, wide - left


def contained(original: Size, size: Size) -> Box:
    """Return the box of a picture centred between bars, as large as possible.

    >>> contained((100, 200), (80, 80))
    (20.0, 0.0, 60.0, 80.0)
    """
    high, wide = (side / length for side, length in zip(size, original, strict=True))
    if wide < high:
        inner = min(math.ceil(original[0] * wide), size[0]), size[1]
    else:
        inner = size[0], min(math.ceil(original[1] * high), size[1])
    top, left = ((side - length) // 2 for side, length in zip(size, inner, strict=True))
    return float(top), float(left), float(top + inner[0]), float(left + inner[1])


def are_images(value: Any, known: Mapping[str, Mapping[str, list[int]]]) -> bool:
    """Whether a value is a valid list of images of a manifest; known: its positions."""
    try:
        images = [TracedImage.from_manifest(entry) for entry in value]
        sound = all(map(_is_sound, images))
        for entries in known.values():
            if "images" not in entries:
                continue
            # There cannot be more patches than tokens.
            most = len(entries["images"])
            sound &= all(t.rows * t.columns <= most for image in images for t in image.tiles)
            for place in zip(*(entries[name] for name in NAMES), strict=True):
                if place[0] != -1:
                    tile = images[place[0]].tiles[place[1]]
                    sound &= min(place) >= 0 and place[2] < tile.rows and place[3] < tile.columns
    except (KeyError, IndexError, TypeError, ValueError):
        return False
    return sound


def _is_sound(image: TracedImage) -> bool:
    """Whether the numbers of an image are valid."""
    sides = [*image.size, *(image.original or (1,)), image.shortest or 1]
    sides += [side for tile in image.tiles for side in (tile.rows, tile.columns)]
    boxes = [tile.box for tile in image.tiles]
    return (
        bool(boxes)
        and image.fit in (*FITS, None)
        and all(type(side) is int and 0 < side <= _MOST for side in sides)
        and all(abs(side) <= _MOST for box in boxes for side in box)
        and all(top < bottom and left < right for top, left, bottom, right in boxes)
    )
