"""The paths of the studio's server that serve one view each.

Corpus: a head over all texts. Neuron: an edge, a token, the plane of a head. Graph and Paths:
edges, and tokens followed through layers. Images: patches, and what a row looks at. Compare: two
examples.
"""

from __future__ import annotations

import dataclasses
from collections.abc import Callable
from typing import Annotated, Literal

import torch
from fastapi import FastAPI, HTTPException, Path, Request, Response
from torch import Tensor

from headloom.analysis.image_map import has_patches, image_map
from headloom.errors import DataError, InputError
from headloom.formats.files import JsonObject, finite
from headloom.formats.trace import TraceData
from headloom.formats.traced_images import Size
from headloom.studio.collection import Example, as_json
from headloom.studio.comparing import Comparison, Comparisons
from headloom.studio.corpus import Corpus
from headloom.studio.digits import few_digits
from headloom.studio.pieces import BYTES, JSON, Binary, Number, Pieces, within
from headloom.studio.strongest import strongest_edges
from headloom.studio.tiles import SIDE, Of, Tile, top_level

__all__ = ["add_comparisons", "add_corpus", "add_graphs", "add_images", "add_neurons"]

_EXAMPLE = "/api/examples/{example}"
_LAYER = _EXAMPLE + "/layers/{layer}"
_HEAD = _LAYER + "/heads/{head}"
_PAIR = "/api/compare/{first}/{second}"
_PAIR_HEAD = _PAIR + "/layers/{layer}/heads/{head}"
_SO_FAR = {**JSON, 202: {"description": "Of the texts that were read so far: ask again."}}

Kind = Literal["encoder", "decoder", "cross"]
#: A head's number, or the mean of all.
HeadOrMean = Annotated[str, Path(pattern=r"^(mean|0|[1-9][0-9]{0,8})$")]
#: Patches that are named.
_NAMED = 8
#: Rows or columns of pixels of a picture, at most; and of cells of a map of them.
_SIDE, _MOST = 2**20, 128


def add_corpus(app: FastAPI, pieces: Pieces) -> None:
    """Add the path of one head over all texts that are open."""
    corpora = Corpus(pieces.collection.examples)
    pieces.collection.ending.append(corpora.settle)

    @app.get(
        "/api/corpus/{example}/layers/{layer}/heads/{head}/{sinks}",
        responses=_SO_FAR,
        response_class=Response,
    )
    def corpus(
        request: Request,
        example: Number,
        layer: Number,
        head: Number,
        sinks: Literal["all", "without-sinks"],
    ) -> Response:
        """A head over the texts of its example's model: exemplars, scores, words."""
        # A text that was typed is none of the corpus.
        number = within("example", example, len(pieces.collection.examples))
        _, of_layer, of_head = pieces.head(example, layer, head)
        found, whole = corpora.head(number, of_layer, of_head, sinks=sinks == "all")
        if whole:
            return pieces.json(request, lambda: found)
        headers = {"Cache-Control": "no-store"}
        return Response(as_json(found), 202, headers, media_type="application/json")


def add_neurons(app: FastAPI, pieces: Pieces) -> None:
    """Add the paths of one edge, one token and the plane of a head."""

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


def add_graphs(app: FastAPI, pieces: Pieces) -> None:
    """Add the paths of graphs of edges, and of tokens followed through layers."""
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


def add_images(app: FastAPI, pieces: Pieces) -> None:
    """Add the paths of images: which tokens are patches, and what a row looks at.

    The picture itself is in no trace. The page draws one that its reader chooses, and sends no part
    of it here but its rows and columns of pixels.
    """

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
    # Where patches are all that there is, they are the whole picture, whatever its size.
    of_pixels = "images" in own.positions.get(own.layers[number].keys_from, {})
    image, size = (image, size) if of_pixels else (0, None)
    try:
        seen = image_map(own, number, head, query, image=image, size=size)
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


def add_comparisons(app: FastAPI, pieces: Pieces) -> None:
    """Add the paths of two examples side by side."""
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

    @app.get(_PAIR_HEAD + "/edges", responses=JSON)
    def edges(
        request: Request, first: Number, second: Number, layer: Number, head: Number
    ) -> Response:
        """The edges of a head that changed most."""
        found, layers, place, _ = of_head(first, second, layer, head)
        return pieces.json(request, lambda: found.edges(layers, place))

    @app.get(_PAIR_HEAD + "/{of}/{level}/{row}/{column}", responses=BYTES, response_class=Binary)
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
