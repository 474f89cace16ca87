"""`Collection`: what the studio has open, as named pieces of JSON and of little-endian arrays.

The server gives each piece under its path; an exported page and a notebook hold them all. So the
front end reads one set of paths, wherever it runs:

    open                                          title, summary, names of the examples
    examples/E                                    a trace: tokens, layers, exactness
    examples/E/heads                              measures and roles of every head
    examples/E/layers/L/means                     uint8 (heads, 128, 128), exact, see `overviews`
    examples/E/layers/L/kept                      likewise of the kept edges
    examples/E/small/quick/L, .../best/L          where there are many heads, smaller pictures of
                                                  layers L, L + 1, ...: see `overviews`
    examples/E/layers/L/values                    float32 (heads, keys): the norms of the values
    examples/E/layers/L/sums                      what each key gets in all, see `sums`
    examples/E/layers/L/mean                      the mean of the heads, see `means`
    examples/E/layers/L/heads/H/edges/B           the kept edges of 1,024 rows, see `arrays`
    history                                       steps, losses, measures along a training
    history/layers/L/weights, .../products        uint8 and int8, see `training`
"""

from __future__ import annotations

import hashlib
import json
import math
import secrets
import threading
from collections.abc import Callable
from dataclasses import dataclass, field
from functools import cached_property
from pathlib import Path
from typing import TYPE_CHECKING, Any

from headloom.analysis.heads.roles import special_keys
from headloom.analysis.image_map import has_patches
from headloom.errors import InputError
from headloom.formats.files import JsonObject, finite
from headloom.formats.tokens import running_text, shown, visible
from headloom.formats.trace import TraceData
from headloom.formats.trace_writer import MANIFEST
from headloom.studio.arrays import Array, LayerCache
from headloom.studio.digits import few_digits
from headloom.studio.heads import WORDS
from headloom.studio.means import LOCAL, layer_mean
from headloom.studio.neuron import Neurons
from headloom.studio.overviews import SMALL, Overviews, many_dots
from headloom.studio.sums import layer_sums
from headloom.studio.tiles import MatrixTiles
from headloom.studio.token_flow import TokenFlows
from headloom.studio.training import TrainingHistory
from headloom.version import __version__

if TYPE_CHECKING:
    from headloom.studio.asking import Asking

__all__ = [
    "Collection",
    "Example",
    "as_json",
    "name_of",
]

#: Cells of a layer up to which their sums are made at once.
_CHEAP_CELLS = 2**28


def as_json(content: Any) -> bytes:
    """Compact JSON in ASCII, whatever the tokens hold; null for what is no finite number."""

    def dumped(content: Any) -> bytes:
        return json.dumps(content, separators=(",", ":"), allow_nan=False).encode("ascii")

    try:
        return dumped(content)
    except ValueError:  # of a model whose queries or keys were NaN
        return dumped(finite(content))


@dataclass
class Example:
    """A trace and what was worked out of it so far.

    roles: called once, in a thread of its own: see `headloom.studio.heads.head_roles`.
    digest: of the manifest of a trace on disk, the first 12 digits of its SHA-256: what is in it,
    whatever it is called; "": the trace is in memory alone.
    text: what a model that is open read for it; None: another, or none, did.
    """

    name: str
    trace: TraceData
    roles: Callable[[TraceData], list[list[JsonObject]]] | None = None
    text: str | None = None
    _sums: dict[int, bytes] = field(default_factory=dict, repr=False)
    _unkept: list[list[float]] | None = None
    _heads: list[list[JsonObject]] | None = None
    _heads_as_json: bytes | None = field(default=None, repr=False)
    _state: str = "measuring"
    _measuring: threading.Thread | None = None
    _lock: threading.Lock = field(default_factory=threading.Lock, repr=False)
    _summing: threading.Lock = field(default_factory=threading.Lock, repr=False)

    def __post_init__(self) -> None:
        folder = self.trace.folder
        self.digest = "" if folder is None else _digest(folder)
        self.layers = LayerCache(self.trace)
        self.matrix = MatrixTiles(self.trace, self.layers)
        self.neurons = Neurons(self.trace, self.matrix)
        self.flows = TokenFlows(self.trace, self.layers)
        self.overviews = Overviews(self.trace, self.layers, self.matrix)
        #: Smaller ones of all heads at once, where there are many.
        self.small = (
            Overviews(self.trace, self.layers, self.matrix, SMALL)
            if many_dots(self.trace)
            else None
        )

    def description(self) -> JsonObject:
        """The trace without its numbers."""
        trace = self.trace
        return {
            "name": self.name,
            "model": {name: _plain(value) for name, value in trace.model.items()},
            "sequences": {name: list(shown(tokens)) for name, tokens in trace.sequences.items()},
            "separators": {name: special_keys(trace, name) for name in trace.sequences},
            "seconds": {
                name: known["seconds"]
                for name, known in trace.positions.items()
                if "seconds" in known
            },
            "patches": [name for name in trace.sequences if has_patches(trace, name)],
            "deviation": trace.deviation,
            "small": self.small is not None,
            "local": self.local,
            "flows": self.flows.kinds(),
            "read": self.text is not None,
            "verification": None if trace.verification is None else dict(trace.verification),
            "layers": [
                {
                    "name": layer.name,
                    "kind": layer.kind,
                    "index": layer.index,
                    "shape": list(layer.shape),
                    "queries": layer.queries_from,
                    "keys": layer.keys_from,
                    "mask": layer.mask,
                    "symmetric": layer.data.symmetric,
                    "deviation": layer.deviation,
                    "exact": self.matrix.exact(number),
                    "picture": self.overviews.state(number),
                    "values": layer.data.has_value_norms,
                }
                for number, layer in enumerate(trace.layers)
            ],
        }

    @property
    def local(self) -> bool:
        """Whether a browser can work with the mean of each layer: see `headloom.studio.means`."""
        return all(layer.shape[1] <= LOCAL for layer in self.trace.layers)

    def mean(self, number: int) -> bytes:
        """See `headloom.studio.means.layer_mean`."""
        return layer_mean(self.trace, number, self.layers[number])

    def values(self, number: int) -> bytes | None:
        """The norm of each key's value, float32 (heads, keys); None: they were not kept."""
        norms = self._norms(number)
        return None if norms is None else bytes(norms.astype("<f4").tobytes())

    def sums(self, number: int, go_on: Callable[[], bool] = lambda: True) -> bytes:
        """See `headloom.studio.sums.layer_sums`; of a layer whose pictures are exact."""
        with self._summing:
            if number not in self._sums:
                arrays, norms = self.layers[number], self._norms(number)
                terms = self.trace.layers[number].terms
                sinks = None if terms is None else terms.sinks
                self._sums[number] = layer_sums(
                    arrays, self.matrix.matrix(number), norms, sinks, go_on
                )
        return self._sums[number]

    def sums_take_long(self, number: int) -> bool:
        """Whether they are yet to be made, by a pass over many cells."""
        cells = math.prod(self.trace.layers[number].shape)
        return number not in self._sums and cells > _CHEAP_CELLS

    def _norms(self, number: int) -> Array | None:
        layer = self.trace.layers[number]
        norms = layer.value_norms
        if norms is None:
            return None
        repeated: Array = norms.float().repeat_interleave(layer.heads // norms.shape[0], 0).numpy()
        return repeated

    def heads(self, wait: bool = False) -> JsonObject:
        """What is known of every head.

            measures, roles   what they are called: see `headloom.studio.heads.WORDS`
            kept              by layer, how many edges a row keeps at most
            unkept            by layer and head, the mean mass that a row has on no kept edge
            state             "measuring", "known", or "failed: ..." and why
            heads             by layer and head, once they are known: see `headloom.studio.heads`

        wait: until they are known, which may take a while.
        """
        with self._lock:
            if self._unkept is None:
                self._unkept = [
                    [few_digits(share) for share in self.layers[number].left_out.tolist()]
                    for number in range(len(self.trace.layers))
                ]
            if self._measuring is None and self.roles is not None:
                self._measuring = threading.Thread(target=self._measure, daemon=True)
                self._measuring.start()
        if wait and self._measuring is not None:
            self._measuring.join()
        return {
            **WORDS,
            "kept": [self.layers[number].kept for number in range(len(self.trace.layers))],
            "unkept": self._unkept,
            "state": self._state,
            "heads": self._heads if self._state == "known" else None,
        }

    def heads_as_json(self) -> bytes:
        """`heads` as JSON; once they are known it stays: of thousands it takes long to write."""
        if self._heads_as_json is not None:
            return self._heads_as_json
        known = self.heads()
        content = as_json(known)
        if known["state"] != "measuring":
            self._heads_as_json = content
        return content

    def read_ahead(self) -> None:
        """Make the pictures that are seen first."""
        if self.small is not None:
            self.small.quick(0, math.inf)
            return
        for number in range(len(self.trace.layers)):
            if self.overviews.state(number) == "means":
                self.overviews.means(number)
            else:
                self.overviews.kept(number)

    def settle(self) -> None:
        """End what is worked out in threads of its own."""
        self.overviews.settle()
        if self.small is not None:
            self.small.settle()
        if self._measuring is not None:
            self._measuring.join()

    def _measure(self) -> None:
        try:
            if self.roles is not None:
                self.read_ahead()  # Pictures first: what takes long must not slow them.
                self._heads, self._state = self.roles(self.trace), "known"
        except Exception as error:
            # A measure that fails on one trace must not take the pictures with it.
            self._state = f"failed: {error}"


@dataclass
class Collection:
    """Everything that is open: examples, and a training's history where there is one.

    damaged: of the traces beside them that cannot be read, which and why.
    asking: a model that reads new texts, where one is open: see `headloom.studio.asking`.
    ending: what else is to be ended with it.
    """

    title: str
    examples: list[Example]
    summary: list[tuple[str, str]] = field(default_factory=list)
    history: TrainingHistory | None = None
    damaged: list[str] = field(default_factory=list)
    asking: Asking | None = None
    ending: list[Callable[[], None]] = field(default_factory=list, repr=False)

    def __post_init__(self) -> None:
        if not self.examples or not all(example.trace.layers for example in self.examples):
            raise InputError("nothing to show: expected at least one trace, each with a layer.")
        # A link names an example, so each has a name of its own.
        taken: set[str] = set()
        for example in self.examples:
            name, number = example.name, 2
            while name in taken:
                name, number = f"{example.name} ({number})", number + 1
            example.name = name
            taken.add(name)

    @cached_property
    def traces(self) -> str:
        """Which traces are open: the same for those that lie on disk as they did, else its own."""
        digests = [example.digest or secrets.token_hex(6) for example in self.examples]
        return hashlib.sha256("\n".join(digests).encode("ascii")).hexdigest()[:12]

    def opening(self) -> JsonObject:
        """What the front end asks first."""
        return {
            "title": self.title,
            "headloom": __version__,
            "summary": [list(pair) for pair in self.summary],
            "examples": [example.name for example in self.examples],
            "digests": [example.digest for example in self.examples],
            "history": self.history is not None,
            "damaged": self.damaged,
            "asks": None if self.asking is None else self.asking.name,
            "relevance": self.asking is not None and self.asking.relevance is not None,
            "read": self.examples[0].text if self.asking and len(self.examples) == 1 else None,
            "live": False,
        }

    def settle(self) -> None:
        """End what is worked out in threads of their own."""
        for example in self.examples:
            example.settle()
        if self.asking is not None:
            self.asking.settle()
        for end in self.ending:
            end()


def name_of(trace: TraceData) -> str:
    """A short name made of a trace's tokens."""
    texts = [running_text(shown(of)[:60]).strip() for of in trace.sequences.values()]
    return visible(" → ".join(texts), 100)


def _digest(folder: Path) -> str:
    try:
        return hashlib.sha256((folder / MANIFEST).read_bytes()).hexdigest()[:12]
    except OSError:  # taken away since it was opened: whoever reads a layer is told
        return ""


def _plain(value: Any) -> Any:
    """What JSON can hold."""
    return value if isinstance(value, str | int | float | bool | None) else str(value)
