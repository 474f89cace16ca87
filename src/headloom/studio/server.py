"""The studio's server: a collection behind a local address, for a browser on the same machine.

It reads nothing but the collection it was given and its own front end. It answers no other host
than this machine's own names, so that no page of the web can reach it under a name of its own, and
says the same of each piece for as long as it runs, so that a browser asks for nothing twice.
"""

from __future__ import annotations

import json
from collections.abc import Awaitable, Callable
from dataclasses import asdict

from starlette.applications import Starlette
from starlette.concurrency import run_in_threadpool
from starlette.datastructures import Headers, MutableHeaders
from starlette.exceptions import HTTPException
from starlette.middleware import Middleware
from starlette.requests import Request
from starlette.responses import JSONResponse, Response
from starlette.routing import Route
from starlette.types import ASGIApp, Message, Receive, Scope, Send

from headloom.analysis.sql.bounded import LONGEST as LONGEST_QUERY
from headloom.analysis.sql.bounded import ask_bounded
from headloom.errors import DataError, HeadloomError
from headloom.formats.files import JsonObject
from headloom.studio.arrays import as_json
from headloom.studio.asking import LONGEST, SupersededError
from headloom.studio.collection import Collection
from headloom.studio.page import script, shell, style
from headloom.studio.routes import ROUTES, UNCACHED, Opened, Pieces

__all__ = ["create_app"]

#: What the studio's own page may do: run its own script, ask its own server, draw.
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
#: Bytes of a question, at most.
_LONGEST = 2**18


def create_app(collection: Collection) -> Starlette:
    """The application that serves a collection."""
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
            # What the page sends, as JSON, which no page of another site can.
            Route("/api/ask", _question(opened, _ask), methods=["POST"]),
            Route("/api/sql", _question(opened, _sql), methods=["POST"]),
        ],
        middleware=[Middleware(LocalOnly, traces=collection.traces)],
        exception_handlers={HeadloomError: _failed, HTTPException: _failed},
    )


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

        await (self._refused(scope) or self.app)(scope, receive, guarded)

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
    return JSONResponse({"detail": detail}, status, headers=UNCACHED)


def _failed(request: Request, error: Exception) -> JSONResponse:
    if not isinstance(error, HTTPException):
        return _problem(str(error), 500)
    missing = error.detail == "Not Found"
    detail = "nothing is here: the studio is at /" if missing else error.detail
    return _problem(detail, error.status_code)


class Fields:
    """The fields of a question in JSON. Raises: HTTPException: one is missing or odd."""

    def __init__(self, body: bytes) -> None:
        try:
            self._content = json.loads(body)
        except ValueError:
            self._content = None
        if not isinstance(self._content, dict):
            raise HTTPException(422, "expected a JSON object")

    def text(self, name: str, most: int, default: str | None = None) -> str:
        """A text of so many characters at most."""
        value = self._content.get(name, default)
        if not isinstance(value, str) or len(value) > most:
            raise HTTPException(422, f"{name}: expected a text of at most {most} characters")
        return value

    def whole(self, name: str) -> int:
        """A whole number, 0 or more."""
        value = self._content.get(name, 0)
        if type(value) is not int or not 0 <= value < 2**53:
            raise HTTPException(422, f"{name}: expected a whole number, 0 or more")
        return value


def _ask(opened: Opened, asked: Fields) -> JsonObject:
    """Trace a text by the model that is open: the example that it is from now on."""
    text, window = asked.text("text", LONGEST), asked.text("window", 64, "")
    if opened.collection.asking is None:
        raise HTTPException(404, "no model is open here: headloom view MODEL")
    number, example = opened.collection.asking.ask(window, asked.whole("turn"), text)
    return {"example": number, "description": example.description()}


def _sql(opened: Opened, asked: Fields) -> JsonObject:
    """The first rows of the answer to one SELECT over the views of an example."""
    query, trace = asked.text("query", LONGEST_QUERY), opened.example(asked.whole("example")).trace
    if not opened.answering.acquire(timeout=10):
        raise HTTPException(409, "another question is being answered: ask again")
    try:
        return asdict(ask_bounded(trace, query))
    finally:
        opened.answering.release()


def _question(
    opened: Opened, make: Callable[[Opened, Fields], JsonObject]
) -> Callable[[Request], Awaitable[Response]]:
    """The answer to what the page sends, or the problem in one line."""

    def answer(body: bytes) -> JsonObject:
        try:
            return make(opened, Fields(body))
        except SupersededError:
            raise HTTPException(409, "a newer question came meanwhile") from None
        except DataError:
            raise
        except HeadloomError as error:
            return {"problem": str(error)}

    async def answered(request: Request) -> Response:
        # A form of another site can send other kinds without being asked first.
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
