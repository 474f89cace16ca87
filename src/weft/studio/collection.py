"""`Collection`: what the studio has open, as named pieces of JSON and of little-endian arrays.

The server gives each piece under its path; an exported page and a notebook hold them all. So the
front end reads one set of paths, wherever it runs:

    open                                          title, summary, names of the examples
    examples/E                                    a trace: tokens, layers, exactness
    examples/E/heads                              measures and roles of every head
    examples/E/layers/L/means                     uint8 (heads, 128, 128), exact, see `overviews`
    examples/E/layers/L/kept                      likewise of the kept edges
    examples/E/layers/L/values                    float32 (heads, keys): the norms of the values
    examples/E/layers/L/sums                      what each key gets in all, see `sums`
    examples/E/layers/L/heads/H/edges/B           the kept edges of 1,024 rows, see `edges`
    history                                       steps, losses, measures along a training
    history/layers/L/weights, .../products        uint8 and int8, see `training`
"""

from __future__ import annotations

import json
import threading
from collections.abc import Callable
from dataclasses import dataclass, field
from typing import Any

import numpy as np

from weft.errors import InputError
from weft.formats.tokens import running_text, shown, visible
from weft.formats.trace import TraceData, TraceLayer
from weft.formats.trace_reader import StoredLayer
from weft.studio.arrays import Array, LayerArrays, LayerCache
from weft.studio.overviews import Overviews
from weft.studio.summary import MEASURES, layer_measures
from weft.studio.sums import layer_sums
from weft.studio.tiles import MatrixTiles
from weft.studio.training import TrainingHistory
from weft.version import __version__

__all__ = ["BLOCK", "Collection", "Example", "as_json", "edges"]

#: Rows of a piece of edges.
BLOCK = 1024
#: Keys are 16 bits below this length, of which 65535 says that there is no edge.
SHORT = 65535


def as_json(content: Any) -> bytes:
    """Compact JSON in ASCII, whatever the tokens hold."""
    return json.dumps(content, separators=(",", ":"), allow_nan=False).encode("ascii")


def edges(arrays: LayerArrays, head: int, block: int) -> bytes:
    """The edges of rows 1024 block to 1024 (block + 1) of a head, little-endian.

    weights              float32 (rows, kept), strongest first; score = log(weight) + lse
    lse, entropy, rest   float32 (rows,)
    count                uint32 (rows,)
    keys                 uint16 (rows, kept), 65535: no edge; uint32 from 65,535 keys on,
                         4294967295: no edge
    """
    rows = slice(block * BLOCK, (block + 1) * BLOCK)
    short = arrays.length < SHORT
    keys = arrays.keys[head, rows]
    none = SHORT if short else 2**32 - 1
    parts = (
        arrays.weights[head, rows].astype("<f4"),
        arrays.lse[head, rows].astype("<f4"),
        arrays.entropy[head, rows].astype("<f4"),
        arrays.rest[head, rows].astype("<f4"),
        arrays.count[head, rows].astype("<u4"),
        np.where(keys < 0, none, keys).astype("<u2" if short else "<u4"),
    )
    return b"".join(part.tobytes() for part in parts)


@dataclass
class Example:
    """A trace and what was worked out of it so far.

    roles: called once, in a thread of its own; what it gives stands beside the measures of each
    head: see `weft.studio.roles.head_roles`.
    """

    name: str
    trace: TraceData
    roles: Callable[[TraceData], list[list[dict[str, Any]]]] | None = None
    _sums: dict[int, bytes] = field(default_factory=dict, repr=False)
    _measures: list[list[dict[str, Any]]] | None = None
    _roles: Any = None
    _state: str = "none"
    _lock: threading.Lock = field(default_factory=threading.Lock, repr=False)

    def __post_init__(self) -> None:
        self.layers = LayerCache(self.trace)
        self.matrix = MatrixTiles(self.trace, self.layers)
        self.overviews = Overviews(self.trace, self.layers, self.matrix)
        self._finding: threading.Thread | None = None

    def description(self) -> dict[str, Any]:
        """The trace without its numbers."""
        trace = self.trace
        return {
            "name": self.name,
            "model": {name: _plain(value) for name, value in trace.model.items()},
            "sequences": {name: list(shown(tokens)) for name, tokens in trace.sequences.items()},
            "special": {
                name: known["special"]
                for name, known in trace.positions.items()
                if "special" in known
            },
            "deviation": trace.deviation,
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
                    "deviation": layer.deviation,
                    "exact": self.matrix.exact(number),
                    "picture": self.overviews.state(number),
                    "values": _has_values(layer),
                }
                for number, layer in enumerate(trace.layers)
            ],
        }

    def edges(self, number: int, head: int, block: int) -> bytes:
        """See `edges`."""
        return edges(self.layers[number], head, block)

    def values(self, number: int) -> bytes | None:
        """The norm of each key's value, float32 (heads, keys); None: they were not kept."""
        norms = self._norms(number)
        return None if norms is None else bytes(norms.astype("<f4").tobytes())

    def sums(self, number: int) -> bytes:
        """See `weft.studio.sums.layer_sums`; of a layer whose pictures are exact."""
        if number not in self._sums:
            arrays, norms = self.layers[number], self._norms(number)
            self._sums[number] = layer_sums(arrays, self.matrix.matrix(number), norms)
        return self._sums[number]

    def _norms(self, number: int) -> Array | None:
        layer = self.trace.layers[number]
        norms = layer.value_norms
        if norms is None:
            return None
        repeated: Array = norms.float().repeat_interleave(layer.heads // norms.shape[0], 0).numpy()
        return repeated

    def queries_of(self, number: int, head: int, key: int) -> bytes:
        """The rows whose kept edges lead to a key, strongest first.

        Returns: uint32 rows, then their weights as float32.
        """
        arrays = self.layers[number]
        rows, places = np.nonzero(arrays.keys[head] == key)
        weights = arrays.weights[head, rows, places]
        order = np.argsort(-weights, kind="stable")
        return b"".join(
            (rows[order].astype("<u4").tobytes(), weights[order].astype("<f4").tobytes())
        )

    def heads(self, wait: bool = False) -> dict[str, Any]:
        """Measures of every head, and its role where that is known yet.

        wait: for the roles, which may take a while; else they are begun, and "roles" says
        "pending" until they are there.
        """
        with self._lock:
            if self._measures is None:
                self._measures = [
                    layer_measures(self.layers[number], layer.queries_from == layer.keys_from)
                    for number, layer in enumerate(self.trace.layers)
                ]
            if self.roles is not None and self._state == "none":
                self._state = "pending"
                self._finding = threading.Thread(target=self._find_roles, daemon=True)
                self._finding.start()
                if wait:
                    self._finding.join()
        roles = self._roles if self._state == "known" else None
        return {
            "measures": MEASURES,
            "kept": [self.layers[number].kept for number in range(len(self.trace.layers))],
            "layers": self._measures if roles is None else _replaced(self._measures, roles),
            "state": self._state,
            "roles": roles,
        }

    def settle(self) -> None:
        """End what is worked out in threads of its own."""
        self.overviews.settle()
        if self._finding is not None:
            self._finding.join()

    def _find_roles(self) -> None:
        assert self.roles is not None
        try:
            self._roles = self.roles(self.trace)
            self._state = "known"
        except Exception as error:
            # A measure that fails on one trace must not take the pictures with it.
            self._roles, self._state = None, f"failed: {error}"


def _replaced(
    measures: list[list[dict[str, Any]]], roles: list[list[dict[str, Any]]]
) -> list[list[dict[str, Any]]]:
    """The measures of each head with the analysis' scores in place of those of the kept edges."""

    def one(entry: dict[str, Any], role: dict[str, Any]) -> dict[str, Any]:
        scores: dict[str, float] = role.get("scores", {})
        left = [name for name in entry["bounds"] if name not in scores]
        return entry | scores | {"bounds": left + role.get("bounds", [])}

    return [
        [one(entry, role) for entry, role in zip(layer, known, strict=True)]
        for layer, known in zip(measures, roles, strict=True)
    ]


@dataclass
class Collection:
    """Everything that is open: examples, and a training's history where there is one.

    damaged: of the traces beside them that cannot be read, which and why.
    """

    title: str
    examples: list[Example]
    summary: list[tuple[str, str]] = field(default_factory=list)
    history: TrainingHistory | None = None
    damaged: list[str] = field(default_factory=list)

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

    def opening(self) -> dict[str, Any]:
        """What the front end asks first."""
        return {
            "title": self.title,
            "weft": __version__,
            "summary": [list(pair) for pair in self.summary],
            "examples": [example.name for example in self.examples],
            "history": self.history is not None,
            "damaged": self.damaged,
            "live": False,
        }

    def settle(self) -> None:
        """End what is worked out in threads of their own."""
        for example in self.examples:
            example.settle()


def name_of(trace: TraceData) -> str:
    """A short name made of a trace's tokens."""
    texts = [running_text(shown(of)[:60]).strip() for of in trace.sequences.values()]
    return visible(" → ".join(texts), 100)


def _has_values(layer: TraceLayer) -> bool:
    """Whether the norms of a layer's values were kept; a stored layer says so unread."""
    if isinstance(layer.data, StoredLayer):
        return layer.data.entry.get("value_norms") is not None
    return layer.value_norms is not None


def _plain(value: Any) -> Any:
    """What JSON can hold."""
    return value if isinstance(value, str | int | float | bool | None) else str(value)
