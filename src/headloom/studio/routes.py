"""`ROUTES`: a table from the paths of the studio's server to the pieces of a collection.

A path names an example, a layer, a head by their numbers (`Place`); a missing one is answered by a
404 and one line. Numbers are little-endian; see the modules that make them.
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
#: Comparisons in memory.
_HELD = 8
#: Pixels along a side of a picture at most.
_PIXELS = 2**20
#: Texts from this many bytes on are compressed.
_PACKED = 2**14
#: Seconds between two checks that the browser still waits.
_LOOK = 0.2


class Opened:
    """Collection with the results that only a server has."""

    def __init__(self, collection: Collection) -> None:
        self.collection = collection
        self.corpus = Corpus(collection.examples)
        self._compared = lru_cache(_HELD)(Comparison)

    def example(self, number: int) -> Example:
        """Return the example of a number: an open trace, or a text that the model read."""
        examples, asking = self.collection.examples, self.collection.asking
        if asking is not None and number >= FIRST:
            asked = asking.example(number)
            if asked is None:
                raise HTTPException(404, "this text is no longer in memory: type it again")
            return asked
        return examples[within("example", number, len(examples))]

    def comparison(self, first: int, second: int) -> Comparison:
        """Return the comparison of two examples; the last few stay in memory."""
        if first == second:
            raise HTTPException(
                404, "a trace cannot be compared with itself: give two different numbers"
            )
        return self._compared(self.example(first), self.example(second))


def within(what: str, number: int, count: int) -> int:
    """Return a number below a count; raise a 404 where it is not."""
    if number >= count:
        known = f"expected 0 to {count - 1}" if count else "there is none"
        raise HTTPException(404, f"there is no {what} {number}: {known}")
    return number


class Place:
    """Parts of a path, looked up on demand.

    go_on: whether the browser still waits; long computations call it now and then.
    Raises: HTTPException: it is not there.
    """

    def __init__(self, opened: Opened, path: Mapping[str, str], go_on: Callable[[], bool]) -> None:
        self.opened, self._path, self.go_on = opened, path, go_on

    def number(self, name: str) -> int:
        """Return a part of the path that is a number: decimal digits without leading zeros."""
        if not re.fullmatch(r"0|[1-9][0-9]{0,8}", self._path[name]):
            raise HTTPException(404, f"{name}: expected a number of at most 9 digits")
        return int(self._path[name])

    def under(self, name: str, count: int) -> int:
        """Return a part of the path that is a number below a count."""
        return within(name, self.number(name), count)

    def choice(self, name: str, *choices: str) -> str:
        """Return a part of the path that is one of some words."""
        if self._path[name] not in choices:
            raise HTTPException(404, f"{name}: expected {' or '.join(choices)}")
        return self._path[name]

    @cached_property
    def example(self) -> Example:
        """Example of the path; of two that are compared, the first."""
        return self.opened.example(self.number("example"))

    @cached_property
    def layer(self) -> int:
        """Number of a layer."""
        return self.under("layer", len(self.example.trace.layers))

    @property
    def of_layer(self) -> TraceLayer:
        """Layer of the path."""
        return self.example.trace.layers[self.layer]

    @property
    def exact(self) -> int:
        """Number of a layer whose pictures and sums are exact."""
        if self.example.overviews.state(self.layer) == "kept":
            raise HTTPException(404, "this layer has kept edges only")
        return self.layer

    @cached_property
    def head(self) -> tuple[int, int]:
        """Numbers of a layer and of one of its heads."""
        return self.layer, self.under("head", self.of_layer.heads)

    @cached_property
    def cell(self) -> tuple[int, int, int, int]:
        """Layer, head, row and column."""
        _, queries, keys = self.of_layer.shape
        return *self.head, self.under("row", queries), self.under("column", keys)

    @cached_property
    def tile(self) -> Tile:
        """Tile of a matrix."""
        _, queries, keys = self.of_layer.shape
        summary, level = (
            self.choice("of", "max", "mass"),
            self.under("level", top_level(queries, keys) + 1),
        )
        step = SIDE << level
        row, column = self.under("row", -(-queries // step)), self.under("column", -(-keys // step))
        return Tile(self.head[1], summary, level, row, column)

    @cached_property
    def comparison(self) -> Comparison:
        """Two examples side by side."""
        return self.opened.comparison(self.number("example"), self.number("other"))

    @cached_property
    def compared(self) -> tuple[int, int]:
        """Numbers of a layer in both of them."""
        pairs = dict(self.comparison.layers)
        if self.layer not in pairs:
            why = self.comparison.problem or "the other trace has no layer of its kind and index"
            raise HTTPException(404, f"layer {self.layer} cannot be compared: {why}")
        return self.layer, pairs[self.layer]

    @property
    def model(self) -> Through | None:
        """Inputs and outputs of the open model's layers on this text."""
        asking = self.opened.collection.asking
        return None if asking is None else asking.of_text(self.example.text)


@dataclass(frozen=True)
class Soon:
    """Incomplete JSON: the page repeats its request."""

    content: JsonObject


#: Answer to a path: JSON, or numbers as bytes; constant while the server runs, except `Soon`.
Piece = JsonObject | bytes | Soon


def _so_far(content: JsonObject) -> Piece:
    return content if content["whole"] else Soon(content)


def _heads(at: Place) -> Piece:
    known = at.example.heads()
    return Soon(known) if known["state"] == "measuring" else known


def _values(at: Place) -> Piece:
    norms = at.example.values(at.layer)
    if norms is None:
        raise HTTPException(404, "this trace has no norms of its values")
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
    # A typed text is not in the corpus.
    number = at.under("example", len(at.opened.collection.examples))
    sinks = at.choice("sinks", "all", "without-sinks") == "all"
    return _so_far(at.opened.corpus.head(number, *at.head, sinks=sinks))


def _history(at: Place) -> Piece:
    history = at.opened.collection.history
    if history is None:
        raise HTTPException(404, "this is not a run: there is no history")
    return history.description


def _history_layer(at: Place) -> Piece:
    history, layer = at.opened.collection.history, at.number("layer")
    name = at.choice("name", "weights", "products")
    arrays = {} if history is None else getattr(history, name)
    if layer not in arrays:
        raise HTTPException(404, f"the history has no {name} of layer {layer}")
    content: bytes = arrays[layer]
    return content


_EXAMPLE = "examples/{example}"
_LAYER = _EXAMPLE + "/layers/{layer}"
_HEAD = _LAYER + "/heads/{head}"
_PAIR = "compare/{example}/{other}"
_TILE = "{of}/{level}/{row}/{column}"

#: The pieces by their paths below /api/.
ROUTES: dict[str, Callable[[Place], Piece]] = {
    # Title, summary, names of the examples, whether there is a history.
    "open": lambda at: {**at.opened.collection.opening(), "live": True},
    # A trace without its numbers: tokens, layers, exactness.
    _EXAMPLE: lambda at: at.example.description(),
    # Measures and roles of every head, once they are known.
    _EXAMPLE + "/heads": _heads,
    # Small pictures of a layer's heads, of kept edges and exact: see `overviews`.
    _LAYER + "/kept": lambda at: at.example.overviews.kept(at.layer),
    _LAYER + "/means": lambda at: at.example.overviews.means(at.exact, at.go_on),
    # float32 (heads, keys): the norms of the values.
    _LAYER + "/values": _values,
    # The exact column sums, and the mean of the heads: see `sums`.
    _LAYER + "/sums": lambda at: at.example.sums(at.exact, at.go_on),
    _LAYER + "/mean": _mean,
    # The kept edges of 1,024 rows, and the rows with an edge to a key: see `arrays`.
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
    # A head over the texts of its example's model, so far.
    "corpus/{example}/layers/{layer}/heads/{head}/{sinks}": _corpus,
    # Two traces side by side, so far.
    _PAIR: lambda at: _so_far(at.comparison.summary()),
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
    """Answers to requests for pieces."""

    def __init__(self, opened: Opened) -> None:
        self._opened = opened
        # A new server may show another trace at the same address.
        self._tag = f'"{secrets.token_hex(8)}"'
        self._caching = {"ETag": self._tag, "Cache-Control": "private, no-cache"}

    def text(self, make: Callable[[], str], kind: str) -> Callable[[Request], Response]:
        """Return the handler of a part of the front end."""
        kind = f"{kind}; charset=utf-8"
        return lambda request: self._held(request) or self._lasting(request, make().encode(), kind)

    def _held(self, request: Request) -> Response | None:
        """Return a 304 where the browser has the answer in its cache."""
        held = self._tag in request.headers.get("if-none-match", "")
        return Response(status_code=304, headers=self._caching) if held else None

    def _lasting(self, request: Request, content: bytes, kind: str) -> Response:
        """Return a response that the browser may cache."""
        caching = dict(self._caching)
        # Compression speeds up texts several times through a tunnel; numbers hardly.
        if kind != "application/octet-stream" and len(content) >= _PACKED:
            caching["Vary"] = "Accept-Encoding"
            if "gzip" in request.headers.get("accept-encoding", ""):
                content = gzip.compress(content, compresslevel=1)
                caching["Content-Encoding"] = "gzip"
        return Response(content, media_type=kind, headers=caching)

    def answering(self, make: Callable[[Place], Piece]) -> Callable[[Request], Awaitable[Response]]:
        """Return the handler of a piece; it stops when the browser disconnects."""

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
