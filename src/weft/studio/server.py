"""The studio's server: a collection behind a local address, for a browser on the same machine.

It reads nothing but the collection it was given and its own front end. It answers no other host
than this machine's own names, so that no page of the web can reach it under a name of its own, and
says the same of each piece for as long as it runs, so that a browser asks for nothing twice.
"""

from __future__ import annotations

import secrets
from collections.abc import Callable
from typing import Annotated, Any

from fastapi import FastAPI, HTTPException, Path, Request, Response
from fastapi.responses import JSONResponse
from starlette.datastructures import Headers, MutableHeaders
from starlette.types import ASGIApp, Message, Receive, Scope, Send

from weft.errors import WeftError
from weft.studio import bundle
from weft.studio.collection import BLOCK, Collection, Example, as_json
from weft.studio.page import shell
from weft.studio.tiles import SIDE, Of, top_level
from weft.version import __version__

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
    """Refuses every request whose Host is not this machine, and adds the headers of safety."""

    def __init__(self, app: ASGIApp) -> None:
        self.app = app

    async def __call__(self, scope: Scope, receive: Receive, send: Send) -> None:
        """One request."""
        if scope["type"] != "http":
            await self.app(scope, receive, send)
            return

        async def guarded(message: Message) -> None:
            if message["type"] == "http.response.start":
                headers = MutableHeaders(scope=message)
                for name, value in _HEADERS.items():
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
        await self.app(scope, receive, guarded)


# Decimal digits only: a path is one thing, not many spellings of it.
Number = Annotated[str, Path(pattern=r"^(0|[1-9][0-9]{0,8})$")]
_MISSING: dict[int | str, dict[str, Any]] = {
    304: {"description": "Not modified: the browser has it already."},
    403: {"description": "Asked under a name that is not this machine's."},
    404: {"description": "There is no such piece."},
    500: {"description": "The trace cannot be read; the detail says why."},
}
_BYTES = {**_MISSING, 200: {"content": {"application/octet-stream": {}}}}
_SO_FAR = {
    **_BYTES,
    202: {
        "description": "The first heads, the others being worked out: ask again.",
        "content": {"application/octet-stream": {}},
    },
}
_JSON = {**_MISSING, 200: {"content": {"application/json": {"schema": {"type": "object"}}}}}


class Binary(Response):
    """Little-endian numbers."""

    media_type = "application/octet-stream"


def create_app(collection: Collection) -> FastAPI:
    """The application that serves a collection."""
    app = FastAPI(
        title="weft studio",
        version=__version__,
        description="Pieces of traces, as weft.studio.collection describes them.",
        docs_url=None,
        redoc_url=None,
        openapi_url="/api/openapi.json",
    )
    app.add_middleware(LocalOnly)
    # A new server may show another trace at the same address.
    session = secrets.token_hex(8)

    def answer(request: Request, make: Callable[[], bytes], json: bool = False) -> Response:
        tag = f'"{session}"'
        caching = {"ETag": tag, "Cache-Control": "private, no-cache"}
        if tag in request.headers.get("if-none-match", ""):
            return Response(status_code=304, headers=caching)
        kind = "application/json" if json else Binary.media_type
        return Response(make(), media_type=kind, headers=caching)

    @app.exception_handler(WeftError)
    async def unreadable(request: Request, error: WeftError) -> JSONResponse:
        return JSONResponse({"detail": str(error)}, 500)

    def example_of(number: str) -> Example:
        return collection.examples[_within("example", number, len(collection.examples))]

    def layer_of(example: Example, number: str) -> int:
        return _within("layer", number, len(example.trace.layers))

    def head_of(example: Example, layer: int, number: str) -> int:
        return _within("head", number, example.trace.layers[layer].heads)

    @app.get("/", response_class=Response, include_in_schema=False)
    def page() -> Response:
        markup = shell(
            title=f"{collection.title} · weft",
            style='<link rel="stylesheet" href="studio.css">',
            script='<script type="module" src="studio.js"></script>',
        )
        return Response(markup, media_type="text/html; charset=utf-8")

    @app.get("/studio.js", include_in_schema=False)
    def script(request: Request) -> Response:
        response = answer(request, lambda: bundle.script().encode())
        response.headers["Content-Type"] = "text/javascript; charset=utf-8"
        return response

    @app.get("/studio.css", include_in_schema=False)
    def style(request: Request) -> Response:
        response = answer(request, lambda: bundle.style().encode())
        response.headers["Content-Type"] = "text/css; charset=utf-8"
        return response

    @app.get("/api/open", responses=_JSON)
    def opening(request: Request) -> Response:
        """What is open: title, examples, whether there is a history."""
        return answer(request, lambda: as_json({**collection.opening(), "live": True}), json=True)

    @app.get("/api/examples/{example}", responses=_JSON)
    def description(request: Request, example: Number) -> Response:
        """A trace without its numbers: tokens, layers, exactness."""
        found = example_of(example)
        return answer(request, lambda: as_json(found.description()), json=True)

    @app.get("/api/examples/{example}/heads", responses=_JSON)
    def heads(example: Number) -> Response:
        """Measures of every head, and roles as soon as they are known."""
        found = example_of(example).heads()
        return Response(
            as_json(found), media_type="application/json", headers={"Cache-Control": "no-store"}
        )

    layer_path = "/api/examples/{example}/layers/{layer}"

    @app.get(layer_path + "/means", responses=_SO_FAR, response_class=Binary)
    def means(request: Request, example: Number, layer: Number) -> Response:
        """A small picture of each head, uint8, exact; 202: those of the first heads so far."""
        found = example_of(example)
        number = layer_of(found, layer)
        if found.overviews.state(number) == "kept":
            raise HTTPException(404, "this layer has its kept edges alone: ask for kept")
        pictures, whole = found.overviews.means(number)
        if whole:
            return answer(request, lambda: pictures)
        return Binary(pictures, 202, headers={"Cache-Control": "no-store"})

    @app.get(layer_path + "/kept", responses=_BYTES, response_class=Binary)
    def kept(request: Request, example: Number, layer: Number) -> Response:
        """A small picture of each head, uint8, of its kept edges alone."""
        found = example_of(example)
        number = layer_of(found, layer)
        return answer(request, lambda: found.overviews.kept(number))

    @app.get(layer_path + "/values", responses=_BYTES, response_class=Binary)
    def values(request: Request, example: Number, layer: Number) -> Response:
        """The norm of each key's value for each head, float32."""
        found = example_of(example)
        number = layer_of(found, layer)
        norms = found.values(number)
        if norms is None:
            raise HTTPException(404, "this trace did not keep the norms of its values")
        return answer(request, lambda: norms)

    @app.get(layer_path + "/sums", responses=_BYTES, response_class=Binary)
    def sums(request: Request, example: Number, layer: Number) -> Response:
        """What each key gets from all queries, float32, exact."""
        found = example_of(example)
        number = layer_of(found, layer)
        if found.overviews.state(number) == "kept":
            raise HTTPException(404, "this layer has its kept edges alone: there are no exact sums")
        return answer(request, lambda: found.sums(number))

    head_path = layer_path + "/heads/{head}"

    @app.get(head_path + "/edges/{block}", responses=_BYTES, response_class=Binary)
    def edges(
        request: Request, example: Number, layer: Number, head: Number, block: Number
    ) -> Response:
        """The kept edges of 1,024 rows."""
        found = example_of(example)
        number = layer_of(found, layer)
        of_head = head_of(found, number, head)
        place = _within("block", block, -(-found.trace.layers[number].shape[1] // BLOCK))
        return answer(request, lambda: found.edges(number, of_head, place))

    @app.get(head_path + "/queries/{key}", responses=_BYTES, response_class=Binary)
    def queries_of(
        request: Request, example: Number, layer: Number, head: Number, key: Number
    ) -> Response:
        """Which rows look at a key, over the kept edges: rows, then weights."""
        found = example_of(example)
        number = layer_of(found, layer)
        of_head = head_of(found, number, head)
        place = _within("key", key, found.trace.layers[number].shape[2])
        return answer(request, lambda: found.queries_of(number, of_head, place))

    @app.get(
        head_path + "/matrix/{of}/{level}/{row}/{column}", responses=_BYTES, response_class=Binary
    )
    def matrix(
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
        found = example_of(example)
        number = layer_of(found, layer)
        of_head = head_of(found, number, head)
        _, queries, keys = found.trace.layers[number].shape
        height = _within("level", level, top_level(queries, keys) + 1)
        step = SIDE << height
        place = (
            _within("row", row, -(-queries // step)),
            _within("column", column, -(-keys // step)),
        )
        return answer(request, lambda: found.matrix.tile(number, of_head, of, height, *place))

    @app.get(head_path + "/cells/{row}/{column}", responses=_JSON)
    def cell(
        request: Request, example: Number, layer: Number, head: Number, row: Number, column: Number
    ) -> Response:
        """One weight, its score and its rank in its row."""
        found = example_of(example)
        number = layer_of(found, layer)
        of_head = head_of(found, number, head)
        _, queries, keys = found.trace.layers[number].shape
        place = _within("row", row, queries), _within("column", column, keys)
        return answer(
            request, lambda: as_json(found.matrix.cell(number, of_head, *place)), json=True
        )

    @app.get("/api/history", responses=_JSON)
    def history(request: Request) -> Response:
        """Steps, losses and measures along a training."""
        if collection.history is None:
            raise HTTPException(404, "this is no run: there is no history")
        known = collection.history
        return answer(request, lambda: as_json(known.description), json=True)

    @app.get("/api/history/layers/{layer}/weights", responses=_BYTES, response_class=Binary)
    def history_weights(request: Request, layer: Number) -> Response:
        """The probe's weights along a training, uint8."""
        return answer(request, lambda: _of_history("weights", layer))

    @app.get("/api/history/layers/{layer}/products", responses=_BYTES, response_class=Binary)
    def history_products(request: Request, layer: Number) -> Response:
        """W_Q W_K^T along a training, int8."""
        return answer(request, lambda: _of_history("products", layer))

    def _of_history(name: str, layer: str) -> bytes:
        arrays = getattr(collection.history, name) if collection.history else {}
        if int(layer) not in arrays:
            raise HTTPException(404, f"there are no {name} of layer {layer} in a history")
        found: bytes = arrays[int(layer)]
        return found

    return app


def _within(what: str, text: str, count: int) -> int:
    number = int(text)
    if number >= count:
        known = f"they are 0 to {count - 1}" if count else "there is none"
        raise HTTPException(404, f"there is no {what} {number}: {known}")
    return number
