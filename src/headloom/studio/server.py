"""The studio's server: a collection behind a local address, for a browser on the same machine.

It reads nothing but the collection it was given and its own front end. It answers no other host
than this machine's own names, so that no page of the web can reach it under a name of its own, and
says the same of each piece for as long as it runs, so that a browser asks for nothing twice.
"""

from __future__ import annotations

import asyncio
import gzip
import json
import secrets
import threading
from collections.abc import Awaitable, Callable
from functools import partial

from starlette.applications import Starlette
from starlette.concurrency import run_in_threadpool
from starlette.datastructures import Headers, MutableHeaders
from starlette.exceptions import HTTPException
from starlette.middleware import Middleware
from starlette.requests import Request
from starlette.responses import JSONResponse, Response
from starlette.routing import Route
from starlette.types import ASGIApp, Message, Receive, Scope, Send

from headloom.errors import HeadloomError
from headloom.formats.files import JsonObject
from headloom.studio.arrays import as_json
from headloom.studio.collection import Collection
from headloom.studio.page import script, shell, style
from headloom.studio.routes import POSTS, ROUTES, Answer, Opened, Place, Slow

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
_JSON, _NUMBERS = "application/json", "application/octet-stream"
_UNCACHED = {"Cache-Control": "no-store"}
#: Pieces that take long and are made at the same time, and seconds between two looks whether a
#: browser still waits for one.
_AT_ONCE, _LOOK = 2, 0.2
#: Bytes of a text from which on it is compressed; bytes of a question, at most.
_PACKED, _LONGEST = 2**14, 2**18


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

        refused = self._refused(scope)
        await (refused or self.app)(scope, receive, guarded)

    def _refused(self, scope: Scope) -> Response | None:
        server, headers = scope.get("server"), Headers(scope=scope)
        port = server[1] if server else None
        allowed = {f"{name}:{port}" for name in _NAMES}
        if port == 80:
            allowed |= set(_NAMES)
        if headers.get("host", "").lower() not in allowed:
            return _problem("This studio answers its own machine alone: use http://127.0.0.1.", 403)
        # A page of another site can send a question here, though it could not read the answer.
        own = {"", *(f"http://{name}" for name in allowed)}
        if scope["method"] not in ("GET", "HEAD") and headers.get("origin", "").lower() not in own:
            return _problem("This studio answers its own page alone.", 403)
        if headers.get("headloom-traces", self.traces) != self.traces:
            return _problem(
                "headloom view was started again, with other traces: reload the page", 412
            )
        return None


def _problem(detail: str, status: int) -> JSONResponse:
    return JSONResponse({"detail": detail}, status, headers=_UNCACHED)


def create_app(collection: Collection) -> Starlette:
    """The application that serves a collection."""
    server = _Server(collection)
    page = shell(
        title=f"{collection.title} · headloom",
        style='<link rel="stylesheet" href="studio.css">',
        script='<script type="module" src="studio.js"></script>',
    )
    return Starlette(
        routes=[
            Route("/", lambda request: Response(page, media_type="text/html; charset=utf-8")),
            Route("/studio.js", server.text(script, "text/javascript")),
            Route("/studio.css", server.text(style, "text/css")),
            *(Route(f"/api/{path}", server.piece(answer)) for path, answer in ROUTES.items()),
            *(
                Route(f"/api/{path}", server.question(answer), methods=["POST"])
                for path, answer in POSTS.items()
            ),
        ],
        middleware=[Middleware(LocalOnly, traces=collection.traces)],
        exception_handlers={
            HeadloomError: lambda request, error: _problem(str(error), 500),
            HTTPException: lambda request, error: _problem(_detail(error), _status(error)),
        },
    )


def _detail(error: Exception) -> str:
    detail = error.detail if isinstance(error, HTTPException) else str(error)
    return "nothing is here: the studio is at /" if detail == "Not Found" else detail


def _status(error: Exception) -> int:
    return error.status_code if isinstance(error, HTTPException) else 500


class _Server:
    """How pieces are answered."""

    def __init__(self, collection: Collection) -> None:
        self._opened = Opened(collection)
        # A new server may show another trace at the same address.
        self._tag = f'"{secrets.token_hex(8)}"'
        self._slow = asyncio.Semaphore(_AT_ONCE)

    def text(self, make: Callable[[], str], kind: str) -> Callable[[Request], Response]:
        """The answer to a request for a part of the front end."""
        return lambda request: self.lasting(
            request, lambda: make().encode(), f"{kind}; charset=utf-8"
        )

    def lasting(self, request: Request, make: Callable[[], bytes], kind: str) -> Response:
        """What does not change; or that the browser has it."""
        caching = {"ETag": self._tag, "Cache-Control": "private, no-cache"}
        if self._tag in request.headers.get("if-none-match", ""):
            return Response(status_code=304, headers=caching)
        content = make()
        # Through a tunnel from another machine texts come several times as fast; numbers hardly.
        if kind != _NUMBERS and len(content) >= _PACKED:
            caching["Vary"] = "Accept-Encoding"
            if "gzip" in request.headers.get("accept-encoding", ""):
                content = gzip.compress(content, compresslevel=1)
                caching["Content-Encoding"] = "gzip"
        return Response(content, media_type=kind, headers=caching)

    def piece(
        self, answer: Callable[[Place], Answer] | Slow
    ) -> Callable[[Request], Response] | Callable[[Request], Awaitable[Response]]:
        """The answer to a request for a piece."""

        def at_once(request: Request) -> Response:
            assert not isinstance(answer, Slow)
            made = answer(Place(self._opened, request.path_params))
            kind = _NUMBERS if isinstance(made.content, bytes) else _JSON
            if not made.lasting:
                return Response(bytes(made), media_type=kind, headers=_UNCACHED)
            return self.lasting(request, lambda: bytes(made), kind)

        async def slowly(request: Request) -> Response:
            assert isinstance(answer, Slow)
            return await self._slowly(request, Place(self._opened, request.path_params), answer)

        return slowly if isinstance(answer, Slow) else at_once

    async def _slowly(self, request: Request, place: Place, piece: Slow) -> Response:
        """The answer of what may take long. Such pieces wait for each other outside of the server's
        threads, which others need meanwhile; and none is made for a browser that has left.
        """
        left = threading.Event()

        def made() -> Response:
            try:
                make = partial(piece.make, place, lambda: not left.is_set())
                return self.lasting(request, make, _NUMBERS)
            except InterruptedError:
                return Response(status_code=204)

        if not piece.takes_long(place):
            return await run_in_threadpool(made)
        async with self._slow:
            if await request.is_disconnected():
                return Response(status_code=204)
            making = asyncio.ensure_future(run_in_threadpool(made))
            try:
                while not (await asyncio.wait({making}, timeout=_LOOK))[0]:
                    if await request.is_disconnected():
                        left.set()
                return making.result()
            finally:
                left.set()

    def question(
        self, answer: Callable[[object, Opened], JsonObject]
    ) -> Callable[[Request], Awaitable[Response]]:
        """The answer to what the page sends."""

        async def answered(request: Request) -> Response:
            # A form of another site can send other kinds without being asked first.
            if request.headers.get("content-type") != _JSON:
                raise HTTPException(422, "expected JSON")
            body = b""
            async for part in request.stream():
                body += part
                if len(body) > _LONGEST:
                    raise HTTPException(413, f"expected at most {_LONGEST} bytes")
            try:
                content = json.loads(body)
            except ValueError:
                raise HTTPException(422, "expected JSON") from None
            made = await run_in_threadpool(answer, content, self._opened)
            return Response(as_json(made), media_type=_JSON, headers=_UNCACHED)

        return answered
