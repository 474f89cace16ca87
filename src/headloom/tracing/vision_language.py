"""Positions of image patches among the tokens of a text, for each family of models.

A vision-language model replaces the image tokens of its texts by the features of its images, in
their order through the whole batch. A layout lists these features in the same order: patches of an
image, or separators between them. `LAYOUTS` is the table of families.
"""

from __future__ import annotations

import math
from collections.abc import Callable
from dataclasses import dataclass
from functools import partial
from itertools import groupby, product
from typing import TYPE_CHECKING, Any

import torch
from torch import Tensor, nn

from headloom.formats.traced_images import NAMES, Size, Tile, TracedImage, contained, tile_box
from headloom.tracing.arguments import Inputs

if TYPE_CHECKING:
    from transformers import PretrainedConfig

#: Tile, row and column of a patch; None: a feature that is not a patch, such as a newline.
Feature = tuple[int, int, int] | None


@dataclass(frozen=True)
class ImageFeatures:
    """Image, and the feature of each of its image tokens."""

    image: TracedImage
    features: tuple[Feature, ...]


@dataclass(frozen=True)
class Request:
    """Input of a layout: the configuration of the model, its inputs, its processor.

    tokens: number of image tokens in the batch. processor: of images; None: unknown.
    """

    config: PretrainedConfig
    inputs: Inputs
    tokens: int
    processor: object = None

    @property
    def pixels(self) -> Tensor:
        """Images, (..., rows, columns)."""
        pixels: Tensor = self.inputs["pixel_values"]
        return pixels


#: Images of a whole batch, in the order of their tokens; None: the inputs do not fit the layout.
Layout = Callable[[Request], list[ImageFeatures] | None]


def _tile(rows: int, columns: int, high: float, wide: float) -> Tile:
    return Tile((0.0, 0.0, float(high), float(wide)), rows, columns)


def _all_patches(
    size: Size, tiles: list[Tile], fit: str | None, shortest: int | None = None
) -> ImageFeatures:
    """Return an image whose patches are all read, tile after tile and row by row."""
    features = [(number, *place) for number, tile in enumerate(tiles) for place in tile.patches()]
    return ImageFeatures(TracedImage(size, tuple(tiles), fit, shortest), tuple(features))


def _merged(request: Request) -> list[ImageFeatures] | None:
    """Return the images of Qwen2-VL and later: of any size, with patches merged in squares.

    `image_grid_thw` holds the rows and columns of patches of each image.
    """
    grids, vision = request.inputs.get("image_grid_thw"), request.config.vision_config
    if not isinstance(grids, Tensor) or bool((grids[:, 0] != 1).any()):
        return None
    merge, patch, images = vision.spatial_merge_size, vision.patch_size, []
    for _, rows, columns in grids.tolist():
        size = (rows * patch, columns * patch)
        tile = _tile(rows // merge, columns // merge, *size)
        images.append(_all_patches(size, [tile], "stretch"))
    return images


def _whole(request: Request, most_before: int) -> list[ImageFeatures] | None:
    """Return the images of PaliGemma and LLaVA: of one size.

    LLaVA may read the class token before the patches too, and its processors crop, pad or stretch;
    the inputs do not tell which.
    """
    pixels, patch = request.pixels, request.config.vision_config.patch_size
    if pixels.ndim != 4 or not len(pixels) or request.tokens % len(pixels):
        return None
    high, wide = pixels.shape[-2:]
    rows, columns = high // patch, wide // patch
    before = request.tokens // len(pixels) - rows * columns
    if not 0 <= before <= most_before:
        return None
    fit = _fit_of(request.processor, (high, wide)) if most_before else ("stretch", None)
    # Pixels left over at the right and at the bottom belong to no patch.
    whole = _all_patches((high, wide), [_tile(rows, columns, rows * patch, columns * patch)], *fit)
    first: tuple[Feature, ...] = (None,) * before
    return [ImageFeatures(whole.image, first + whole.features)] * len(pixels)


def _fit_of(processor: object, size: Size) -> tuple[str | None, int | None]:
    """Return the way a processor resizes images, and the length of the shortest side."""
    if not getattr(processor, "do_resize", False):
        return None, None
    target = getattr(processor, "size", None) or {}
    shortest, longest, high, wide = (
        target.get(name) if isinstance(target, dict) else getattr(target, name, None)
        for name in ("shortest_edge", "longest_edge", "height", "width")
    )
    if getattr(processor, "do_pad", False):
        # A square resized to the length of a side, without cropping.
        whole = shortest == size[0] == size[1] or (high, wide) == size
        return ("pad" if whole else None), None
    if shortest is not None and longest is None:
        cropped = bool(getattr(processor, "do_center_crop", False))
        return ("crop", shortest) if cropped else (None, None)
    return ("stretch" if (high, wide) == size else None), None


def _split(request: Request) -> list[ImageFeatures] | None:
    """Return the images of Idefics 3 and SmolVLM: rows of tiles, then the whole image.

    Each tile is a run of image tokens. The number of rows and columns of tiles follows from the
    text: one token begins each tile and ends the image, and a newline begins each row of tiles.
    Pixel shuffle makes one token of scale_factor x scale_factor patches, row by row.
    """
    config, (high, wide) = request.config, request.pixels.shape[-2:]
    mask = request.inputs.get("pixel_attention_mask", torch.ones(1, 1, 1)).flatten(2) != 0
    side = high // config.vision_config.patch_size // config.scale_factor
    # Tiles are whole, or all padding.
    if high != wide or not bool((mask.all(-1) | ~mask.any(-1)).all()):
        return None
    images = []
    for ids in request.inputs["input_ids"].tolist():
        places, start = [], 0  # start and end of each run of image tokens
        for of_image, run in groupby(ids, lambda number: number == config.image_token_id):
            end = start + len(list(run))
            places += [(start, end)] * of_image
            start = end
        sizes = _rows_and_columns(ids, places)
        if sizes is None or any(end - start != side * side for start, end in places):
            return None
        for rows, columns in sizes:
            size = (rows * high, columns * high)
            grid = product(range(rows), range(columns))
            tiles = [Tile(tile_box(*place, (high, high)), side, side) for place in grid]
            tiles += [_tile(side, side, *size)] * (len(tiles) > 1)
            images.append(_all_patches(size, tiles, "stretch"))
    return images


def _rows_and_columns(ids: list[int], places: list[tuple[int, int]]) -> list[Size] | None:
    """Return the rows and columns of tiles of each image, by the ids between its runs."""
    if not places or places[-1][1] == len(ids):
        return None if places else []
    # The token that ends every image also begins every tile.
    border = ids[places[-1][1]]
    sizes: list[Size] = []
    tiles = rows = 0
    for (_, end), (following, _) in zip(places, [*places[1:], places[-1]], strict=True):
        tiles += 1
        between = ids[end:following]
        if following < end or between.count(border) > 1:
            # The last run of an image is the whole image, and the only one if it was not cut.
            if tiles > 1 and (not rows or (tiles - 1) % rows):
                return None
            sizes.append((1, 1) if tiles == 1 else (rows, (tiles - 1) // rows))
            tiles = rows = 0
        elif between.count(border) != 1:
            return None
        elif between[0] != border:
            rows += 1
    return sizes


def _any_resolution(request: Request) -> list[ImageFeatures] | None:
    """Return the images of LLaVA-NeXT: the whole image, then its tiles joined to one grid.

    The image is resized to fit into one of several resolutions, centred between bars, and cut into
    tiles. Their features are joined to one grid without the bars; a learned vector, the newline,
    follows each row. So an image has two tiles here: 0, the whole image, stretched to a square, and
    1, the grid of all tiles.

    Source: Liu et al. 2024, "LLaVA-NeXT: Improved reasoning, OCR, and world knowledge".
    """
    sizes, vision = request.inputs.get("image_sizes"), request.config.vision_config
    if not isinstance(sizes, Tensor):
        return None
    pixels, side = vision.image_size, vision.image_size // vision.patch_size
    patch, images = pixels / side, []
    for high, wide in sizes.tolist():
        original = (high, wide)
        size = _resolution(original, request.config.image_grid_pinpoints)
        rows, columns = (length // pixels * side for length in size)
        top, left = _bars(original, (rows, columns))
        rows, columns = rows - 2 * top, columns - 2 * left
        box = (top * patch, left * patch, (top + rows) * patch, (left + columns) * patch)
        tiles = (Tile(contained(original, size), side, side), Tile(box, rows, columns))
        features: list[Feature] = [(0, *place) for place in tiles[0].patches()]
        for row in range(rows):
            features += [*((1, row, column) for column in range(columns)), None]
        image = TracedImage(size, tiles, "contain", original=original)
        images.append(ImageFeatures(image, tuple(features)))
    return images


def _resolution(original: Size, choices: list[list[int]]) -> Size:
    """Return the smallest of the resolutions that keep the most pixels of an image."""

    def room(choice: list[int]) -> tuple[int, int]:
        high, wide = choice
        scale = min(wide / original[1], high / original[0])
        used = min(int(original[1] * scale) * int(original[0] * scale), original[0] * original[1])
        return used, -(high * wide - used)

    high, wide = max(choices, key=room)
    return int(high), int(wide)


def _bars(original: Size, grid: Size) -> Size:
    """Return the rows (above and below) and columns (left and right) of a grid in the bars."""
    rows, columns = grid
    if original[1] / original[0] > columns / rows:
        return (rows - math.floor(round(original[0] * (columns / original[1]), 7))) // 2, 0
    return 0, (columns - math.floor(round(original[1] * (rows / original[0]), 7))) // 2


#: Layouts of families, by the model type of their configuration.
LAYOUTS: dict[str, Layout] = {
    "qwen2_vl": _merged,
    "qwen2_5_vl": _merged,
    "qwen3_vl": _merged,
    "llava": partial(_whole, most_before=1),
    "paligemma": partial(_whole, most_before=0),
    "idefics3": _split,
    "smolvlm": _split,
    "llava_next": _any_resolution,
}


@dataclass(frozen=True)
class ImagesOfText:
    """Images of one text of a batch.

    places: image, tile, row and column of each token; -1: not a patch.
    """

    images: tuple[TracedImage, ...]
    places: list[tuple[int, int, int, int]]

    def known(self, span: slice) -> dict[str, list[int]]:
        """Return the image, tile, row and column of some positions, for `Trace.positions`."""
        places = self.places[span]
        return {name: [place[number] for place in places] for number, name in enumerate(NAMES)}

    def named(self, names: list[str], span: slice) -> list[str]:
        """Return the names of some positions; patches are named by their place."""
        named = list(names)
        for number, (image, tile, row, column) in enumerate(self.places[span]):
            if image >= 0:
                of_image = f"image {image}, " * (len(self.images) > 1)
                of_tile = f"tile {tile}, " * (len(self.images[image].tiles) > 1)
                named[number] = f"{of_image}{of_tile}patch {row},{column}"
        return named


def images_of_texts(
    model: nn.Module, inputs: Inputs, processor: Any, prompt: int | None = None
) -> list[ImagesOfText] | None:
    """Return the images of each text of a batch; None: no images, or an unknown layout.

    Args:
        model: of Transformers.
        inputs: from its processor.
        processor: of the model, or of images; anything else is ignored.
        prompt: length of the prompt; generated tokens hold no image.
    """
    config: Any = getattr(model, "config", None)
    layout, token = LAYOUTS.get(getattr(config, "model_type", "")), None
    ids, pixels = inputs.get("input_ids"), inputs.get("pixel_values")
    if layout is not None and isinstance(ids, Tensor) and isinstance(pixels, Tensor):
        token = getattr(config, "image_token_id", None)
    if layout is None or token is None or ids is None or ids.ndim != 2:
        return None
    of_image = ids == token
    of_image[:, prompt:] &= prompt is None
    count = int(of_image.sum())
    images = getattr(processor, "image_processor", processor)
    laid_out = layout(Request(config, inputs, count, images)) or []
    features = [(number, part) for number, image in enumerate(laid_out) for part in image.features]
    # Several texts may be generated from one prompt, side by side in the batch.
    copies, left = divmod(count, len(features) or 1)
    if not features or left or not copies or len(ids) % copies:
        return None
    texts, start = [], 0
    for row, marked in enumerate(of_image, 1):
        where = marked.nonzero()[:, 0].tolist()
        part = features[start : start + len(where)]
        start += len(where) if row % copies == 0 else 0
        first, end = (part[0][0], part[-1][0] + 1) if part else (0, 0)
        whole = laid_out[first:end]  # a text holds whole images
        if len(where) != len(part) or len(part) != sum(len(x.features) for x in whole):
            return None
        places = [(-1, -1, -1, -1)] * ids.shape[1]
        for place, (number, feature) in zip(where, part, strict=True):
            if feature is not None:
                places[place] = (number - first, *feature)
        texts.append(ImagesOfText(tuple(image.image for image in whole), places))
    return texts
