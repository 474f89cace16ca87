"""Images: which tokens are patches, and what a row looks at.

The picture itself is in no trace. The page draws one that its reader chooses, and sends no part of
it here but its rows and columns of pixels.
"""

from __future__ import annotations

import dataclasses

import torch
from torch import Tensor

from headloom.analysis.image_map import has_patches, image_map
from headloom.errors import DataError, InputError
from headloom.formats.files import JsonObject, finite
from headloom.formats.trace import TraceData
from headloom.formats.traced_images import Size
from headloom.studio.arrays import few_digits

#: Patches that are named; cells of a map of pixels along a side, at most.
_NAMED, _MOST = 8, 128


def patches(trace: TraceData) -> JsonObject:
    """By sequence the row, the column and the image of each token; -1: it is no patch."""
    found: dict[str, JsonObject] = {}
    for name in trace.sequences:
        if has_patches(trace, name):
            known = trace.positions[name]
            found[name] = {side: list(known[side]) for side in ("rows", "columns")}
            found[name]["images"] = list(known["images"]) if "images" in known else None
    return {"sequences": found, "images": len(trace.images)}


def looks(
    trace: TraceData, number: int, head: int | None, query: int, image: int, size: Size | None
) -> JsonObject:
    """problem: why there is no map, in one line; else the map, its mass, and the best patches."""
    # Layers of their own, so that what is read of them can be let go.
    own = dataclasses.replace(trace, layers=tuple(map(dataclasses.replace, trace.layers)))
    # Where patches are all that there is, they are the whole picture, whatever its size.
    of_pixels = "images" in own.positions.get(own.layers[number].keys_from, {})
    image, size = (image, size) if of_pixels else (0, None)
    try:
        seen = image_map(own, number, head, query, number=image, size=size)
    except DataError:
        raise
    except InputError as error:
        return {"problem": str(error)}
    weights = _pooled(seen.weights) if of_pixels else seen.weights
    rows, columns = weights.shape
    best = sorted(seen.patches, key=lambda patch: -patch[4])[:_NAMED]
    cleaned: JsonObject = finite(
        {
            "problem": None,
            "rows": rows,
            "columns": columns,
            "weights": [few_digits(weight, 7) for weight in weights.flatten().tolist()],
            "mass": seen.mass,
            "outside": seen.outside,
            "pixels": list(seen.weights.shape) if of_pixels else None,
            "of_original": seen.of_original,
            "best": [[at, row, column, weight] for at, _, row, column, weight in best],
        }
    )
    return cleaned


def _pooled(weights: Tensor) -> Tensor:
    """The sums of a map over cells of pixels, at most 128 along each side."""
    for side, pixels in enumerate(weights.shape):
        if pixels > _MOST:
            ends = torch.arange(pixels) * _MOST // pixels
            shape = [_MOST if at == side else size for at, size in enumerate(weights.shape)]
            weights = weights.new_zeros(shape).index_add_(side, ends, weights)
    return weights
