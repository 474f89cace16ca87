"""`Collection`: traces that are open in the studio, and a training's history where there is one.

The server answers each piece of it under a path (`headloom.studio.routes`); an exported page and a
notebook contain all of them (`headloom.studio.pack`), so the front end uses the same paths.
"""

from __future__ import annotations

import hashlib
import math
import secrets
import threading
from collections.abc import Callable
from dataclasses import dataclass, field
from functools import cached_property
from typing import TYPE_CHECKING

from headloom.analysis.graphs.rollout import chosen_layers, passed_over
from headloom.analysis.heads.measures import HEAD_MEASURES
from headloom.analysis.heads.roles import MEASURES, ROLE_WORDS, special_keys
from headloom.analysis.heads.roles import head_roles as roles_of
from headloom.analysis.image_map import has_patches
from headloom.errors import InputError
from headloom.formats.files import JsonObject
from headloom.formats.manifest import MANIFEST
from headloom.formats.tokens import running_text, shown, visible
from headloom.formats.trace import TraceData
from headloom.studio.arrays import Array, Layers, few_digits
from headloom.studio.neuron import Neurons
from headloom.studio.overviews import Overviews
from headloom.studio.sums import LOCAL, layer_sums
from headloom.studio.tiles import MatrixTiles
from headloom.studio.training import TrainingHistory
from headloom.version import __version__

if TYPE_CHECKING:
    from headloom.studio.asking import Asking

#: Layers of up to this many cells are measured on all weights: some seconds.
_CHEAP_CELLS = 2**30
#: Names, titles and colours of the measures and the roles.
WORDS = {
    "measures": {measure.name: measure.title for measure in HEAD_MEASURES},
    "roles": [
        {
            "name": name,
            "title": role.title,
            "phrase": role.phrase,
            "colours": dict(zip(("light", "dark"), role.colours, strict=True)),
        }
        for name, role in ROLE_WORDS.items()
    ],
}


def head_roles(trace: TraceData) -> list[list[JsonObject]]:
    """Return the role and the scores of each head, by layer.

    role      one of WORDS["roles"]
    scores    {measure: score} of those that apply, as in `trace.heads()`, rounded
    chance    {measure: [mean, standard deviation]} of random weights with the same entropy
    """
    layers: list[list[JsonObject]] = [[] for _ in trace.layers]
    cheap = all(math.prod(layer.shape) <= _CHEAP_CELLS for layer in trace.layers)
    for head in roles_of(trace, exact=None if cheap else False):
        scores, chances, deviations = (
            {name: few_digits(numbers[name]) for name in MEASURES
             if math.isfinite(numbers.get(name, math.nan))}
            for numbers in (head.scores, head.chances, head.chance_sds)
        )  # fmt: skip
        chance = {name: [chances[name], deviations[name]] for name in scores if name in deviations}
        layers[head.layer].append({"role": head.role, "scores": scores, "chance": chance})
    return layers


@dataclass(eq=False)
class Example:
    """Trace with its results so far.

    text: the text that the open model read; None: the trace does not come from that model.
    """

    name: str
    trace: TraceData
    text: str | None = None
    _sums: dict[int, bytes] = field(default_factory=dict, repr=False)
    _heads: list[list[JsonObject]] | None = field(default=None, repr=False)
    _state: str = "measuring"
    _measuring: threading.Thread | None = None
    _lock: threading.Lock = field(default_factory=threading.Lock, repr=False)
    _summing: threading.Lock = field(default_factory=threading.Lock, repr=False)

    def __post_init__(self) -> None:
        self.layers = Layers(self.trace)
        self.matrix = MatrixTiles(self.layers)
        self.neurons = Neurons(self.layers, self.matrix)
        self.overviews = Overviews(self.layers)

    @cached_property
    def digest(self) -> str:
        """First 12 digits of the SHA-256 of the trace's manifest.

        "": the trace is in memory only, or its folder was removed after it was opened.
        """
        try:
            content = (
                b"" if self.trace.folder is None else (self.trace.folder / MANIFEST).read_bytes()
            )
        except OSError:
            content = b""
        return hashlib.sha256(content).hexdigest()[:12] if content else ""

    def description(self) -> JsonObject:
        """Return the trace without its numbers, for the front end."""
        trace = self.trace
        return {
            "name": self.name,
            "model": {
                name: value if isinstance(value, str | int | float | bool | None) else str(value)
                for name, value in trace.model.items()
            },
            "sequences": {name: list(shown(tokens)) for name, tokens in trace.sequences.items()},
            "separators": {name: special_keys(trace, name) for name in trace.sequences},
            "seconds": {
                name: known["seconds"]
                for name, known in trace.positions.items()
                if "seconds" in known
            },
            "patches": [name for name in trace.sequences if has_patches(trace, name)],
            "deviation": trace.deviation, "side": self.overviews.side, "local": self.local,
            "flows": _flow_kinds(trace), "read": self.text is not None,
            "verification": None if trace.verification is None else dict(trace.verification),
            "layers": [
                {
                    "name": layer.name, "kind": layer.kind, "index": layer.index,
                    "shape": list(layer.shape), "queries": layer.queries_from,
                    "keys": layer.keys_from, "mask": layer.mask, "symmetric": layer.data.symmetric,
                    "deviation": layer.deviation, "exact": layer.data.has_matrix,
                    "picture": self.overviews.state(number), "values": layer.data.has_value_norms,
                }
                for number, layer in enumerate(trace.layers)
            ],
        }  # fmt: skip

    @property
    def local(self) -> bool:
        """Whether the means of the layers are available: see `headloom.studio.sums`."""
        return all(layer.shape[1] <= LOCAL for layer in self.trace.layers)

    def values(self, number: int) -> Array | None:
        """Return the norm of each key's value, float32 (heads, keys); None: not kept."""
        layer = self.trace.layers[number]
        norms = layer.value_norms
        if norms is None:
            return None
        repeated: Array = norms.float().repeat_interleave(layer.heads // norms.shape[0], 0).numpy()
        return repeated

    def sums(self, number: int, go_on: Callable[[], bool] = lambda: True) -> bytes:
        """Return `headloom.studio.sums.layer_sums` of a layer whose pictures are exact."""
        with self._summing:
            if number not in self._sums:
                self._sums[number] = layer_sums(self.layers, number, self.values(number), go_on)
        return self._sums[number]

    def heads(self, wait: bool = False) -> JsonObject:
        """Return the measures of every head.

            measures, roles   names and titles: see `WORDS`
            kept              by layer, the number of edges a row keeps at most
            unkept            by layer and head, the mean mass of a row on edges that were not kept
            state             "measuring", "known", or "failed: ..." with the reason
            heads             by layer and head, once known: see `head_roles`

        wait: until they are known, which may take a while.
        """
        with self._lock:
            if self._measuring is None:
                self._measuring = threading.Thread(target=self._measure, daemon=True)
                self._measuring.start()
        if wait:
            self._measuring.join()
        return {
            **WORDS,
            **self._kept,
            "state": self._state,
            "heads": self._heads if self._state == "known" else None,
        }

    @cached_property
    def _kept(self) -> JsonObject:
        kept, unkept = [], []
        for number in range(len(self.trace.layers)):
            arrays = self.layers[number]
            kept.append(arrays.kept)
            unkept.append([few_digits(share) for share in arrays.left_out.tolist()])
        return {"kept": kept, "unkept": unkept}

    def read_ahead(self) -> None:
        """Compute the pictures that are shown first."""
        for number in range(len(self.trace.layers)):
            if self.overviews.state(number) == "means":
                self.overviews.means(number)
            else:
                self.overviews.kept(number)

    def settle(self) -> None:
        """Wait for the background thread to finish."""
        if self._measuring is not None:
            self._measuring.join()

    def _measure(self) -> None:
        try:
            self.read_ahead()  # Pictures first: the measures must not delay them.
            self._heads, self._state = head_roles(self.trace), "known"
        except Exception as error:
            # A measure that fails must not stop the pictures.
            self._state = f"failed: {error}"


@dataclass
class Collection:
    """Traces, training history and model that are open.

    damaged: one line for each trace that could not be read.
    asking: a model that traces new texts, where one is open: see `headloom.studio.asking`.
    """

    title: str
    examples: list[Example]
    summary: list[tuple[str, str]] = field(default_factory=list)
    history: TrainingHistory | None = None
    damaged: list[str] = field(default_factory=list)
    asking: Asking | None = None

    def __post_init__(self) -> None:
        if not self.examples or not all(example.trace.layers for example in self.examples):
            raise InputError("nothing to show: expected at least one trace, each with a layer.")
        # Links refer to examples by name, so names are unique.
        taken: set[str] = set()
        for example in self.examples:
            name, number = example.name, 2
            while name in taken:
                name, number = f"{example.name} ({number})", number + 1
            example.name = name
            taken.add(name)

    @cached_property
    def traces(self) -> str:
        """Hash of the open traces; equal for the same traces on disk."""
        digests = [example.digest or secrets.token_hex(6) for example in self.examples]
        return hashlib.sha256("\n".join(digests).encode("ascii")).hexdigest()[:12]

    def opening(self) -> JsonObject:
        """Return the first message to the front end."""
        return {
            "title": self.title,
            "headloom": __version__,
            "summary": [list(pair) for pair in self.summary],
            "examples": [example.name for example in self.examples],
            "digests": [example.digest for example in self.examples],
            "history": self.history is not None,
            "damaged": self.damaged,
            "asks": None if self.asking is None else self.asking.name,
            "read": self.examples[0].text if self.asking and len(self.examples) == 1 else None,
            "live": False,
        }

    def settle(self) -> None:
        """Wait for all background threads to finish."""
        for example in self.examples:
            example.settle()


def _flow_kinds(trace: TraceData) -> list[JsonObject]:
    """Return the layers through which a token can be followed, one entry for each kind.

    kind, layers   the kind, and the numbers of the layers that take part
    queries, keys  the sequences of the last layer's positions and of the input
    note           what is left out, in words, or None
    """
    number = {id(layer): number for number, layer in enumerate(trace.layers)}
    kinds: list[JsonObject] = []
    for kind in dict.fromkeys(layer.kind for layer in trace.layers):
        try:
            layers, queries, keys, _ = chosen_layers(trace, kind)
        except InputError:
            continue  # These layers may split their input differently: no path leads through them.
        kinds.append(
            {
                "kind": kind, "layers": [number[id(layer)] for layer in layers], "queries": queries,
                "keys": keys, "note": passed_over(trace, kind),
            }
        )  # fmt: skip
    return kinds


def name_of(trace: TraceData) -> str:
    """Return a short name made from a trace's tokens."""
    texts = [running_text(shown(part)[:60]).strip() for part in trace.sequences.values()]
    return visible(" → ".join(texts), 100)
