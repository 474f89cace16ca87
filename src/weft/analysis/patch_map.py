"""Where a row looks in an image, on a grid: of patches where these are all, else of pixels.

Of a vision Transformer, or of places of an image (SAGAN), each key is a patch with a row and a
column, and the map is its weight. Of an image among the tokens of a text it is that of
`weft.analysis.image_map`, its pixels put together to at most 128 x 128:

    cell(r, c) = sum of the map over the pixels of the cell

so that the map sums to the mass of the row on the image either way.
"""

from __future__ import annotations

from dataclasses import dataclass
from typing import Any

import torch
from torch import Tensor

from weft.analysis.arguments import check_trace
from weft.analysis.image_map import image_map, row_of_layer
from weft.errors import InputError
from weft.formats.trace import TraceData
from weft.formats.traced_images import Size
from weft.mechanism.shapes import place_of

__all__ = ["PatchMap", "has_patches", "patch_map"]

#: Cells of a map of pixels along each side, at most.
MOST = 128


@dataclass(frozen=True, eq=False)
class PatchMap:
    """weights: (rows, columns), float64; they sum to mass - outside.

    mass: the weight of the row on the image. outside: on bars beside the picture.
    pixels: rows and columns of the picture that the map covers; None: it is a map of patches.
    of_original: whether these are pixels of the original picture.
    patches: position, row, column and weight of each patch, strongest first.
    """

    weights: Tensor
    mass: float
    outside: float
    pixels: Size | None
    of_original: bool
    patches: list[tuple[int, int, int, float]]


def has_patches(trace: TraceData, sequence: str) -> bool:
    """Whether some tokens of a sequence are patches of an image whose places are known."""
    known = trace.positions.get(sequence, {})
    return "rows" in known and "columns" in known and any(row >= 0 for row in known["rows"])


def patch_map(
    trace: TraceData,
    number: int,
    head: int | None,
    query: int,
    *,
    image: int = 0,
    size: Size | None = None,
) -> PatchMap:
    """The map of a row over an image.

    Args:
        number: of the layer. head: None: the mean of all. query: the position that looks.
        image, size: of an image among the tokens of a text, as `image_map` takes them.

    Raises: InputError: no patch among the keys of the layer, or several of one place; weights that
    are not known exactly; no such head, query or image.
    """
    check_trace("patch_map", trace)
    layer = trace.layers[place_of("trace", "patch_map", "layer", number, len(trace.layers))]
    known = trace.positions.get(layer.keys_from, {})
    if not has_patches(trace, layer.keys_from):
        raise InputError(
            f"patch_map: the keys of layer {layer.name}, {layer.keys_from}, are no patches of an "
            "image whose places are known. Choose a layer that looks at patches."
        )
    if "images" in known:
        seen = image_map(trace, number, head, query, image=image, size=size)
        best = [(at, row, column, weight) for at, _, row, column, weight in seen.patches]
        pixels = (int(seen.weights.shape[0]), int(seen.weights.shape[1]))
        weights = _pooled(seen.weights)
        return PatchMap(
            weights, seen.mass, seen.outside, pixels, seen.of_original, _strongest(best)
        )
    if head is not None:
        head = place_of("layer", "patch_map", "head", head, layer.heads)
    query = place_of("layer", "patch_map", "query", query, layer.shape[1])
    row = row_of_layer(layer, head, query)
    rows, columns = (max(known[side]) + 1 for side in ("rows", "columns"))
    places = [
        (position, at[0], at[1])
        for position, at in enumerate(zip(known["rows"], known["columns"], strict=True))
        if at[0] >= 0 and at[1] >= 0
    ]
    if len({place[1:] for place in places}) < len(places):
        raise InputError(
            f"patch_map: several patches of layer {layer.name} have one place, as of windows that "
            "overlap: a map of them is not known. Choose another layer."
        )
    weights = torch.zeros(rows, columns, dtype=torch.float64)
    found: list[tuple[int, int, int, float]] = []
    for position, at, across in places:
        weight = float(row[position])
        weights[at, across] = weight
        found.append((position, at, across, weight))
    return PatchMap(weights, float(weights.sum()), 0.0, None, False, _strongest(found))


def _strongest(patches: list[tuple[int, int, int, float]]) -> list[tuple[int, int, int, float]]:
    return sorted(patches, key=lambda patch: -patch[3])


def _pooled(weights: Tensor) -> Tensor:
    """The sums over cells of a map of pixels, at most MOST along each side."""
    for side in (0, 1):
        pixels = weights.shape[side]
        if pixels > MOST:
            ends = torch.arange(pixels) * MOST // pixels
            shape: list[Any] = list(weights.shape)
            shape[side] = MOST
            weights = torch.zeros(shape, dtype=weights.dtype).index_add_(side, ends, weights)
    return weights
