"""Families that cut a picture into tiles, and see it whole besides."""

from __future__ import annotations

from torch import Tensor

from headloom.formats.traced_images import TracedImage, tile_box
from headloom.tracing.vision_language.layout import (
    Request,
    SeenImage,
    image_of_tiles,
    runs,
    square,
)

__all__ = ["split", "tiled"]


def split(request: Request) -> list[SeenImage] | None:
    """Idefics 3 and SmolVLM: rows of tiles, then the whole picture.

    Each tile is a run of image tokens. The model is not told the rows and columns of tiles, but the
    text is: it begins a tile with a token, the same that ends the picture, and begins a row of
    tiles with a line of its own. Pixel shuffle makes one token of scale_factor x scale_factor
    patches, row by row.
    """
    high, wide = request.pixels.shape[-2:]
    config = request.config
    mask = request.inputs.get("pixel_attention_mask")
    side = high // config.vision_config.patch_size // config.scale_factor
    if high != wide or request.pixels.ndim != 5 or not _is_full(mask):
        return None
    images = []
    for ids in request.ids.tolist():
        places = runs(ids, config.image_token_id)
        if any(end - start != side * side for start, end in places):
            return None
        for rows, columns in _rows_and_columns(ids, places):
            if rows * columns < 1:
                return None
            images.append(image_of_tiles(_split_image(rows, columns, high, side)))
    return images


def _is_full(mask: object) -> bool:
    """Whether every pixel of each tile is seen; tiles of which none is are padding."""
    if not isinstance(mask, Tensor):
        return True
    flat = mask.flatten(2) != 0
    return bool((flat.all(-1) | ~flat.any(-1)).all())


def _split_image(rows: int, columns: int, pixels: int, side: int) -> TracedImage:
    """An image of so many tiles and the whole of it; of one alone that is the whole."""
    size = (rows * pixels, columns * pixels)
    tiles = [
        square(pixels, side, tile_box(row, column, (pixels, pixels)))
        for row in range(rows)
        for column in range(columns)
    ]
    if len(tiles) > 1:
        tiles.append(square(pixels, side, (0.0, 0.0, float(size[0]), float(size[1]))))
    return TracedImage(size, tuple(tiles), "stretch")


def _rows_and_columns(ids: list[int], places: list[tuple[int, int]]) -> list[tuple[int, int]]:
    """The rows and columns of tiles of each image, by what stands between its runs.

    (0, 0): what stands there is not what the processor writes.
    """
    if not places:
        return []
    last = places[-1][1]
    if last == len(ids):
        return [(0, 0)]
    # The token that ends every picture also begins every tile.
    border = ids[last]
    found, tiles, ends = [], 0, 0
    for number, (_, end) in enumerate(places):
        tiles += 1
        following = places[number + 1][0] if number + 1 < len(places) else end
        between = ids[end:following]
        if number + 1 == len(places) or between.count(border) > 1:
            # The last run of an image is the whole picture, and alone where it was not cut.
            whole = tiles == 1
            fits = whole or (ends > 0 and (tiles - 1) % ends == 0)
            columns = 1 if whole else (tiles - 1) // max(ends, 1)
            found.append((1 if whole else ends, columns) if fits else (0, 0))
            tiles = ends = 0
        elif between.count(border) != 1:
            return [(0, 0)]
        elif between[0] != border:
            ends += 1
    return found


def tiled(request: Request) -> list[SeenImage] | None:
    """InternVL: one tile, or several and then the whole picture, in one run of image tokens.

    Rows and columns of tiles go by the size of the original picture, which the model is not told.
    Pixel shuffle makes one token of several patches, row by row.
    """
    config = request.config
    high, wide = request.pixels.shape[-2:]
    patch = config.vision_config.patch_size
    patch = patch if isinstance(patch, int) else patch[0]
    side = int(high // patch * config.downsample_ratio)
    if high != wide or request.pixels.ndim != 4 or not side:
        return None
    images = []
    for ids in request.ids.tolist():
        for start, end in runs(ids, config.image_token_id):
            count, left = divmod(end - start, side * side)
            if left or count == 2:
                return None
            tile = square(high, side)
            image = TracedImage((high, wide) if count == 1 else None, (tile,) * count, "stretch")
            images.append(image_of_tiles(image))
    return images
