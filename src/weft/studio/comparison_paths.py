"""The paths of two examples side by side: see `weft.studio.comparing`."""

from __future__ import annotations

from fastapi import FastAPI, HTTPException, Request, Response

from weft.studio.collection import as_json
from weft.studio.comparing import Comparison, Comparisons
from weft.studio.pieces import BYTES, JSON, Binary, Number, Pieces, within
from weft.studio.tiles import SIDE, Of, Tile, top_level

__all__ = ["add_comparisons"]

_PAIR = "/api/compare/{first}/{second}"
_HEAD = _PAIR + "/layers/{layer}/heads/{head}"


def add_comparisons(app: FastAPI, pieces: Pieces) -> None:
    """Add their paths."""
    comparisons = Comparisons()
    pieces.collection.ending.append(comparisons.settle)

    def pair(first: str, second: str) -> Comparison:
        """The comparison of two examples."""
        if first == second:
            raise HTTPException(404, "a trace is compared with another one: give two numbers")
        examples = pieces.example(first), pieces.example(second)
        return comparisons.of((first, second), examples)

    def of_head(
        first: str, second: str, layer: str, head: str
    ) -> tuple[Comparison, tuple[int, int], int, tuple[int, int, int]]:
        """Besides, the layers of both, a head of them, and their shape."""
        found = pair(first, second)
        chosen, number, place = pieces.head(first, layer, head)
        other = found.other(number)
        if other is None:
            why = found.problem or "the other trace has no layer of its kind and index"
            raise HTTPException(404, f"layer {number} is not compared: {why}")
        return found, (number, other), place, chosen.trace.layers[number].shape

    @app.get(_PAIR, responses=JSON, response_class=Response)
    def compared(first: Number, second: Number) -> Response:
        """How two traces differ, as far as it is known by now."""
        known = pair(first, second).summary()
        uncached = {"Cache-Control": "no-store"}
        return Response(as_json(known), media_type="application/json", headers=uncached)

    @app.get(_HEAD + "/edges", responses=JSON)
    def edges(
        request: Request, first: Number, second: Number, layer: Number, head: Number
    ) -> Response:
        """The edges of a head that changed most."""
        found, layers, place, _ = of_head(first, second, layer, head)
        return pieces.json(request, lambda: found.edges(layers, place))

    @app.get(_HEAD + "/{of}/{level}/{row}/{column}", responses=BYTES, response_class=Binary)
    async def tile(
        request: Request,
        first: Number,
        second: Number,
        layer: Number,
        head: Number,
        of: Of,
        level: Number,
        row: Number,
        column: Number,
    ) -> Response:
        """A tile of the difference, as those of a matrix: what is sure of it, float16."""
        found, layers, place, (_, queries, keys) = of_head(first, second, layer, head)
        height = within("level", level, top_level(queries, keys) + 1)
        step = SIDE << height
        at = within("row", row, -(-queries // step)), within("column", column, -(-keys // step))
        which = Tile(place, of, height, *at)
        return await pieces.slowly(
            request,
            lambda go_on: found.tiles.tile(layers, which, go_on),
            lambda: found.tiles.takes_long(layers, which),
        )
