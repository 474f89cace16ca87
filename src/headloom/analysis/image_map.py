"""Map of a word's attention on an image, in pixels.

    map(y, x) = sum over patches p of w_p |p and pixel (y, x)| / |p|

w_p is the weight of the word on the image token of patch p, |p| the area of its box, and |p and
pixel| their common area. Each patch spreads its weight evenly over its pixels, so that the map sums
to the mass of the row on the image. If an image is read in tiles and as a whole, a pixel gets a
part of both. If the sequence has patches only, as in a vision Transformer, they are the pixels; or
they cover the whole picture, as if its processor had cropped nothing.
"""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from pathlib import Path
from typing import TYPE_CHECKING, ClassVar

import numpy as np
import pandas
import torch
from numpy.typing import NDArray
from torch import Tensor

from headloom.analysis.arguments import OneTrace, trace_of
from headloom.analysis.weights import Source, weights_of
from headloom.errors import InputError
from headloom.formats.images import image_array, open_image
from headloom.formats.tokens import shown, visible
from headloom.formats.trace import TraceData, TraceLayer, layer_number
from headloom.formats.traced_images import Box, Size, Tile, TracedImage
from headloom.mechanism.drawn import Plotted
from headloom.mechanism.graph import AttentionGraph
from headloom.mechanism.shapes import place_of
from headloom.tracing.vision_language import LAYOUTS

if TYPE_CHECKING:
    from PIL.Image import Image

#: Number of named patches.
_NAMED = 5


@dataclass(frozen=True, eq=False, repr=False)
class ImageMap(Plotted):
    """Weights of a word over an image, in pixels; its string is a sentence.

    weights      (rows, columns) of pixels, float64; sums to mass - outside
    mass         weight of the row on the patches of the image
    outside      part of it on patches outside the picture: bars beside it
    patches      position, tile, row, column and weight of each patch, in the order of the text
    of_original  whether pixels are of the original picture; otherwise of the resized one, from
                 the processor
    query, word  position of the word, and its text
    layer, head  path of the layer; number of the head, None: the mean of all
    number       of the image in the text
    tokens       of the keys, by position
    picture      the original picture, (rows, columns, colours), 0 to 1; None: not given
    is_whole     whether the map covers the whole picture, as if nothing had been cropped

    `plot` draws it over the picture: colours are how many times its mean a weight is.
    """

    _picture: ClassVar[str] = "word_map"

    weights: Tensor
    mass: float
    outside: float
    patches: list[tuple[int, int, int, int, float]]
    of_original: bool
    query: int
    word: str
    layer: str
    head: int | None
    number: int
    tokens: Sequence[str]
    picture: NDArray[np.float32] | None
    is_whole: bool

    @property
    def outside_in_words(self) -> str:
        """Sentence about the mass outside the picture; "": almost none."""
        bars = f", {self.outside:.1%} on bars beside the picture"
        return bars if self.outside >= 0.0005 else ""

    def to_pandas(self) -> pandas.DataFrame:
        """Return the patches: position, tile, row, column, weight."""
        columns = ["position", "tile", "row", "column", "weight"]
        return pandas.DataFrame(self.patches, columns=columns)

    def __repr__(self) -> str:
        best = sorted(self.patches, key=lambda patch: -patch[4])[:_NAMED]
        most = ", ".join(f"{self.tokens[at]} ({weight:.4f})" for at, *_, weight in best)
        line = f"{self.word} ({self.query}) gives {self.mass:.4f} of its weight to the image"
        line += f"{self.outside_in_words}, most to {most}."
        if self.is_whole:
            line += " Over the whole picture, as if its processor had cropped nothing."
        return line


def has_patches(trace: TraceData, sequence: str) -> bool:
    """Return whether a sequence has patches of an image with known places."""
    known = trace.positions.get(sequence, {})
    return "rows" in known and "columns" in known and any(row >= 0 for row in known["rows"])


def image_map(
    trace: OneTrace,
    layer: int | str,
    head: int | None = None,
    token: int | str = -1,
    *,
    image: Path | str | Image | None = None,
    number: int = 0,
    size: Size | None = None,
) -> ImageMap:
    """Map the attention of a word, or a patch, on an image of its text, in pixels.

    Args:
        trace: of a vision-language model on a text with images, or of a vision Transformer; or its
            path.
        layer: its number in the order of the run, as in `trace.layers`, or its path.
        head: its number; None: the mean of all.
        token: the position of the word, negative ones from the end; or its text, if only one token
            has it.
        image: the original picture, or its file, for a map of its pixels.
        number: of the image in the text.
        size: rows and columns of the original picture instead of itself; None: from the trace, or
            of the resized picture.

    Raises: InputError: no such layer, head, token or image; no image at all; no exact weights;
    unknown pixels. DataError: no such trace or picture.
    """
    trace = trace_of("image_map", trace)
    shot: NDArray[np.float32] | None = None
    if image is not None:
        opened = open_image(Path(image)) if isinstance(image, str | Path) else image
        shot = np.moveaxis(image_array(opened), 0, -1)
        size = shot.shape[0], shot.shape[1]
    fitting = [
        i for i, candidate in enumerate(trace.layers) if has_patches(trace, candidate.keys_from)
    ]
    if not fitting:
        raise InputError(
            "image_map: no token of this trace is known to be a part of an image. Give "
            "headloom.trace the processor's output for a text with its images; headloom knows the "
            f"places of images for {', '.join(sorted(LAYOUTS))}, and may not for "
            f"{trace.model.get('type', 'this model')}."
        )
    place = layer_number(trace, layer) if isinstance(layer, str) else layer
    if place not in fitting:
        raise InputError(
            f"image_map: no layer {layer!r} with image patches as keys; there are "
            f"{', '.join(map(str, fitting))}."
        )
    chosen = trace.layers[place]
    known = trace.positions[chosen.keys_from]
    pictures = trace.images if "images" in known else (_of_patches(chosen, known),)
    heads = range(chosen.heads)
    if head is not None:
        head = place_of("layer", "image_map", "head", head, chosen.heads)
        heads = range(head, head + 1)
    number = place_of("text", "image_map", "image", number, len(pictures))
    query = _query(chosen, token)
    picture = pictures[number]
    original = picture.original if size is None else (int(size[0]), int(size[1]))
    if picture.original not in (None, original):
        raise InputError(
            f"image_map: size={size}; the model read a picture of {picture.original} (rows, "
            "columns). Give that picture, or leave size out."
        )
    row = _row(weights_of(chosen, exact=True), heads, query)
    first = [0] * len(row)
    places = zip(
        known.get("images", first), known.get("tiles", first), known["rows"], known["columns"],
        strict=True,
    )  # fmt: skip
    patches = [
        (position, tile, at, across, float(row[position]))
        for position, (of_image, tile, at, across) in enumerate(places)
        if of_image == number and at >= 0
    ]
    weights, outside = _painted(picture, patches, original)
    mass = float(row[[patch[0] for patch in patches]].sum())
    return ImageMap(
        weights, mass, outside, patches, original is not None, query,
        visible(shown(chosen.query_tokens)[query]), chosen.name, head, number,
        shown(chosen.key_tokens), shot, shot is not None and "images" not in known,
    )  # fmt: skip


def _row(source: Source, heads: range, query: int) -> Tensor:
    """Return the weights of a row, (keys,), float64, averaged over some heads."""
    if isinstance(source, AttentionGraph):
        row = torch.zeros(source.length, dtype=torch.float64)
        for head in heads:
            is_edge = source.keys[head, query] >= 0
            row[source.keys[head, query][is_edge]] += source.weights[head, query][is_edge].double()
        return row / len(heads)
    rows = [source[head, query : query + 1, :].double()[0] for head in heads]
    return torch.stack(rows).mean(0)


def _of_patches(layer: TraceLayer, known: Mapping[str, Sequence[int]]) -> TracedImage:
    """Return the picture formed by all patches of a sequence."""
    places = [
        place for place in zip(known["rows"], known["columns"], strict=True) if min(place) >= 0
    ]
    if len(set(places)) < len(places):
        raise InputError(
            f"image_map: several patches of layer {layer.name} have one place, as in overlapping "
            "windows, so there is no map. Choose another layer."
        )
    rows, columns = (max(known[side]) + 1 for side in ("rows", "columns"))
    whole = Tile((0.0, 0.0, float(rows), float(columns)), rows, columns)
    return TracedImage((rows, columns), (whole,), "stretch")


def _query(layer: TraceLayer, token: int | str) -> int:
    """Return the row of a token."""
    tokens = shown(layer.query_tokens)
    if not isinstance(token, str):
        return place_of("layer", "image_map", "token", token, len(tokens))
    for spelled in (list(tokens), [text.strip() for text in tokens], list(layer.query_tokens)):
        places = [place for place, text in enumerate(spelled) if text == token]
        if len(places) == 1:
            return places[0]
        if places:
            raise InputError(
                f"image_map: {len(places)} tokens are {visible(token)!r}. Give the position of "
                f"one: {', '.join(map(str, places[:8]))}."
            )
    raise InputError(
        f"image_map: no token is {visible(token)!r}. Give the text of one token, or its position."
    )


def _painted(
    picture: TracedImage, patches: list[tuple[int, int, int, int, float]], original: Size | None
) -> tuple[Tensor, float]:
    """Return the weights of patches over the pixels of a picture, and the sum outside it."""
    size = original or picture.size
    frame: Box = (0.0, 0.0, float(size[0]), float(size[1]))
    if original is not None:
        frame = picture.frame(original)
    total, outside = torch.zeros(size, dtype=torch.float64), 0.0
    for number, tile in enumerate(picture.tiles):
        cells = torch.zeros(tile.rows, tile.columns, dtype=torch.float64)
        for _, of_tile, row, column, weight in patches:
            if of_tile == number:
                cells[row, column] += weight
        high = _shares(tile.box[0::2], frame[0::2], tile.rows, size[0])
        wide = _shares(tile.box[1::2], frame[1::2], tile.columns, size[1])
        inside = high.any(1)[:, None] & wide.any(1)
        outside += float(cells[~inside].sum())
        rows, columns = _span(high), _span(wide)
        total[rows, columns] += high[:, rows].T @ torch.where(inside, cells, 0) @ wide[:, columns]
    return total, outside


def _span(shares: Tensor) -> slice:
    """Return the range of pixels with a share of patches."""
    places = shares.any(0).nonzero()[:, 0]
    return slice(int(places[0]), int(places[-1]) + 1) if len(places) else slice(0, 0)


def _shares(box: tuple[float, ...], frame: tuple[float, ...], patches: int, pixels: int) -> Tensor:
    """Return the share of each patch in each pixel, along one side, (patches, pixels).

    box: start and end of all patches; frame: start and end of the picture, in the same units. A row
    sums to 1, or to 0 if the patch is outside the picture.
    """
    scale = pixels / (frame[1] - frame[0])
    first, last = ((side - frame[0]) * scale for side in box)
    edges = first + (last - first) * torch.arange(patches + 1, dtype=torch.float64) / patches
    starts = torch.arange(pixels, dtype=torch.float64)
    shared = torch.minimum(edges[1:, None], starts + 1) - torch.maximum(edges[:-1, None], starts)
    # Less than a millionth of a pixel is rounding.
    shared = torch.where(shared > 1e-6, shared, 0)
    whole = shared.sum(1, keepdim=True)
    return torch.where(whole > 0, shared / whole.clamp(min=1e-12), 0)
