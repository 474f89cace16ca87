"""The studio's server: a collection behind a local address, for a browser on the same machine.

It reads nothing but the collection it was given and its own front end. It answers no other host
than this machine's own names, so that no page of the web can reach it under a name of its own, and
says the same of each piece for as long as it runs, so that a browser asks for nothing twice.
"""

from __future__ import annotations

from collections.abc import Callable

from fastapi import FastAPI, HTTPException, Request, Response
from fastapi.exceptions import RequestValidationError
from fastapi.responses import HTMLResponse, JSONResponse
from starlette.datastructures import Headers, MutableHeaders
from starlette.types import ASGIApp, Message, Receive, Scope, Send

from headloom.errors import HeadloomError
from headloom.formats.tokens import visible
from headloom.studio import bundle
from headloom.studio.arrays import BLOCK
from headloom.studio.collection import Collection
from headloom.studio.overviews import Overviews
from headloom.studio.page import shell, signpost
from headloom.studio.pieces import BYTES, JSON, SO_FAR, Binary, Found, Number, Pieces, within
from headloom.studio.questions import add_questions
from headloom.studio.tiles import SIDE, Of, Tile, top_level
from headloom.studio.view_paths import (
    add_comparisons,
    add_corpus,
    add_graphs,
    add_images,
    add_neurons,
)
from headloom.version import __version__

__all__ = ["create_app"]

#: What the studio's own page may do: run its own script, ask its own server, draw.
POLICY = "; ".join(
    (
        "default-src 'none'",
        "script-src 'self'",
        "style-src 'self'",
        "connect-src 'self'",
        "img-src data: blob:",
        "base-uri 'none'",
        "form-action 'none'",
        "frame-ancestors 'none'",
        "require-trusted-types-for 'script'",
        "trusted-types 'none'",
    )
)
_HEADERS = {
    "Content-Security-Policy": POLICY,
    "X-Content-Type-Options": "nosniff",
    "Referrer-Policy": "no-referrer",
    "Cross-Origin-Resource-Policy": "same-origin",
    "Cross-Origin-Opener-Policy": "same-origin",
}
_NAMES = ("127.0.0.1", "localhost", "[::1]")


class LocalOnly:
    """Refuses every request whose Host is not this machine, and adds the headers of safety.

    traces: said in a header of every answer, so that a page learns when others are served; and a
    page says there which it means: what is meant for others, as a text to read, is refused.
    """

    def __init__(self, app: ASGIApp, traces: str) -> None:
        self.app, self.traces = app, traces
        self.headers = {**_HEADERS, "Headloom-Traces": traces}

    async def __call__(self, scope: Scope, receive: Receive, send: Send) -> None:
        """One request."""
        if scope["type"] != "http":
            await self.app(scope, receive, send)
            return

        async def guarded(message: Message) -> None:
            if message["type"] == "http.response.start":
                headers = MutableHeaders(scope=message)
                for name, value in self.headers.items():
                    headers[name] = value
            await send(message)

        server = scope.get("server")
        port = server[1] if server else None
        allowed = {f"{name}:{port}" for name in _NAMES}
        if port == 80:
            allowed |= set(_NAMES)
        if Headers(scope=scope).get("host", "").lower() not in allowed:
            refused = JSONResponse(
                {"detail": "This studio answers its own machine alone: use http://127.0.0.1."}, 403
            )
            await refused(scope, receive, guarded)
            return
        # A page of another site can send a question here, though it could not read the answer.
        origin = Headers(scope=scope).get("origin", "").lower()
        own = {"", *(f"http://{name}" for name in allowed)}
        if scope["method"] not in ("GET", "HEAD") and origin not in own:
            refused = JSONResponse({"detail": "This studio answers its own page alone."}, 403)
            await refused(scope, receive, guarded)
            return
        if Headers(scope=scope).get("headloom-traces", self.traces) != self.traces:
            detail = "headloom view was started again, with other traces: reload the page"
            await JSONResponse({"detail": detail}, 412)(scope, receive, guarded)
            return
        await self.app(scope, receive, guarded)


def create_app(collection: Collection) -> FastAPI:
    """The application that serves a collection."""
    app = FastAPI(
        title="headloom studio",
        version=__version__,
        description="Pieces of traces, as headloom.studio.collection describes them.",
        docs_url=None,
        redoc_url=None,
        openapi_url="/api/openapi.json",
    )
    app.add_middleware(LocalOnly, traces=collection.traces)

    @app.exception_handler(HeadloomError)
    async def unreadable(request: Request, error: HeadloomError) -> JSONResponse:
        return JSONResponse({"detail": str(error)}, 500)

    @app.exception_handler(RequestValidationError)
    async def unfit(request: Request, error: RequestValidationError) -> JSONResponse:
        return JSONResponse({"detail": _in_one_line(error)}, 422)

    @app.exception_handler(404)
    async def missing(request: Request, error: HTTPException) -> Response:
        path, uncached = request.url.path, {"Cache-Control": "no-store"}
        if "route" in request.scope:
            return JSONResponse({"detail": error.detail}, 404)
        if "text/html" in request.headers.get("accept", ""):
            return HTMLResponse(signpost(path), 404, headers=uncached)
        where = "the studio is at /, and /api/openapi.json lists its paths"
        detail = f"nothing is at {visible(path, 200)}: {where}"
        return JSONResponse({"detail": detail}, 404, headers=uncached)

    pieces = Pieces(collection)
    for add in (_add_page, _add_examples, _add_layers, _add_heads, _add_history):
        add(app, pieces)
    add_neurons(app, pieces)
    add_corpus(app, pieces)
    add_images(app, pieces)
    add_graphs(app, pieces)
    add_questions(app, collection, pieces.example)
    add_comparisons(app, pieces)
    return app


def _in_one_line(error: RequestValidationError) -> str:
    """What a request is expected to be, without what it held."""
    found = [
        f"{'.'.join(map(str, problem['loc']))[:60]}: {problem['msg'][:120]}"
        for problem in error.errors()[:3]
    ]
    return visible("; ".join(found), 500)


def _add_page(app: FastAPI, pieces: Pieces) -> None:
    @app.get("/", response_class=Response, include_in_schema=False)
    def page() -> Response:
        markup = shell(
            title=f"{pieces.collection.title} · headloom",
            style='<link rel="stylesheet" href="studio.css">',
            script='<script type="module" src="studio.js"></script>',
        )
        return Response(markup, media_type="text/html; charset=utf-8")

    @app.get("/studio.js", include_in_schema=False)
    def script(request: Request) -> Response:
        kind = "text/javascript; charset=utf-8"
        return pieces.answer(request, lambda: bundle.script().encode(), kind)

    @app.get("/studio.css", include_in_schema=False)
    def style(request: Request) -> Response:
        return pieces.answer(request, lambda: bundle.style().encode(), "text/css; charset=utf-8")


def _add_examples(app: FastAPI, pieces: Pieces) -> None:
    @app.get("/api/open", responses=JSON)
    def opening(request: Request) -> Response:
        """What is open: title, examples, whether there is a history."""
        return pieces.json(request, lambda: {**pieces.collection.opening(), "live": True})

    @app.get("/api/examples/{example}", responses=JSON)
    def description(request: Request, example: Number) -> Response:
        """A trace without its numbers: tokens, layers, exactness."""
        return pieces.json(request, pieces.example(example).description)

    @app.get("/api/examples/{example}/heads", responses=JSON)
    def heads(example: Number) -> Response:
        """What is known of every head; its measures and its role as soon as they are known."""
        known = pieces.example(example).heads_as_json()
        uncached = {"Cache-Control": "no-store"}
        return Response(known, media_type="application/json", headers=uncached)

    def small(
        request: Request, number: str, layer: str, make: Callable[[Overviews, int], Found]
    ) -> Response:
        example = pieces.example(number)
        first = within("layer", layer, len(example.trace.layers))
        if example.small is None:
            raise HTTPException(404, "these heads are few: ask for the pictures of each layer")
        pictures, whole = make(example.small, first)
        return pieces.so_far(request, pictures, whole)

    @app.get("/api/examples/{example}/small/quick/{layer}", responses=SO_FAR, response_class=Binary)
    def quick(request: Request, example: Number, layer: Number) -> Response:
        """Small pictures of a layer's heads and of those after it; 202: ask for those that miss."""
        return small(request, example, layer, Overviews.quick)

    @app.get("/api/examples/{example}/small/best/{layer}", responses=SO_FAR, response_class=Binary)
    def best(request: Request, example: Number, layer: Number) -> Response:
        """Likewise the best that there are to be, as far as they are known by now."""
        return small(request, example, layer, Overviews.best)


_LAYER = "/api/examples/{example}/layers/{layer}"


def _add_layers(app: FastAPI, pieces: Pieces) -> None:
    @app.get(_LAYER + "/means", responses=SO_FAR, response_class=Binary)
    def means(request: Request, example: Number, layer: Number) -> Response:
        """A small picture of each head, uint8, exact; 202: those of the first heads so far."""
        chosen, number = pieces.layer(example, layer)
        if chosen.overviews.state(number) == "kept":
            raise HTTPException(404, "this layer has its kept edges alone: ask for kept")
        return pieces.so_far(request, *chosen.overviews.means(number))

    @app.get(_LAYER + "/kept", responses=BYTES, response_class=Binary)
    def kept(request: Request, example: Number, layer: Number) -> Response:
        """A small picture of each head, uint8, of its kept edges alone."""
        chosen, number = pieces.layer(example, layer)
        return pieces.answer(request, lambda: chosen.overviews.kept(number))

    @app.get(_LAYER + "/values", responses=BYTES, response_class=Binary)
    def values(request: Request, example: Number, layer: Number) -> Response:
        """The norm of each key's value for each head, float32."""
        chosen, number = pieces.layer(example, layer)
        norms = chosen.values(number)
        if norms is None:
            raise HTTPException(404, "this trace did not keep the norms of its values")
        return pieces.answer(request, lambda: norms)

    @app.get(_LAYER + "/sums", responses=BYTES, response_class=Binary)
    async def sums(request: Request, example: Number, layer: Number) -> Response:
        """What each key gets from all queries, float32, exact."""
        chosen, number = pieces.layer(example, layer)
        if chosen.overviews.state(number) == "kept":
            raise HTTPException(404, "this layer has its kept edges alone: there are no exact sums")
        return await pieces.slowly(
            request,
            lambda go_on: chosen.sums(number, go_on),
            lambda: chosen.sums_take_long(number),
        )


_HEAD = _LAYER + "/heads/{head}"


def _add_heads(app: FastAPI, pieces: Pieces) -> None:
    @app.get(_HEAD + "/edges/{block}", responses=BYTES, response_class=Binary)
    def edges(
        request: Request, example: Number, layer: Number, head: Number, block: Number
    ) -> Response:
        """The kept edges of 1,024 rows."""
        chosen, number, of_head = pieces.head(example, layer, head)
        place = within("block", block, -(-chosen.trace.layers[number].shape[1] // BLOCK))
        return pieces.answer(request, lambda: chosen.layers[number].edges(of_head, place))

    @app.get(_HEAD + "/queries/{key}", responses=BYTES, response_class=Binary)
    def queries_of(
        request: Request, example: Number, layer: Number, head: Number, key: Number
    ) -> Response:
        """Which rows look at a key, over the kept edges: rows, then weights."""
        chosen, number, of_head = pieces.head(example, layer, head)
        place = within("key", key, chosen.trace.layers[number].shape[2])
        return pieces.answer(request, lambda: chosen.layers[number].queries_of(of_head, place))

    @app.get(_HEAD + "/matrix/{of}/{level}/{row}/{column}", responses=BYTES, response_class=Binary)
    async def matrix(
        request: Request,
        example: Number,
        layer: Number,
        head: Number,
        of: Of,
        level: Number,
        row: Number,
        column: Number,
    ) -> Response:
        """A tile of 256 x 256 cells, or blocks of 2^level x 2^level cells, float16."""
        chosen, number, of_head = pieces.head(example, layer, head)
        _, queries, keys = chosen.trace.layers[number].shape
        height = within("level", level, top_level(queries, keys) + 1)
        step = SIDE << height
        at = within("row", row, -(-queries // step)), within("column", column, -(-keys // step))
        tile = Tile(of_head, of, height, *at)
        return await pieces.slowly(
            request,
            lambda go_on: chosen.matrix.tile(number, tile, go_on),
            lambda: chosen.matrix.takes_long(number, tile),
        )

    @app.get(_HEAD + "/cells/{row}/{column}", responses=JSON)
    def cell(
        request: Request, example: Number, layer: Number, head: Number, row: Number, column: Number
    ) -> Response:
        """One weight, its score and its rank in its row."""
        chosen, number, of_head = pieces.head(example, layer, head)
        _, queries, keys = chosen.trace.layers[number].shape
        place = within("row", row, queries), within("column", column, keys)
        return pieces.json(request, lambda: chosen.matrix.cell(number, of_head, *place))


def _add_history(app: FastAPI, pieces: Pieces) -> None:
    history = pieces.collection.history

    @app.get("/api/history", responses=JSON)
    def description(request: Request) -> Response:
        """Steps, losses and measures along a training."""
        if history is None:
            raise HTTPException(404, "this is no run: there is no history")
        return pieces.json(request, lambda: history.description)

    @app.get("/api/history/layers/{layer}/weights", responses=BYTES, response_class=Binary)
    def weights(request: Request, layer: Number) -> Response:
        """The probe's weights along a training, uint8."""
        return of_layer(request, "weights", layer, history.weights if history else {})

    @app.get("/api/history/layers/{layer}/products", responses=BYTES, response_class=Binary)
    def products(request: Request, layer: Number) -> Response:
        """W_Q W_K^T along a training, int8."""
        return of_layer(request, "products", layer, history.products if history else {})

    def of_layer(request: Request, name: str, layer: str, arrays: dict[int, bytes]) -> Response:
        if int(layer) not in arrays:
            raise HTTPException(404, f"there are no {name} of layer {layer} in a history")
        return pieces.answer(request, lambda: arrays[int(layer)])
