"""Families that see a picture whole, as one grid of patches."""

from __future__ import annotations

from typing import Any

from torch import Tensor

from headloom.formats.traced_images import Size, Tile, TracedImage
from headloom.tracing.vision_language.layout import (
    Feature,
    Request,
    SeenImage,
    image_of_tiles,
    sides_of,
)

__all__ = ["fixed", "merged", "stretched"]


def merged(request: Request) -> list[SeenImage] | None:
    """Qwen2-VL and after: pictures of any size, whose patches are merged in squares.

    `image_grid_thw` holds the rows and columns of patches of each picture. The vision tower reads
    them square by square, so that a merged token is one, and these go row by row.
    """
    grids = request.inputs.get("image_grid_thw")
    vision = request.config.vision_config
    if not isinstance(grids, Tensor) or grids.ndim != 2 or grids.shape[1] != 3:
        return None
    images = []
    for times, high, wide in grids.tolist():
        merge, patch = vision.spatial_merge_size, vision.patch_size
        if times != 1 or high % merge or wide % merge:
            return None
        size = (high * patch, wide * patch)
        tile = Tile((0.0, 0.0, float(size[0]), float(size[1])), high // merge, wide // merge)
        images.append(image_of_tiles(TracedImage(size, (tile,), "stretch")))
    return images


def stretched(request: Request) -> list[SeenImage] | None:
    """PaliGemma: pictures that are stretched to one size."""
    return _grids(request, "stretch", None, most_before=0)


def fixed(request: Request) -> list[SeenImage] | None:
    """LLaVA: pictures of one size, of which the class token may be read too, before the patches.

    Its processors crop, pad or stretch, and the model is not told which.
    """
    fit, shortest = fit_of(request.processor, sides_of(request.pixels.shape[-2:]))
    return _grids(request, fit, shortest, most_before=1)


def _grids(
    request: Request, fit: str | None, shortest: int | None, most_before: int
) -> list[SeenImage] | None:
    pixels = request.pixels
    if pixels.ndim != 4 or not len(pixels) or request.tokens % len(pixels):
        return None
    size = sides_of(pixels.shape[-2:])
    patch = sides_of(request.config.vision_config.patch_size)
    rows, columns = size[0] // patch[0], size[1] // patch[1]
    before = request.tokens // len(pixels) - rows * columns
    if not 0 <= before <= most_before:
        return None
    # Pixels that are left over at the right and below belong to no patch.
    tile = Tile((0.0, 0.0, float(rows * patch[0]), float(columns * patch[1])), rows, columns)
    image = image_of_tiles(TracedImage(size, (tile,), fit, shortest))
    first: tuple[Feature, ...] = (None,) * before
    return [SeenImage(image.image, first + image.features)] * len(pixels)


def fit_of(processor: Any, size: Size) -> tuple[str | None, int | None]:
    """How a processor of images makes them of a size, and the length of the shortest side.

    >>> fit_of(None, (336, 336))
    (None, None)
    """
    if processor is None or not getattr(processor, "do_resize", False):
        return None, None
    own = getattr(processor, "size", None)
    shortest = _side(own, "shortest_edge")
    longest = _side(own, "longest_edge")
    crops = bool(getattr(processor, "do_center_crop", False))
    if bool(getattr(processor, "do_pad", False)):
        # A square that is resized to the length of a side, of which nothing is cut away.
        whole = (
            shortest == size[0] == size[1] or (_side(own, "height"), _side(own, "width")) == size
        )
        return ("pad", None) if whole else (None, None)
    if shortest is not None and longest is None:
        return ("crop", shortest) if crops else (None, None)
    if (_side(own, "height"), _side(own, "width")) == size:
        return "stretch", None
    return None, None


def _side(sizes: Any, name: str) -> int | None:
    value = sizes.get(name) if isinstance(sizes, dict) else getattr(sizes, name, None)
    return value if isinstance(value, int) else None
