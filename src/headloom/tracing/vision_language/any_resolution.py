"""LLaVA-NeXT and LLaVA-OneVision: the whole picture, then its tiles joined to one grid.

The picture is made as large as it goes into one of several resolutions, in the middle of bars, and
cut into tiles. Their features are joined to one grid, of which what lies in the bars is cut away;
after each row of it stands the same learned vector, a newline. So an image has two tiles here: 0,
the whole picture, stretched to a square, and 1, the grid of all tiles.

Source: Liu et al. 2024, "LLaVA-NeXT: Improved reasoning, OCR, and world knowledge"; Li et al. 2024,
"LLaVA-OneVision", section 3.2, for the limit of the tokens.
"""

from __future__ import annotations

import math

from torch import Tensor

from headloom.formats.traced_images import Box, Size, Tile, TracedImage, contained
from headloom.tracing.vision_language.layout import Feature, Request, SeenImage, square

__all__ = ["any_resolution", "any_resolution_at_most"]


def any_resolution(request: Request) -> list[SeenImage] | None:
    """LLaVA-NeXT."""
    sizes = _sizes(request)
    return None if sizes is None else [_image(request, size, None) for size in sizes]


def any_resolution_at_most(request: Request) -> list[SeenImage] | None:
    """LLaVA-OneVision: at most so many tiles' worth of tokens; several pictures are not tiled."""
    sizes = _sizes(request)
    limit = getattr(request.config, "vision_aspect_ratio", "")
    counts = request.inputs.get("batch_num_images")
    if sizes is None or not limit.startswith("anyres_max_"):
        return None
    numbers = [1] * len(sizes) if counts is None else [int(number) for number in counts]
    alone = [number == 1 for number in numbers for _ in range(number)]
    if len(alone) != len(sizes):
        return None
    most = int(limit.removeprefix("anyres_max_"))
    return [
        _image(request, size, most) if single else _padded(request, size)
        for size, single in zip(sizes, alone, strict=True)
    ]


def _sizes(request: Request) -> list[Size] | None:
    """The sizes of the original pictures, which the inputs say."""
    sizes = request.inputs.get("image_sizes")
    if not isinstance(sizes, Tensor) or sizes.ndim != 2 or sizes.shape[1] != 2:
        return None
    return [(int(high), int(wide)) for high, wide in sizes.tolist()]


def _image(request: Request, original: Size, most: int | None) -> SeenImage:
    """An image and its features: of the whole picture, and row by row of the grid of its tiles."""
    vision = request.config.vision_config
    side, pixels = vision.image_size // vision.patch_size, vision.image_size
    size = _resolution(original, request.config.image_grid_pinpoints)
    rows, columns = (length // pixels * side for length in size)
    top, left = _bars(original, (rows, columns))
    rows, columns = rows - 2 * top, columns - 2 * left
    patch = pixels / side
    box = (top * patch, left * patch, (top + rows) * patch, (left + columns) * patch)
    ratio = 0.0 if most is None else math.sqrt(rows * columns / (most * side**2))
    if ratio > 1.1:
        # As `interpolate` makes it smaller: each token is a part of the same box.
        rows, columns = int(rows // ratio), int(columns // ratio)
    tiles = (square(pixels, side, contained(original, size)), Tile(box, rows, columns))
    features: list[Feature] = [(0, *place) for place in tiles[0].patches()]
    for row in range(rows):
        features += [(1, row, column) for column in range(columns)]
        features.append(None)
    image = TracedImage(size, tiles, "contain", original=original)
    return SeenImage(image, tuple(features))


def _padded(request: Request, original: Size) -> SeenImage:
    """One of several images: padded to a square, not cut, with one newline at the end."""
    vision = request.config.vision_config
    tile = square(vision.image_size, vision.image_size // vision.patch_size)
    box: Box = tile.box
    image = TracedImage((int(box[2]), int(box[3])), (tile,), "pad", original=original)
    patches: list[Feature] = [(0, *place) for place in tile.patches()]
    return SeenImage(image, (*patches, None))


def _resolution(original: Size, choices: list[list[int]]) -> Size:
    """The resolution into which most of a picture's pixels go, and of such the smallest."""
    best, most, least = (0, 0), 0, math.inf
    for high, wide in choices:
        scale = min(wide / original[1], high / original[0])
        inner = int(original[1] * scale) * int(original[0] * scale)
        used = min(inner, original[0] * original[1])
        wasted = high * wide - used
        if used > most or (used == most and wasted < least):
            best, most, least = (int(high), int(wide)), used, wasted
    return best


def _bars(original: Size, grid: Size) -> Size:
    """How many rows of a grid, above and below, and columns, on both sides, lie in the bars."""
    rows, columns = grid
    if original[1] / original[0] > columns / rows:
        return (rows - int(round(original[0] * (columns / original[1]), 7))) // 2, 0
    return 0, (columns - int(round(original[1] * (rows / original[0]), 7))) // 2
