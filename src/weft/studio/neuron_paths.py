"""The paths of the studio's server for one edge, one token and the plane of a head."""

from __future__ import annotations

from fastapi import FastAPI, Request, Response

from weft.studio.collection import Example
from weft.studio.pieces import JSON, Number, Pieces, within

__all__ = ["add_neurons"]

_HEAD = "/api/examples/{example}/layers/{layer}/heads/{head}"


def add_neurons(app: FastAPI, pieces: Pieces) -> None:
    """Add them."""

    def cell(
        example: str, layer: str, head: str, row: str, column: str
    ) -> tuple[Example, tuple[int, int, int, int]]:
        chosen, number, of_head = pieces.head(example, layer, head)
        _, queries, keys = chosen.trace.layers[number].shape
        place = within("row", row, queries), within("column", column, keys)
        return chosen, (number, of_head, *place)

    def asks(chosen: Example) -> bool:
        """Whether a model is open that did not read this text, and could."""
        return pieces.collection.asking is not None and chosen.text is None

    @app.get(_HEAD + "/edge/{row}/{column}", responses=JSON, response_class=Response)
    def edge(
        request: Request, example: Number, layer: Number, head: Number, row: Number, column: Number
    ) -> Response:
        """One edge from its products to its weight, in float64."""
        chosen, place = cell(example, layer, head, row, column)
        return pieces.json(request, lambda: chosen.neurons.edge(*place, asks=asks(chosen)))

    @app.get(_HEAD + "/through/{row}/{column}", responses=JSON, response_class=Response)
    def through(
        request: Request, example: Number, layer: Number, head: Number, row: Number, column: Number
    ) -> Response:
        """The steps of one token through a head; what is not there says so."""
        chosen, place = cell(example, layer, head, row, column)
        asking = pieces.collection.asking
        model = None if asking is None else asking.of_text(chosen.text)
        return pieces.json(
            request, lambda: chosen.neurons.through(*place, model, asks=asks(chosen))
        )

    @app.get(_HEAD + "/plane", responses=JSON, response_class=Response)
    def plane(request: Request, example: Number, layer: Number, head: Number) -> Response:
        """Queries and keys of a head on two axes."""
        chosen, number, of_head = pieces.head(example, layer, head)
        return pieces.json(
            request, lambda: chosen.neurons.plane(number, of_head, asks=asks(chosen))
        )
