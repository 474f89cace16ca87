"""Where the patches of images stand among the tokens of a text, family by family.

A vision-language model writes the features of its images over the image tokens of its text, in
their order through the whole batch. A layout says what these features are, in the same order:
patches of an image, or what stands between them. `LAYOUTS` is the table of families.
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

    config: PretrainedConfig
    inputs: Inputs
    tokens: int
    processor: object = None

    @property
    def pixels(self) -> Tensor:
        """What the model sees, (..., rows, columns)."""
        pixels: Tensor = self.inputs["pixel_values"]
        return pixels

    def runs(self) -> list[tuple[list[int], list[tuple[int, int]]]]:
        """The ids of each text, and the first place and the end of each run of image tokens."""
        texts = []
        for ids in self.inputs["input_ids"].tolist():
            places, start = [], 0
            for of_image, run in groupby(ids, lambda own: own == self.config.image_token_id):
                end = start + len(list(run))
                places += [(start, end)] * of_image
                start = end
            texts.append((ids, places))
        return texts


#: The images of a whole batch, in the order of their tokens; None: the inputs say another thing.
Layout = Callable[[Request], list[SeenImage] | None]


def _tile(rows: int, columns: int, high: float, wide: float) -> Tile:
    return Tile((0.0, 0.0, float(high), float(wide)), rows, columns)


def _seen(size: Size, tiles: list[Tile], fit: str | None, shortest: int | None = None) -> SeenImage:
    """An image whose patches are all read, tile after tile and row by row."""
    features = [(number, *place) for number, tile in enumerate(tiles) for place in tile.patches()]
    return SeenImage(TracedImage(size, tuple(tiles), fit, shortest), tuple(features))


def _merged(request: Request) -> list[SeenImage] | None:
    """Qwen2-VL and after: pictures of any size, whose patches are merged in squares.

    `image_grid_thw` holds the rows and columns of patches of each picture.
    """
    grids, vision = request.inputs.get("image_grid_thw"), request.config.vision_config
    if not isinstance(grids, Tensor) or bool((grids[:, 0] != 1).any()):
        return None
    merge, patch, images = vision.spatial_merge_size, vision.patch_size, []
    for _, rows, columns in grids.tolist():
        size = (rows * patch, columns * patch)
        images.append(_seen(size, [_tile(rows // merge, columns // merge, *size)], "stretch"))
    return images


def _whole(request: Request, most_before: int) -> list[SeenImage] | None:
    """PaliGemma, and LLaVA: pictures of one size.

    LLaVA may read the class token too, before the patches, and its processors crop, pad or stretch:
    the model is not told which.
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
    # Pixels that are left over at the right and below belong to no patch.
    seen = _seen((high, wide), [_tile(rows, columns, rows * patch, columns * patch)], *fit)
    first: tuple[Feature, ...] = (None,) * before
    return [SeenImage(seen.image, first + seen.features)] * len(pixels)


def _fit_of(processor: object, size: Size) -> tuple[str | None, int | None]:
    """How a processor of images makes them of a size, and the length of the shortest side."""
    if not getattr(processor, "do_resize", False):
        return None, None
    own = getattr(processor, "size", None) or {}
    shortest, longest, high, wide = (
        own.get(name) if isinstance(own, dict) else getattr(own, name, None)
        for name in ("shortest_edge", "longest_edge", "height", "width")
    )
    if getattr(processor, "do_pad", False):
        # A square that is resized to the length of a side, of which nothing is cut away.
        whole = shortest == size[0] == size[1] or (high, wide) == size
        return ("pad" if whole else None), None
    if shortest is not None and longest is None:
        cropped = bool(getattr(processor, "do_center_crop", False))
        return ("crop", shortest) if cropped else (None, None)
    return ("stretch" if (high, wide) == size else None), None


def _split(request: Request) -> list[SeenImage] | None:
    """Idefics 3 and SmolVLM: rows of tiles, then the whole picture.

    Each tile is a run of image tokens. The model is not told the rows and columns of tiles, but the
    text is: it begins a tile with a token, the same that ends the picture, and begins a row of
    tiles with a line of its own. Pixel shuffle makes one token of scale_factor x scale_factor
    patches, row by row.
    """
    config, (high, wide) = request.config, request.pixels.shape[-2:]
    mask = request.inputs.get("pixel_attention_mask", torch.ones(1, 1, 1)).flatten(2) != 0
    side = high // config.vision_config.patch_size // config.scale_factor
    # Every pixel of each tile is seen; tiles of which none is are padding.
    if high != wide or not bool((mask.all(-1) | ~mask.any(-1)).all()):
        return None
    images = []
    for ids, places in request.runs():
        sizes = _rows_and_columns(ids, places)
        if sizes is None or any(end - start != side * side for start, end in places):
            return None
        for rows, columns in sizes:
            size = (rows * high, columns * high)
            grid = product(range(rows), range(columns))
            tiles = [Tile(tile_box(*place, (high, high)), side, side) for place in grid]
            tiles += [_tile(side, side, *size)] * (len(tiles) > 1)
            images.append(_seen(size, tiles, "stretch"))
    return images


def _rows_and_columns(ids: list[int], places: list[tuple[int, int]]) -> list[Size] | None:
    """The rows and columns of tiles of each image, by what stands between its runs."""
    if not places or places[-1][1] == len(ids):
        return None if places else []
    # The token that ends every picture also begins every tile.
    border = ids[places[-1][1]]
    sizes: list[Size] = []
    tiles = rows = 0
    for (_, end), (following, _) in zip(places, [*places[1:], places[-1]], strict=True):
        tiles += 1
        between = ids[end:following]
        if following < end or between.count(border) > 1:
            # The last run of an image is the whole picture, and alone where it was not cut.
            if tiles > 1 and (not rows or (tiles - 1) % rows):
                return None
            sizes.append((1, 1) if tiles == 1 else (rows, (tiles - 1) // rows))
            tiles = rows = 0
        elif between.count(border) != 1:
            return None
        elif between[0] != border:
            rows += 1
    return sizes


def _any_resolution(request: Request) -> list[SeenImage] | None:
    """LLaVA-NeXT: the whole picture, then its tiles joined to one grid.

    The picture is made as large as it goes into one of several resolutions, in the middle of bars,
    and cut into tiles. Their features are joined to one grid, of which what lies in the bars is cut
    away; after each row of it stands the same learned vector, a newline. So an image has two tiles
    here: 0, the whole picture, stretched to a square, and 1, the grid of all tiles.

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
        images.append(SeenImage(image, tuple(features)))
    return images


def _resolution(original: Size, choices: list[list[int]]) -> Size:
    """The resolution into which most of a picture's pixels go, and of such the smallest."""

    def room(choice: list[int]) -> tuple[int, int]:
        high, wide = choice
        scale = min(wide / original[1], high / original[0])
        used = min(int(original[1] * scale) * int(original[0] * scale), original[0] * original[1])
        return used, -(high * wide - used)

    high, wide = max(choices, key=room)
    return int(high), int(wide)


def _bars(original: Size, grid: Size) -> Size:
    """How many rows of a grid, above and below, and columns, on both sides, lie in the bars."""
    rows, columns = grid
    if original[1] / original[0] > columns / rows:
        return (rows - math.floor(round(original[0] * (columns / original[1]), 7))) // 2, 0
    return 0, (columns - math.floor(round(original[1] * (rows / original[0]), 7))) // 2


#: The families whose layout is known, by the type that their configuration names.
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
    """The images of one text of a batch.

    places: image, tile, row and column of each of its tokens, -1 where it is no patch.
    """

    images: tuple[TracedImage, ...]
    places: list[tuple[int, int, int, int]]

    def known(self, span: slice) -> dict[str, list[int]]:
        """What `Trace.positions` says of some positions."""
        places = self.places[span]
        return {name: [place[number] for place in places] for number, name in enumerate(NAMES)}

    def named(self, names: list[str], span: slice) -> list[str]:
        """The names of some positions, those of patches by where they lie."""
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
    """The images of each text of a batch; None: there are none, or their layout is not known.

    Args:
        model: of Transformers.
        inputs: what its processor made.
        processor: of the model, or of images; anything else says nothing.
        prompt: how many tokens were given; what was generated after them holds no image.
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
    seen = layout(Request(config, inputs, count, images)) or []
    features = [(number, part) for number, image in enumerate(seen) for part in image.features]
    # Several texts may be written of one, side by side in the batch.
    copies, left = divmod(count, len(features) or 1)
    if not features or left or not copies or len(ids) % copies:
        return None
    texts, start = [], 0
    for row, marked in enumerate(of_image, 1):
        where = marked.nonzero()[:, 0].tolist()
        own = features[start : start + len(where)]
        start += len(where) if row % copies == 0 else 0
        first, end = (own[0][0], own[-1][0] + 1) if own else (0, 0)
        # The features of a text are those of whole images.
        if len(where) != len(own) or len(own) != sum(len(x.features) for x in seen[first:end]):
            return None
        places = [(-1, -1, -1, -1)] * ids.shape[1]
        for place, (number, feature) in zip(where, own, strict=True):
            if feature is not None:
                places[place] = (number - first, *feature)
        texts.append(ImagesOfText(tuple(image.image for image in seen[first:end]), places))
    return texts
