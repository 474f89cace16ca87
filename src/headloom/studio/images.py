"""Images: which tokens are patches, and the attention map of a row.

A trace does not contain the picture. The page draws one that the user chooses, and sends only its
size in pixels.
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

#: Listed patches; cells of a map of pixels along a side at most.
_NAMED, _MOST = 8, 128


def patches(trace: TraceData) -> JsonObject:
    """Return by sequence the row, column and image of each token; -1: not a patch."""
    sequences: dict[str, JsonObject] = {}
    for name in trace.sequences:
        if has_patches(trace, name):
            known = trace.positions[name]
            sequences[name] = {side: list(known[side]) for side in ("rows", "columns")}
            sequences[name]["images"] = list(known["images"]) if "images" in known else None
    return {"sequences": sequences, "images": len(trace.images)}


def looks(
    trace: TraceData, number: int, head: int | None, query: int, image: int, size: Size | None
) -> JsonObject:
    """Return the map of a row, its mass and the strongest patches, or the `problem`."""
    # Copies of the layers, so that their arrays can be freed.
    copy = dataclasses.replace(trace, layers=tuple(map(dataclasses.replace, trace.layers)))
    # Without a text, the patches cover the whole picture, whatever its size.
    of_pixels = "images" in copy.positions.get(copy.layers[number].keys_from, {})
    image, size = (image, size) if of_pixels else (0, None)
    try:
        result = image_map(copy, number, head, query, number=image, size=size)
    except DataError:
        raise
    except InputError as error:
        return {"problem": str(error)}
    weights = _pooled(result.weights) if of_pixels else result.weights
    rows, columns = weights.shape
    best = sorted(result.patches, key=lambda patch: -patch[4])[:_NAMED]
    cleaned: JsonObject = finite(
        {
            "problem": None, "rows": rows, "columns": columns,
            "weights": [few_digits(weight, 7) for weight in weights.flatten().tolist()],
            "mass": result.mass, "outside": result.outside,
            "pixels": list(result.weights.shape) if of_pixels else None,
            "of_original": result.of_original,
            "best": [[at, row, column, weight] for at, _, row, column, weight in best],
        }
    )  # fmt: skip
    return cleaned


def _pooled(weights: Tensor) -> Tensor:
    """Sum a map over cells of pixels, at most 128 along each side."""
    for side, pixels in enumerate(weights.shape):
        if pixels > _MOST:
            ends = torch.arange(pixels) * _MOST // pixels
            shape = [_MOST if at == side else size for at, size in enumerate(weights.shape)]
            weights = weights.new_zeros(shape).index_add_(side, ends, weights)
    return weights
