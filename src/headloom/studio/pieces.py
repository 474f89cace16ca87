"""`Pieces`: what the paths of the studio's server have in common.

A path names an example, a layer, a head by their numbers; what is not there is said in one line.
"""

from __future__ import annotations

import asyncio
import gzip
import secrets
import threading
from collections.abc import Callable
from typing import Annotated, Any

from fastapi import HTTPException, Path, Request, Response
from fastapi.concurrency import run_in_threadpool

from headloom.formats.files import JsonObject
from headloom.studio.asking import FIRST
from headloom.studio.collection import Collection, Example, as_json

__all__ = ["BYTES", "JSON", "MISSING", "SO_FAR", "Binary", "Found", "Number", "Pieces", "within"]

#: Pieces that take long and are made at the same time.
_AT_ONCE = 2
#: Seconds between two looks whether a browser still waits for one.
_LOOK = 0.2
#: Bytes of a text from which on it is compressed.
_PACKED = 2**14
#: What there is of a piece, and whether that is all.
Found = tuple[bytes, bool]
# Decimal digits only: a path is one thing, not many spellings of it.
Number = Annotated[str, Path(pattern=r"^(0|[1-9][0-9]{0,8})$")]
MISSING: dict[int | str, JsonObject] = {
    304: {"description": "Not modified: the browser has it already."},
    403: {"description": "Asked under a name that is not this machine's."},
    404: {"description": "There is no such piece."},
    422: {"description": "The request is none of these; the detail says what was expected."},
    500: {"description": "The trace cannot be read; the detail says why."},
}
BYTES = {**MISSING, 200: {"content": {"application/octet-stream": {}}}}
SO_FAR = {
    **BYTES,
    202: {
        "description": "The first heads, the others being worked out: ask again.",
        "content": {"application/octet-stream": {}},
    },
}
JSON = {**MISSING, 200: {"content": {"application/json": {"schema": {"type": "object"}}}}}


class Binary(Response):
    """Little-endian numbers."""

    media_type = "application/octet-stream"


class Pieces:
    """A collection piece by piece: what a path names, and the answer to a request for it."""

    def __init__(self, collection: Collection) -> None:
        self.collection = collection
        # A new server may show another trace at the same address.
        self._tag = f'"{secrets.token_hex(8)}"'
        self._slow = asyncio.Semaphore(_AT_ONCE)

    def answer(
        self, request: Request, make: Callable[[], bytes], kind: str = "application/octet-stream"
    ) -> Response:
        """The bytes of a piece; or that the browser has it, as it does not change."""
        caching = {"ETag": self._tag, "Cache-Control": "private, no-cache"}
        if self._tag in request.headers.get("if-none-match", ""):
            return Response(status_code=304, headers=caching)
        content = make()
        # Through a tunnel from another machine texts come several times as fast; numbers hardly.
        if kind != Binary.media_type and len(content) >= _PACKED:
            caching["Vary"] = "Accept-Encoding"
            if "gzip" in request.headers.get("accept-encoding", ""):
                content = gzip.compress(content, compresslevel=1)
                caching["Content-Encoding"] = "gzip"
        return Response(content, media_type=kind, headers=caching)

    async def slowly(
        self,
        request: Request,
        make: Callable[[Callable[[], bool]], bytes],
        takes_long: Callable[[], bool],
    ) -> Response:
        """Likewise of a piece that may take long. Such ones wait for each other outside of the
        server's threads, which others need meanwhile; and none is made for a browser that has left.

        make: is given what it asks now and then: whether to go on; raises InterruptedError where
        not.
        """
        left = threading.Event()

        def made() -> Response:
            try:
                return self.answer(request, lambda: make(lambda: not left.is_set()))
            except InterruptedError:
                return Response(status_code=204)

        if not takes_long():
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

    def so_far(self, request: Request, content: bytes, whole: bool) -> Response:
        """A piece that is not whole yet is asked for again."""
        if whole:
            return self.answer(request, lambda: content)
        return Binary(content, 202, headers={"Cache-Control": "no-store"})

    def json(self, request: Request, make: Callable[[], Any]) -> Response:
        """Likewise of what JSON holds."""
        return self.answer(request, lambda: as_json(make()), "application/json")

    def example(self, number: str) -> Example:
        """The example of a number."""
        examples, asking = self.collection.examples, self.collection.asking
        if asking is not None and int(number) >= FIRST:
            asked = asking.example(int(number))
            if asked is None:
                raise HTTPException(404, "this text is no longer held: type it again")
            return asked
        return examples[within("example", number, len(examples))]

    def layer(self, example: str, layer: str) -> tuple[Example, int]:
        """An example, and the number of one of its layers."""
        chosen = self.example(example)
        return chosen, within("layer", layer, len(chosen.trace.layers))

    def head(self, example: str, layer: str, head: str) -> tuple[Example, int, int]:
        """An example, and the numbers of a layer and of one of its heads."""
        chosen, number = self.layer(example, layer)
        return chosen, number, within("head", head, chosen.trace.layers[number].heads)


def within(what: str, text: str, count: int) -> int:
    """The number that a text of digits says, where there are so many."""
    number = int(text)
    if number >= count:
        known = f"they are 0 to {count - 1}" if count else "there is none"
        raise HTTPException(404, f"there is no {what} {number}: {known}")
    return number
