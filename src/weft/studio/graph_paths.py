"""The paths of the studio's server for graphs of edges, and for tokens followed through layers."""

from __future__ import annotations

from collections.abc import Callable
from typing import Literal

from fastapi import FastAPI, HTTPException, Request, Response

from weft.errors import InputError
from weft.formats.files import JsonObject
from weft.studio.collection import Example
from weft.studio.pieces import BYTES, JSON, Binary, Number, Pieces, within
from weft.studio.strongest import strongest_edges

__all__ = ["add_graphs"]

_EXAMPLE = "/api/examples/{example}"
_LAYER = _EXAMPLE + "/layers/{layer}"
Kind = Literal["encoder", "decoder", "cross"]


def add_graphs(app: FastAPI, pieces: Pieces) -> None:
    """Add them."""
    _add_edges(app, pieces)
    _add_flows(app, pieces)


def _add_edges(app: FastAPI, pieces: Pieces) -> None:
    @app.get(_LAYER + "/mean", responses=BYTES, response_class=Binary)
    def mean(request: Request, example: Number, layer: Number) -> Response:
        """The mean of a layer's heads, the strongest edges of each row."""
        chosen, number = pieces.layer(example, layer)
        if not chosen.local:
            raise HTTPException(404, "this text is long: ask for the strongest edges")
        return pieces.answer(request, lambda: chosen.mean(number))

    @app.get(_LAYER + "/strongest", responses=JSON, response_class=Response)
    def of_layer(request: Request, example: Number, layer: Number) -> Response:
        """The strongest edges of the mean of a layer's heads."""
        chosen, number = pieces.layer(example, layer)
        return strongest(request, chosen, number, None)

    @app.get(_LAYER + "/heads/{head}/strongest", responses=JSON, response_class=Response)
    def of_head(request: Request, example: Number, layer: Number, head: Number) -> Response:
        """The strongest edges of a head."""
        return strongest(request, *pieces.head(example, layer, head))

    def strongest(request: Request, of: Example, number: int, head: int | None) -> Response:
        layer = of.trace.layers[number]
        return pieces.json(request, lambda: strongest_edges(layer, of.layers[number], head))


def _add_flows(app: FastAPI, pieces: Pieces) -> None:
    def answer(
        request: Request, example: str, kind: Kind, position: str, target: str,
        make: Callable[[Example, int, int], JsonObject],
    ) -> Response:  # fmt: skip
        chosen = pieces.example(example)
        try:
            above, below = chosen.flows.sizes(kind)
            at = within("position", position, above), within("position", target, below)
            return pieces.json(request, lambda: make(chosen, *at))
        except InputError as error:
            raise HTTPException(404, str(error)) from None

    @app.get(_EXAMPLE + "/paths/{kind}/{position}", responses=JSON, response_class=Response)
    def through(request: Request, example: Number, kind: Kind, position: Number) -> Response:
        """A position of the last layer through all layers."""
        return answer(
            request, example, kind, position, "0", lambda of, at, _: of.flows.flow(kind, at)
        )

    @app.get(
        _EXAMPLE + "/paths/{kind}/{position}/{target}", responses=JSON, response_class=Response
    )
    def paths(
        request: Request, example: Number, kind: Kind, position: Number, target: Number
    ) -> Response:
        """The strongest paths from a position of the last layer to one of the input."""
        return answer(
            request, example, kind, position, target, lambda of, *at: of.flows.paths(kind, *at)
        )

    @app.get(_EXAMPLE + "/flow/{kind}/{position}/{target}", responses=JSON, response_class=Response)
    def flow(
        request: Request, example: Number, kind: Kind, position: Number, target: Number
    ) -> Response:
        """The largest flow between the two."""
        return answer(
            request, example, kind, position, target,
            lambda of, *at: of.flows.largest_flow(kind, *at),
        )  # fmt: skip
