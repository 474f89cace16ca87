"""Server of the studio: a collection at a local address, for a browser on the same machine.

It serves only its collection and its own front end. It answers only to this machine's own host
names, so that no web page can reach it by DNS rebinding. Each piece stays the same while the server
runs, so that browsers cache it.
"""

from __future__ import annotations

import json
from collections.abc import Awaitable, Callable

from starlette.applications import Starlette
from starlette.concurrency import run_in_threadpool
from starlette.datastructures import Headers, MutableHeaders
from starlette.exceptions import HTTPException
from starlette.middleware import Middleware
from starlette.requests import Request
from starlette.responses import JSONResponse, Response
from starlette.routing import Route
from starlette.types import ASGIApp, Message, Receive, Scope, Send

from headloom.errors import DataError, HeadloomError
from headloom.formats.files import JsonObject
from headloom.studio.arrays import as_json
from headloom.studio.asking import LONGEST, SupersededError
from headloom.studio.collection import Collection
from headloom.studio.page import script, shell, style
from headloom.studio.routes import ROUTES, UNCACHED, Opened, Pieces

#: Policy of the studio's page: run its own script, send requests to its own server, draw.
POLICY = (
    "default-src 'none'; script-src 'self'; style-src 'self'; connect-src 'self'; "
    "img-src data: blob:; base-uri 'none'; form-action 'none'; frame-ancestors 'none'; "
    "require-trusted-types-for 'script'; trusted-types 'none'"
)
_HEADERS = {
    "Content-Security-Policy": POLICY,
    "X-Content-Type-Options": "nosniff",
    "Referrer-Policy": "no-referrer",
    "Cross-Origin-Resource-Policy": "same-origin",
    "Cross-Origin-Opener-Policy": "same-origin",
}
_NAMES = ("127.0.0.1", "localhost", "[::1]")
#: Bytes of a request with a text at most.
_LONGEST = 2**18


def create_app(collection: Collection) -> Starlette:
    """Return the application that serves a collection."""
    opened = Opened(collection)
    pieces = Pieces(opened)
    page = shell(
        title=f"{collection.title} · headloom",
        style='<link rel="stylesheet" href="studio.css">',
        script='<script type="module" src="studio.js"></script>',
    )
    return Starlette(
        routes=[
            Route("/", lambda request: Response(page, media_type="text/html; charset=utf-8")),
            Route("/studio.js", pieces.text(script, "text/javascript")),
            Route("/studio.css", pieces.text(style, "text/css")),
            *(Route(f"/api/{path}", pieces.answering(make)) for path, make in ROUTES.items()),
            # Takes JSON, which pages of other sites cannot send.
            Route("/api/ask", _asked(opened), methods=["POST"]),
        ],
        middleware=[Middleware(LocalOnly, traces=collection.traces)],
        exception_handlers={HeadloomError: _failed, HTTPException: _failed},
    )


class LocalOnly:
    """Middleware: refuses requests whose Host is not this machine, and adds security headers.

    traces: hash of the open traces, sent in a header of every answer. Pages send it back: a request
    for other traces is refused.
    """

    def __init__(self, app: ASGIApp, traces: str) -> None:
        self.app, self.traces = app, traces
        self.headers = {**_HEADERS, "Headloom-Traces": traces}

    async def __call__(self, scope: Scope, receive: Receive, send: Send) -> None:
        if scope["type"] != "http":
            await self.app(scope, receive, send)
            return

        async def guarded(message: Message) -> None:
            if message["type"] == "http.response.start":
                headers = MutableHeaders(scope=message)
                for name, value in self.headers.items():
                    headers[name] = value
            await send(message)

        await (self._refused(scope) or self.app)(scope, receive, guarded)

    def _refused(self, scope: Scope) -> Response | None:
        server, headers = scope.get("server"), Headers(scope=scope)
        port = server[1] if server else None
        allowed = {f"{name}:{port}" for name in _NAMES}
        if port == 80:
            allowed |= set(_NAMES)
        if headers.get("host", "").lower() not in allowed:
            return _problem("This studio answers only its own machine: use http://127.0.0.1.", 403)
        # A page of another site could send a text here, though not read the answer.
        origins = {"", *(f"http://{name}" for name in allowed)}
        origin = headers.get("origin", "").lower()
        if scope["method"] not in ("GET", "HEAD") and origin not in origins:
            return _problem("This studio answers only its own page.", 403)
        if headers.get("headloom-traces", self.traces) != self.traces:
            return _problem(
                "headloom view was started again, with other traces: reload the page", 412
            )
        return None


def _problem(detail: str, status: int) -> JSONResponse:
    return JSONResponse({"detail": detail}, status, headers=UNCACHED)


def _failed(request: Request, error: Exception) -> JSONResponse:
    if not isinstance(error, HTTPException):
        return _problem(str(error), 500)
    missing = error.detail == "Not Found"
    detail = "not found: the studio is at /" if missing else error.detail
    return _problem(detail, error.status_code)


def _asked(opened: Opened) -> Callable[[Request], Awaitable[Response]]:
    """Return the handler of a text from the page: its new example, or the problem."""

    def answer(body: bytes) -> JsonObject:
        try:
            asked = json.loads(body)
            text, window, turn = asked["text"], asked.get("window", ""), asked.get("turn", 0)
        except (ValueError, TypeError, KeyError, AttributeError):
            raise HTTPException(422, "expected a JSON object with a text") from None
        for name, value, most in (("text", text, LONGEST), ("window", window, 64)):
            if not isinstance(value, str) or len(value) > most:
                raise HTTPException(422, f"{name}: expected a text of at most {most} characters")
        if type(turn) is not int or not 0 <= turn < 2**53:
            raise HTTPException(422, "turn: expected a whole number, 0 or more")
        if opened.collection.asking is None:
            raise HTTPException(404, "no model is open: open one with headloom view MODEL")
        try:
            number, example = opened.collection.asking.ask(window, turn, text)
            return {"example": number, "description": example.description()}
        except SupersededError:
            raise HTTPException(409, "a newer text arrived") from None
        except DataError:
            raise
        except HeadloomError as error:
            return {"problem": str(error)}

    async def answered(request: Request) -> Response:
        # Forms of other sites can send other content types without a preflight request.
        if request.headers.get("content-type") != "application/json":
            raise HTTPException(422, "expected JSON")
        body = b""
        async for part in request.stream():
            body += part
            if len(body) > _LONGEST:
                raise HTTPException(413, f"expected at most {_LONGEST} bytes")
        made = await run_in_threadpool(answer, body)
        return Response(as_json(made), media_type="application/json", headers=UNCACHED)

    return answered
