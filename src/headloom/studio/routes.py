"""What the studio's server answers: a table from paths to the pieces of a collection.

A path names an example, a layer, a head by their numbers (`Place`); what is not there is said in
one line. Numbers are little-endian; see the modules that make them.
"""

from __future__ import annotations

import re
import threading
from collections import OrderedDict
from collections.abc import Callable, Mapping
from dataclasses import asdict, dataclass
from functools import cached_property

from starlette.exceptions import HTTPException

from headloom.analysis.sql.bounded import LONGEST as LONGEST_QUERY
from headloom.analysis.sql.bounded import ask_bounded
from headloom.analysis.sql.query import QUESTIONS
from headloom.errors import DataError, HeadloomError
from headloom.formats.files import JsonObject
from headloom.formats.trace import TraceLayer
from headloom.studio.arrays import BLOCK, as_json
from headloom.studio.asking import FIRST, LONGEST, SupersededError
from headloom.studio.collection import Collection, Example
from headloom.studio.comparing import Comparison
from headloom.studio.corpus import Corpus
from headloom.studio.images import looks, patches
from headloom.studio.neuron import Through
from headloom.studio.sums import layer_mean
from headloom.studio.tiles import SIDE, Tile, top_level

__all__ = ["POSTS", "ROUTES", "Answer", "Opened", "Place", "Slow"]

#: Comparisons that are held.
_HELD = 8
#: Pixels along a side of a picture, at most.
_PIXELS = 2**20


@dataclass(frozen=True)
class Answer:
    """What a path gives. content: JSON, or numbers as bytes. lasting: whether the same is given as
    long as the server runs; else the page asks again.
    """

    content: JsonObject | bytes
    lasting: bool = True

    def __bytes__(self) -> bytes:
        return self.content if isinstance(self.content, bytes) else as_json(self.content)


class Opened:
    """A collection, with what is worked out for its server alone."""

    def __init__(self, collection: Collection) -> None:
        self.collection = collection
        self.corpus = Corpus(collection.examples)
        self.answering = threading.Lock()
        self._compared: OrderedDict[tuple[int, int], Comparison] = OrderedDict()
        self._comparing = threading.Lock()

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
        examples = self.example(first), self.example(second)
        with self._comparing:
            if (first, second) not in self._compared:
                self._compared[first, second] = Comparison(*examples)
                while len(self._compared) > _HELD:
                    self._compared.popitem(last=False)
            self._compared.move_to_end((first, second))
            return self._compared[first, second]


def within(what: str, number: int, count: int) -> int:
    """A number, where there are so many."""
    if number >= count:
        known = f"they are 0 to {count - 1}" if count else "there is none"
        raise HTTPException(404, f"there is no {what} {number}: {known}")
    return number


class Place:
    """What a path names, looked up when it is asked for.

    Raises: HTTPException: it is not there.
    """

    def __init__(self, opened: Opened, path: Mapping[str, str]) -> None:
        self.opened, self._path = opened, path

    def number(self, name: str) -> int:
        """A part of the path that is a number: decimal digits, in one spelling."""
        if not re.fullmatch(r"0|[1-9][0-9]{0,8}", self._path[name]):
            raise HTTPException(404, f"{name}: expected a number of at most 9 digits")
        return int(self._path[name])

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
    def number_of_layer(self) -> int:
        """The number of a layer."""
        return within("layer", self.number("layer"), len(self.example.trace.layers))

    @property
    def layer(self) -> TraceLayer:
        """The layer."""
        return self.example.trace.layers[self.number_of_layer]

    @cached_property
    def head(self) -> tuple[int, int]:
        """The numbers of a layer and of one of its heads."""
        return self.number_of_layer, within("head", self.number("head"), self.layer.heads)

    @cached_property
    def cell(self) -> tuple[int, int, int, int]:
        """Layer, head, row and column."""
        _, queries, keys = self.layer.shape
        row, column = self.number("row"), self.number("column")
        return *self.head, within("row", row, queries), within("column", column, keys)

    @cached_property
    def tile(self) -> Tile:
        """A tile of a matrix."""
        of = self.choice("of", "max", "mass")
        _, queries, keys = self.layer.shape
        level = within("level", self.number("level"), top_level(queries, keys) + 1)
        step = SIDE << level
        row = within("row", self.number("row"), -(-queries // step))
        column = within("column", self.number("column"), -(-keys // step))
        return Tile(self.head[1], of, level, row, column)

    @cached_property
    def comparison(self) -> Comparison:
        """Two examples side by side."""
        return self.opened.comparison(self.number("example"), self.number("other"))

    @cached_property
    def compared(self) -> tuple[int, int]:
        """The numbers of a layer in both of them."""
        pairs, number = dict(self.comparison.layers), self.number_of_layer
        if number not in pairs:
            why = self.comparison.problem or "the other trace has no layer of its kind and index"
            raise HTTPException(404, f"layer {number} is not compared: {why}")
        return number, pairs[number]

    @property
    def model(self) -> Through | None:
        """What the layers of an open model read and made on this text."""
        asking = self.opened.collection.asking
        return None if asking is None else asking.of_text(self.example.text)


@dataclass(frozen=True)
class Slow:
    """A piece that may take long: made for those who still wait.

    make: is given what it asks now and then, whether to go on; raises InterruptedError where not.
    """

    make: Callable[[Place, Callable[[], bool]], bytes]
    takes_long: Callable[[Place], bool]


def _opening(at: Place) -> Answer:
    return Answer({**at.opened.collection.opening(), "live": True})


def _heads(at: Place) -> Answer:
    known = at.example.heads()
    return Answer(known, lasting=known["state"] != "measuring")


def _exact(at: Place) -> int:
    """A layer whose pictures and sums are exact."""
    if at.example.overviews.state(at.number_of_layer) == "kept":
        raise HTTPException(404, "this layer has its kept edges alone")
    return at.number_of_layer


def _values(at: Place) -> Answer:
    norms = at.example.values(at.number_of_layer)
    if norms is None:
        raise HTTPException(404, "this trace did not keep the norms of its values")
    return Answer(norms.astype("<f4").tobytes())


def _mean(at: Place) -> Answer:
    if not at.example.local:
        raise HTTPException(404, "this text is too long for the mean of its layers")
    return Answer(layer_mean(at.example.layers, at.number_of_layer))


def _edges(at: Place) -> Answer:
    layer, head = at.head
    block = within("block", at.number("block"), -(-at.layer.shape[1] // BLOCK))
    return Answer(at.example.layers[layer].edges(head, block))


def _queries(at: Place) -> Answer:
    layer, head = at.head
    key = within("key", at.number("key"), at.layer.shape[2])
    return Answer(at.example.layers[layer].queries_of(head, key))


def _looks(at: Place) -> Answer:
    trace, of_layer = at.example.trace, at.layer
    mean = at._path["head"] == "mean"
    head = None if mean else within("head", at.number("head"), of_layer.heads)
    query = within("query", at.number("query"), of_layer.shape[1])
    image = within("image", at.number("image"), max(1, len(trace.images)))
    rows, columns = (
        within(f"{side} of pixels", at.number(side), _PIXELS) for side in ("rows", "columns")
    )
    size = (rows, columns) if rows and columns else None
    return Answer(looks(trace, at.number_of_layer, head, query, image, size))


def _corpus(at: Place) -> Answer:
    # A text that was typed is none of the corpus.
    examples = at.opened.collection.examples
    number = within("example", at.number("example"), len(examples))
    sinks = at.choice("sinks", "all", "without-sinks") == "all"
    known, whole = at.opened.corpus.head(number, *at.head, sinks=sinks)
    return Answer({**known, "whole": whole}, lasting=whole)


def _compared(at: Place) -> Answer:
    known = at.comparison.summary()
    return Answer(known, lasting=known["whole"])


def _history(at: Place) -> Answer:
    history = at.opened.collection.history
    if history is None:
        raise HTTPException(404, "this is no run: there is no history")
    return Answer(history.description)


def _history_layer(at: Place) -> Answer:
    history, layer = at.opened.collection.history, at.number("layer")
    name = at.choice("name", "weights", "products")
    arrays = {} if history is None else getattr(history, name)
    if layer not in arrays:
        raise HTTPException(404, f"there are no {name} of layer {layer} in a history")
    return Answer(arrays[layer])


_EXAMPLE = "examples/{example}"
_LAYER = _EXAMPLE + "/layers/{layer}"
_HEAD = _LAYER + "/heads/{head}"
_PAIR = "compare/{example}/{other}"
_TILE = "{of}/{level}/{row}/{column}"

#: By its path below /api/ what each piece is.
ROUTES: dict[str, Callable[[Place], Answer] | Slow] = {
    # Title, summary, names of the examples, whether there is a history.
    "open": _opening,
    # A trace without its numbers: tokens, layers, exactness.
    _EXAMPLE: lambda at: Answer(at.example.description()),
    # Measures and roles of every head, as soon as they are known.
    _EXAMPLE + "/heads": _heads,
    # Small pictures of a layer's heads, of kept edges and exact: see `overviews`.
    _LAYER + "/kept": lambda at: Answer(at.example.overviews.kept(at.number_of_layer)),
    _LAYER + "/means": Slow(
        lambda at, go_on: at.example.overviews.means(_exact(at), go_on),
        lambda at: at.example.overviews.takes_long(_exact(at)),
    ),
    # float32 (heads, keys): the norms of the values.
    _LAYER + "/values": _values,
    # What each key gets from all queries, exact, and the mean of the heads: see `sums`.
    _LAYER + "/sums": Slow(
        lambda at, go_on: at.example.sums(_exact(at), go_on),
        lambda at: at.example.sums_take_long(_exact(at)),
    ),
    _LAYER + "/mean": _mean,
    # The kept edges of 1,024 rows, and the rows that look at a key: see `arrays`.
    _HEAD + "/edges/{block}": _edges,
    _HEAD + "/queries/{key}": _queries,
    # 256 x 256 cells, or blocks of 2^level x 2^level of them: see `tiles`.
    _HEAD + "/matrix/" + _TILE: Slow(
        lambda at, go_on: at.example.matrix.tile(at.number_of_layer, at.tile, go_on),
        lambda at: at.example.matrix.takes_long(at.number_of_layer, at.tile),
    ),
    _HEAD + "/cells/{row}/{column}": lambda at: Answer(at.example.matrix.cell(*at.cell)),
    # One edge, one token through the head, and the plane of its queries and keys: see `neuron`.
    _HEAD + "/edge/{row}/{column}": lambda at: Answer(at.example.neurons.edge(*at.cell)),
    _HEAD + "/through/{row}/{column}": lambda at: Answer(
        at.example.neurons.through(*at.cell, at.model)
    ),
    _HEAD + "/plane": lambda at: Answer(at.example.neurons.plane(*at.head)),
    # Patches of images, and the map of a row over one.
    _EXAMPLE + "/patches": lambda at: Answer(patches(at.example.trace)),
    _LAYER + "/looks/{head}/{query}/{image}/{rows}/{columns}": _looks,
    # A head over the texts of its example's model, as far as they were read.
    "corpus/{example}/layers/{layer}/heads/{head}/{sinks}": _corpus,
    # Two traces side by side, as far as they were compared.
    _PAIR: _compared,
    _PAIR + "/layers/{layer}/heads/{head}/edges": lambda at: Answer(
        at.comparison.edges(at.compared, at.head[1])
    ),
    _PAIR + "/layers/{layer}/heads/{head}/" + _TILE: Slow(
        lambda at, go_on: at.comparison.tile(at.compared, at.tile, go_on),
        lambda at: at.comparison.takes_long(at.compared, at.tile),
    ),
    # Steps, losses, measures and pictures along a training: see `training`.
    "history": _history,
    "history/layers/{layer}/{name}": _history_layer,
    # Questions in SQL that are ready: what each asks, and its query.
    "questions": lambda at: Answer({"questions": [list(question) for question in QUESTIONS]}),
}


class Fields:
    """The fields of a question in JSON. Raises: HTTPException: one is missing or odd."""

    def __init__(self, content: object) -> None:
        if not isinstance(content, dict):
            raise HTTPException(422, "expected a JSON object")
        self._content: JsonObject = content

    def text(self, name: str, most: int, default: str | None = None) -> str:
        """A text of so many characters at most."""
        value = self._content.get(name, default)
        if not isinstance(value, str) or len(value) > most:
            raise HTTPException(422, f"{name}: expected a text of at most {most} characters")
        return value

    def whole(self, name: str, default: int | None = None) -> int:
        """A whole number, 0 or more."""
        value = self._content.get(name, default)
        if type(value) is not int or not 0 <= value < 2**53:
            raise HTTPException(422, f"{name}: expected a whole number, 0 or more")
        return value


def _ask(opened: Opened, asked: Fields) -> JsonObject:
    """Trace a text by the model that is open: the example that it is from now on."""
    text, window = asked.text("text", LONGEST), asked.text("window", 64, "")
    if opened.collection.asking is None:
        raise HTTPException(404, "no model is open here: headloom view MODEL")
    number, example = opened.collection.asking.ask(window, asked.whole("turn", 0), text)
    return {"example": number, "description": example.description()}


def _sql(opened: Opened, asked: Fields) -> JsonObject:
    """The first rows of the answer to one SELECT over the views of an example."""
    query = asked.text("query", LONGEST_QUERY)
    trace = opened.example(asked.whole("example", 0)).trace
    if not opened.answering.acquire(timeout=10):
        raise HTTPException(409, "another question is being answered: ask again")
    try:
        return asdict(ask_bounded(trace, query))
    finally:
        opened.answering.release()


def _or_problem(
    make: Callable[[Opened, Fields], JsonObject], content: object, opened: Opened
) -> JsonObject:
    """An answer, or the problem in one line."""
    try:
        return make(opened, Fields(content))
    except SupersededError:
        raise HTTPException(409, "a newer question came meanwhile") from None
    except DataError:
        raise
    except HeadloomError as error:
        return {"problem": str(error)}


#: What the page sends, as JSON, which no page of another site can.
POSTS: dict[str, Callable[[object, Opened], JsonObject]] = {
    "ask": lambda content, opened: _or_problem(_ask, content, opened),
    "sql": lambda content, opened: _or_problem(_sql, content, opened),
}
