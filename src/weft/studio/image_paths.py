"""The paths of the studio's server for images: which tokens are patches, and what a row looks at.

The picture itself is in no trace. The page draws one that its reader chooses, and sends no part of
it here but its rows and columns of pixels.
"""

from __future__ import annotations

import dataclasses
from typing import Annotated

from fastapi import FastAPI, Path, Request, Response

from weft.analysis.patch_map import has_patches, patch_map
from weft.errors import DataError, InputError
from weft.formats.files import JsonObject, finite
from weft.formats.trace import TraceData
from weft.formats.traced_images import Size
from weft.studio.digits import few_digits
from weft.studio.pieces import JSON, Number, Pieces, within

__all__ = ["add_images"]

#: A head's number, or the mean of all.
HeadOrMean = Annotated[str, Path(pattern=r"^(mean|0|[1-9][0-9]{0,8})$")]
#: Patches that are named.
_NAMED = 8
#: Rows or columns of pixels of a picture, at most.
_SIDE = 2**20


def add_images(app: FastAPI, pieces: Pieces) -> None:
    """Add them."""

    @app.get("/api/examples/{example}/patches", responses=JSON, response_class=Response)
    def patches(request: Request, example: Number) -> Response:
        """By sequence the row, the column and the image of each token; -1: it is no patch."""
        trace = pieces.example(example).trace
        return pieces.json(request, lambda: _patches(trace))

    @app.get(
        "/api/examples/{example}/layers/{layer}/looks/{head}/{query}/{image}/{rows}/{columns}",
        responses=JSON,
        response_class=Response,
    )
    def looks(
        request: Request,
        example: Number,
        layer: Number,
        head: HeadOrMean,
        query: Number,
        image: Number,
        rows: Number,
        columns: Number,
    ) -> Response:
        """The map of a row over an image; rows, columns: of the picture's pixels, or 0, unknown."""
        chosen, number = pieces.layer(example, layer)
        of_layer = chosen.trace.layers[number]
        of_head = None if head == "mean" else within("head", head, of_layer.heads)
        place = within("query", query, of_layer.shape[1])
        of_image = within("image", image, max(1, len(chosen.trace.images)))
        sides = within("row of pixels", rows, _SIDE), within("column of pixels", columns, _SIDE)
        size = sides if all(sides) else None
        return pieces.json(
            request, lambda: _looks(chosen.trace, number, of_head, place, of_image, size)
        )


def _patches(trace: TraceData) -> JsonObject:
    found: dict[str, JsonObject] = {}
    for name in trace.sequences:
        if has_patches(trace, name):
            known = trace.positions[name]
            found[name] = {side: list(known[side]) for side in ("rows", "columns")}
            found[name]["images"] = list(known["images"]) if "images" in known else None
    return {"sequences": found, "images": len(trace.images)}


def _looks(
    trace: TraceData, number: int, head: int | None, query: int, image: int, size: Size | None
) -> JsonObject:
    """problem: why there is no map, in one line; else the map, its mass, and the best patches."""
    # Layers of their own, so that what is read of them can be let go.
    own = dataclasses.replace(trace, layers=tuple(map(dataclasses.replace, trace.layers)))
    try:
        seen = patch_map(own, number, head, query, image=image, size=size)
    except DataError:
        raise
    except InputError as error:
        return {"problem": str(error)}
    rows, columns = seen.weights.shape
    cleaned: JsonObject = finite(
        {
            "problem": None,
            "rows": rows,
            "columns": columns,
            "weights": [few_digits(weight, 7) for weight in seen.weights.flatten().tolist()],
            "mass": seen.mass,
            "outside": seen.outside,
            "pixels": None if seen.pixels is None else list(seen.pixels),
            "of_original": seen.of_original,
            "best": [list(patch) for patch in seen.patches[:_NAMED]],
        }
    )
    return cleaned
