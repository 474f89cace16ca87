"""What the studio's server answers: a table from paths to the pieces of a collection.

A path names an example, a layer, a head by their numbers (`Place`); what is not there is said in
one line. Numbers are little-endian; see the modules that make them.
"""

from __future__ import annotations

import asyncio
import gzip
import re
import secrets
import threading
from collections.abc import Awaitable, Callable, Mapping
from dataclasses import dataclass
from functools import cached_property, lru_cache

from starlette.concurrency import run_in_threadpool
from starlette.exceptions import HTTPException
from starlette.requests import Request
from starlette.responses import Response

from headloom.formats.files import JsonObject
from headloom.formats.trace import TraceLayer
from headloom.studio.arrays import BLOCK, as_json
from headloom.studio.asking import FIRST
from headloom.studio.collection import Collection, Example
from headloom.studio.comparing import Comparison
from headloom.studio.corpus import Corpus
from headloom.studio.images import looks, patches
from headloom.studio.neuron import Through
from headloom.studio.sums import layer_mean
from headloom.studio.tiles import SIDE, Tile, top_level

UNCACHED = {"Cache-Control": "no-store"}
#: Comparisons that are held.
_HELD = 8
#: Pixels along a side of a picture, at most.
_PIXELS = 2**20
#: Bytes of a text from which on it is compressed.
_PACKED = 2**14
#: Seconds between two looks whether a browser still waits.
_LOOK = 0.2


class Opened:
    """A collection, with what is worked out for its server alone."""

    def __init__(self, collection: Collection) -> None:
        self.collection = collection
        self.corpus = Corpus(collection.examples)
        self._compared = lru_cache(_HELD)(Comparison)

    def example(self, number: int) -> Example:
        """The example of a number: one that was opened, or a text that the model read."""
        examples, asking = self.collection.examples, self.collection.asking
        if asking is not None and number >= FIRST:
            asked = asking.example(number)
            if asked is None:
                raise HTTPException(404, "this text is no longer held: type it again")
            return asked
        return examples[within("example", number, len(examples))]

    def comparison(self, first: int, second: int) -> Comparison:
        """Two examples side by side; those asked for last are held."""
        if first == second:
            raise HTTPException(404, "a trace is compared with another one: give two numbers")
        return self._compared(self.example(first), self.example(second))


def within(what: str, number: int, count: int) -> int:
    """A number, where there are so many."""
    if number >= count:
        known = f"they are 0 to {count - 1}" if count else "there is none"
        raise HTTPException(404, f"there is no {what} {number}: {known}")
    return number


class Place:
    """What a path names, looked up when it is asked for.

    go_on: whether somebody still waits; asked now and then by what takes long.
    Raises: HTTPException: it is not there.
    """

    def __init__(self, opened: Opened, path: Mapping[str, str], go_on: Callable[[], bool]) -> None:
        self.opened, self._path, self.go_on = opened, path, go_on

    def number(self, name: str) -> int:
        """A part of the path that is a number: decimal digits, in one spelling."""
        if not re.fullmatch(r"0|[1-9][0-9]{0,8}", self._path[name]):
            raise HTTPException(404, f"{name}: expected a number of at most 9 digits")
        return int(self._path[name])

    def under(self, name: str, count: int) -> int:
        """A part of the path that is one of so many numbers."""
        return within(name, self.number(name), count)

    def choice(self, name: str, *choices: str) -> str:
        """A part of the path that is one of some words."""
        if self._path[name] not in choices:
            raise HTTPException(404, f"{name}: expected {' or '.join(choices)}")
        return self._path[name]

    @cached_property
    def example(self) -> Example:
        """The example; of two that are compared, the first."""
        return self.opened.example(self.number("example"))

    @cached_property
    def layer(self) -> int:
        """The number of a layer."""
        return self.under("layer", len(self.example.trace.layers))

    @property
    def of_layer(self) -> TraceLayer:
        """The layer."""
        return self.example.trace.layers[self.layer]

    @property
    def exact(self) -> int:
        """A layer whose pictures and sums are exact."""
        if self.example.overviews.state(self.layer) == "kept":
            raise HTTPException(404, "this layer has its kept edges alone")
        return self.layer

    @cached_property
    def head(self) -> tuple[int, int]:
        """The numbers of a layer and of one of its heads."""
        return self.layer, self.under("head", self.of_layer.heads)

    @cached_property
    def cell(self) -> tuple[int, int, int, int]:
        """Layer, head, row and column."""
        _, queries, keys = self.of_layer.shape
        return *self.head, self.under("row", queries), self.under("column", keys)

    @cached_property
    def tile(self) -> Tile:
        """A tile of a matrix."""
        _, queries, keys = self.of_layer.shape
        of, level = (
            self.choice("of", "max", "mass"),
            self.under("level", top_level(queries, keys) + 1),
        )
        step = SIDE << level
        row, column = self.under("row", -(-queries // step)), self.under("column", -(-keys // step))
        return Tile(self.head[1], of, level, row, column)

    @cached_property
    def comparison(self) -> Comparison:
        """Two examples side by side."""
        return self.opened.comparison(self.number("example"), self.number("other"))

    @cached_property
    def compared(self) -> tuple[int, int]:
        """The numbers of a layer in both of them."""
        pairs = dict(self.comparison.layers)
        if self.layer not in pairs:
            why = self.comparison.problem or "the other trace has no layer of its kind and index"
            raise HTTPException(404, f"layer {self.layer} is not compared: {why}")
        return self.layer, pairs[self.layer]

    @property
    def model(self) -> Through | None:
        """What the layers of an open model read and made on this text."""
        asking = self.opened.collection.asking
        return None if asking is None else asking.of_text(self.example.text)


@dataclass(frozen=True)
class Soon:
    """JSON that is not whole yet: the page asks again."""

    content: JsonObject


#: What a path gives: JSON, or numbers as bytes; the same as long as the server runs, but of `Soon`.
Piece = JsonObject | bytes | Soon


def _as_far(content: JsonObject) -> Piece:
    return content if content["whole"] else Soon(content)


def _heads(at: Place) -> Piece:
    known = at.example.heads()
    return Soon(known) if known["state"] == "measuring" else known


def _values(at: Place) -> Piece:
    norms = at.example.values(at.layer)
    if norms is None:
        raise HTTPException(404, "this trace did not keep the norms of its values")
    return bytes(norms.astype("<f4").tobytes())


def _mean(at: Place) -> Piece:
    if not at.example.local:
        raise HTTPException(404, "this text is too long for the mean of its layers")
    return layer_mean(at.example.layers, at.layer)


def _edges(at: Place) -> Piece:
    block = at.under("block", -(-at.of_layer.shape[1] // BLOCK))
    return at.example.layers[at.layer].edges(at.head[1], block)


def _queries(at: Place) -> Piece:
    key = at.under("key", at.of_layer.shape[2])
    return at.example.layers[at.layer].queries_of(at.head[1], key)


def _looks(at: Place) -> Piece:
    trace, layer = at.example.trace, at.of_layer
    head = None if at._path["head"] == "mean" else at.head[1]
    query, image = at.under("query", layer.shape[1]), at.under("image", max(1, len(trace.images)))
    rows, columns = at.under("rows", _PIXELS), at.under("columns", _PIXELS)
    size = (rows, columns) if rows and columns else None
    return looks(trace, at.layer, head, query, image, size)


def _corpus(at: Place) -> Piece:
    # A text that was typed is none of the corpus.
    number = at.under("example", len(at.opened.collection.examples))
    sinks = at.choice("sinks", "all", "without-sinks") == "all"
    return _as_far(at.opened.corpus.head(number, *at.head, sinks=sinks))


def _history(at: Place) -> Piece:
    history = at.opened.collection.history
    if history is None:
        raise HTTPException(404, "this is no run: there is no history")
    return history.description


def _history_layer(at: Place) -> Piece:
    history, layer = at.opened.collection.history, at.number("layer")
    name = at.choice("name", "weights", "products")
    arrays = {} if history is None else getattr(history, name)
    if layer not in arrays:
        raise HTTPException(404, f"there are no {name} of layer {layer} in a history")
    found: bytes = arrays[layer]
    return found


_EXAMPLE = "examples/{example}"
_LAYER = _EXAMPLE + "/layers/{layer}"
_HEAD = _LAYER + "/heads/{head}"
_PAIR = "compare/{example}/{other}"
_TILE = "{of}/{level}/{row}/{column}"

#: By its path below /api/ what each piece is.
ROUTES: dict[str, Callable[[Place], Piece]] = {
    # Title, summary, names of the examples, whether there is a history.
    "open": lambda at: {**at.opened.collection.opening(), "live": True},
    # A trace without its numbers: tokens, layers, exactness.
    _EXAMPLE: lambda at: at.example.description(),
    # Measures and roles of every head, as soon as they are known.
    _EXAMPLE + "/heads": _heads,
    # Small pictures of a layer's heads, of kept edges and exact: see `overviews`.
    _LAYER + "/kept": lambda at: at.example.overviews.kept(at.layer),
    _LAYER + "/means": lambda at: at.example.overviews.means(at.exact, at.go_on),
    # float32 (heads, keys): the norms of the values.
    _LAYER + "/values": _values,
    # What each key gets from all queries, exact, and the mean of the heads: see `sums`.
    _LAYER + "/sums": lambda at: at.example.sums(at.exact, at.go_on),
    _LAYER + "/mean": _mean,
    # The kept edges of 1,024 rows, and the rows that look at a key: see `arrays`.
    _HEAD + "/edges/{block}": _edges,
    _HEAD + "/queries/{key}": _queries,
    # 256 x 256 cells, or blocks of 2^level x 2^level of them: see `tiles`.
    _HEAD + "/matrix/" + _TILE: lambda at: at.example.matrix.tile(at.layer, at.tile, at.go_on),
    _HEAD + "/cells/{row}/{column}": lambda at: at.example.matrix.cell(*at.cell),
    # One edge, and one token through the head: see `neuron`.
    _HEAD + "/edge/{row}/{column}": lambda at: at.example.neurons.edge(*at.cell),
    _HEAD + "/through/{row}/{column}": lambda at: at.example.neurons.through(*at.cell, at.model),
    # Patches of images, and the map of a row over one.
    _EXAMPLE + "/patches": lambda at: patches(at.example.trace),
    _LAYER + "/looks/{head}/{query}/{image}/{rows}/{columns}": _looks,
    # A head over the texts of its example's model, as far as they were read.
    "corpus/{example}/layers/{layer}/heads/{head}/{sinks}": _corpus,
    # Two traces side by side, as far as they were compared.
    _PAIR: lambda at: _as_far(at.comparison.summary()),
    _PAIR + "/layers/{layer}/heads/{head}/edges": (
        lambda at: at.comparison.edges(at.compared, at.head[1])
    ),
    _PAIR + "/layers/{layer}/heads/{head}/" + _TILE: (
        lambda at: at.comparison.tile(at.compared, at.tile, at.go_on)
    ),
    # Steps, losses, measures and pictures along a training: see `training`.
    "history": _history,
    "history/layers/{layer}/{name}": _history_layer,
}


class Pieces:
    """How pieces are answered."""

    def __init__(self, opened: Opened) -> None:
        self._opened = opened
        # A new server may show another trace at the same address.
        self._tag = f'"{secrets.token_hex(8)}"'
        self._caching = {"ETag": self._tag, "Cache-Control": "private, no-cache"}

    def text(self, make: Callable[[], str], kind: str) -> Callable[[Request], Response]:
        """The answer to a request for a part of the front end."""
        kind = f"{kind}; charset=utf-8"
        return lambda request: self._held(request) or self._lasting(request, make().encode(), kind)

    def _held(self, request: Request) -> Response | None:
        """That the browser has it, where it does."""
        held = self._tag in request.headers.get("if-none-match", "")
        return Response(status_code=304, headers=self._caching) if held else None

    def _lasting(self, request: Request, content: bytes, kind: str) -> Response:
        """What does not change."""
        caching = dict(self._caching)
        # Through a tunnel from another machine texts come several times as fast; numbers hardly.
        if kind != "application/octet-stream" and len(content) >= _PACKED:
            caching["Vary"] = "Accept-Encoding"
            if "gzip" in request.headers.get("accept-encoding", ""):
                content = gzip.compress(content, compresslevel=1)
                caching["Content-Encoding"] = "gzip"
        return Response(content, media_type=kind, headers=caching)

    def answering(self, make: Callable[[Place], Piece]) -> Callable[[Request], Awaitable[Response]]:
        """The answer to a request for a piece; none is made for a browser that has left."""

        async def answered(request: Request) -> Response:
            left = threading.Event()
            place = Place(self._opened, request.path_params, lambda: not left.is_set())
            making = asyncio.ensure_future(run_in_threadpool(self._answer, request, place, make))
            try:
                while not (await asyncio.wait({making}, timeout=_LOOK))[0]:
                    if await request.is_disconnected():
                        left.set()
                return making.result()
            finally:
                left.set()

        return answered

    def _answer(self, request: Request, place: Place, make: Callable[[Place], Piece]) -> Response:
        if held := self._held(request):
            return held
        try:
            if not place.go_on():
                raise InterruptedError
            made = make(place)
        except InterruptedError:
            return Response(status_code=204)
        if isinstance(made, Soon):
            return Response(as_json(made.content), media_type="application/json", headers=UNCACHED)
        if isinstance(made, bytes):
            return self._lasting(request, made, "application/octet-stream")
        return self._lasting(request, as_json(made), "application/json")
