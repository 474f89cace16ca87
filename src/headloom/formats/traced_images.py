"""Where the patches of an image lie, which a model reads between the tokens of a text.

A processor makes of a picture what the model sees: it resizes, crops or pads it, and may cut it
into tiles. `TracedImage` says where each patch of each tile lies in the resized picture, and where
the original picture lies in that. Boxes are (top, left, bottom, right) in pixels, whose corners may
lie between two pixels, or, of padding, outside of the picture.
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

#: What is known of each position of a text with images: -1 where it is no patch.
NAMES = ("images", "tiles", "rows", "columns")
#: How a processor fits a picture into what the model sees.
#:  stretch  each side to its length
#:  crop     the shortest side to a length; then the middle is cut out
#:  pad      bars beside the picture make it square
#:  contain  as large as it goes in without a change of its shape; bars beside it
FITS = ("stretch", "crop", "pad", "contain")
#: The most pixels of a side, and patches of it.
_MOST = 2**20


@dataclass(frozen=True)
class Tile:
    """A part of the picture that is cut into patches of one size, row by row.

    box: the part, in pixels of the resized picture. rows, columns: of patches.
    """

    box: Box
    rows: int
    columns: int

    def patches(self) -> list[tuple[int, int]]:
        """The row and the column of each patch, in the order in which models read them."""
        return [(row, column) for row in range(self.rows) for column in range(self.columns)]


@dataclass(frozen=True)
class TracedImage:
    """An image among the tokens of a text.

    size      rows and columns of pixels of the picture as its processor resized it
    tiles     in the order of the model
    fit       one of `FITS`; None: it is not known how the processor made it of the original
    shortest  with "crop": the length that the shortest side was resized to
    original  rows and columns of pixels of the picture that the processor was given, where known
    """

    size: Size
    tiles: tuple[Tile, ...]
    fit: str | None = None
    shortest: int | None = None
    original: Size | None = None

    def frame(self, original: Size) -> Box:
        """Where a picture of some size lies within the resized one.

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
            "image_map: it is not known whether the processor cropped, padded or stretched this "
            "picture, so that its own pixels are not known either. Give the processor as "
            "tokenizer= when you trace the model, or leave size out for the pixels of pixel_values."
        )

    def stored(self) -> JsonObject:
        """What the manifest of a trace says of it."""
        return {
            "size": list(self.size),
            "tiles": [{"box": list(t.box), "grid": [t.rows, t.columns]} for t in self.tiles],
            "fit": self.fit,
            "shortest": self.shortest,
            "original": self.original and list(self.original),
        }

    @classmethod
    def read(cls, entry: JsonMapping) -> TracedImage:
        """Made again of what the manifest says."""

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
    """The box of a tile of a grid of tiles, all of one size.

    >>> tile_box(1, 2, (10, 20))
    (10.0, 40.0, 20.0, 60.0)
    """
    high, wide = map(float, size)
    return row * high, column * wide, (row + 1) * high, (column + 1) * wide


def cropped(original: Size, shortest: int, size: Size) -> Box:
    """Where a picture lies whose shortest side became a length before its middle was cut out.

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
    """Where a picture lies in the middle of bars, as large as it goes in.

    >>> contained((100, 200), (80, 80))
    (20.0, 0.0, 60.0, 80.0)
    """
    high, wide = (side / own for side, own in zip(size, original, strict=True))
    if wide < high:
        inner = min(math.ceil(original[0] * wide), size[0]), size[1]
    else:
        inner = size[0], min(math.ceil(original[1] * high), size[1])
    top, left = ((side - own) // 2 for side, own in zip(size, inner, strict=True))
    return float(top), float(left), float(top + inner[0]), float(left + inner[1])


def are_images(value: Any, known: Mapping[str, Mapping[str, list[int]]]) -> bool:
    """Whether something is what a manifest may say of images; known: its positions."""
    try:
        images = [TracedImage.read(entry) for entry in value]
        sound = all(map(_is_sound, images))
        for entries in known.values():
            if "images" not in entries:
                continue
            # More patches than tokens there cannot be.
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
    """Whether the numbers of an image are those of one."""
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
