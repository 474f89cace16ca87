"""`Layers`: the kept edges of layers as compact arrays, and their matrices; a few in memory.

`few_digits` rounds a number for the studio, `as_json` encodes everything that it sends.
"""

from __future__ import annotations

import dataclasses
import json
import math
import threading
from collections import OrderedDict
from dataclasses import dataclass
from functools import lru_cache
from typing import Any

import numpy as np
from numpy.typing import NDArray

from headloom.analysis.weights import left_out, mass_on_keys, mean_left_out
from headloom.formats.files import finite
from headloom.formats.trace import TraceData, TraceLayer
from headloom.mechanism.matrix.attention_matrix import AttentionMatrix

Array = NDArray[Any]
#: Rows of a piece of edges.
BLOCK = 1024
#: Keys have 16 bits below this length; the value 65535 means no edge.
SHORT = 65535
#: Bytes of arrays in memory at most, besides the layer used last.
_HELD = 2**30
#: Layers whose queries and keys stay in memory.
_LAYERS = 2


@dataclass(frozen=True)
class LayerArrays:
    """Graph of a layer as arrays.

    keys       int32 (heads, queries, kept), strongest first; -1: no edge
    weights    float32, likewise
    lse, entropy   float32 (heads, queries)
    rest       float32, likewise: the mass of a row on keys that were not kept; a sink may have some
               of it where its logit is not known
    count      uint32 (heads, queries)
    left_out   (heads,): the mean of `rest` over rows with a visible key
    received   float32 (heads, length): over all weights; None: not in the trace
    """

    keys: Array
    weights: Array
    lse: Array
    entropy: Array
    rest: Array
    count: Array
    left_out: Array
    length: int
    received: Array | None = None

    @property
    def heads(self) -> int:
        """Number of heads."""
        return int(self.keys.shape[0])

    @property
    def queries(self) -> int:
        """Number of rows of a head."""
        return int(self.keys.shape[1])

    @property
    def kept(self) -> int:
        """Number of edges of a row at most."""
        return int(self.keys.shape[2])

    @property
    def nbytes(self) -> int:
        """Size in memory."""
        parts = (self.keys, self.weights, self.lse, self.entropy, self.rest, self.count)
        return sum(part.nbytes for part in parts) + getattr(self.received, "nbytes", 0)

    @property
    def masses(self) -> Array:
        """Mass of each row on its keys, kept or not, (heads, queries).

        0 for a row without keys, else 1 minus the mass of a sink. Also 1 where that is unknown: the
        weights are not numbers, or neither every edge nor the sink's logit was kept.
        """
        known = self.weights.sum(-1, dtype=np.float64) + self.rest
        masses: Array = np.where(np.isnan(known), 1, known)
        return masses

    def edges(self, head: int, block: int) -> bytes:
        """Return the edges of rows 1024 block to 1024 (block + 1) of a head, little-endian.

        weights              float32 (rows, kept), strongest first; score = log(weight) + lse
        lse, entropy, rest   float32 (rows,)
        count                uint32 (rows,)
        keys                 uint16 (rows, kept), 65535: no edge; uint32 from 65,535 keys on,
                             4294967295: no edge
        """
        rows = slice(block * BLOCK, (block + 1) * BLOCK)
        short = self.length < SHORT
        keys = self.keys[head, rows]
        parts = (
            self.weights[head, rows].astype("<f4"),
            self.lse[head, rows].astype("<f4"),
            self.entropy[head, rows].astype("<f4"),
            self.rest[head, rows].astype("<f4"),
            self.count[head, rows].astype("<u4"),
            # As an unsigned number, -1 is the largest.
            np.maximum(keys, -1).astype("<u2" if short else "<u4"),
        )
        return b"".join(part.tobytes() for part in parts)

    def queries_of(self, head: int, key: int) -> bytes:
        """Return the rows whose kept edges lead to a key, strongest first.

        Returns: uint32 rows, then their weights as float32.
        """
        rows, places = np.nonzero(self.keys[head] == key)
        weights = self.weights[head, rows, places]
        order = np.argsort(-weights, kind="stable")
        return b"".join(
            (rows[order].astype("<u4").tobytes(), weights[order].astype("<f4").tobytes())
        )


def layer_arrays(layer: TraceLayer) -> LayerArrays:
    """Read a layer's graph; columns that no row uses are cut off."""
    # Not layer.graph: it would stay in memory.
    graph = layer.data.graph.detach().cpu()
    most = int((graph.keys >= 0).sum(-1).max()) if graph.keys.numel() else 0
    terms = layer.data.terms
    sinks = None if terms is None else terms.sinks
    masses = None if sinks is None else mass_on_keys(graph, sinks.cpu())
    return LayerArrays(
        keys=np.ascontiguousarray(graph.keys[..., :most].numpy(), dtype=np.int32),
        weights=np.ascontiguousarray(graph.weights[..., :most].float().numpy()),
        lse=graph.lse.float().numpy(), entropy=graph.entropy.float().numpy(),
        rest=left_out(graph, masses).float().numpy(), count=graph.count.numpy().astype(np.uint32),
        left_out=mean_left_out(graph, sinks).numpy(), length=graph.length,
        received=None if graph.received is None else graph.received.float().numpy(),
    )  # fmt: skip


class Layers:
    """Layers of a trace, read on demand, a few in memory; thread-safe."""

    def __init__(self, trace: TraceData) -> None:
        self.trace = trace
        self._arrays: OrderedDict[int, LayerArrays] = OrderedDict()
        self._layer = lru_cache(_LAYERS)(self._opened)
        self._lock = threading.Lock()
        self._opening = threading.Lock()

    def __getitem__(self, number: int) -> LayerArrays:
        """Return the graph of a layer."""
        with self._lock:
            if number not in self._arrays:
                self._arrays[number] = layer_arrays(self.trace.layers[number])
                total = sum(held.nbytes for held in self._arrays.values())
                while len(self._arrays) > 1 and total > _HELD:
                    total -= self._arrays.popitem(last=False)[1].nbytes
            self._arrays.move_to_end(number)
            return self._arrays[number]

    def layer(self, number: int) -> TraceLayer:
        """Return a copy of a layer with its matrix; only the last few copies stay in memory."""
        with self._opening:  # read once
            return self._layer(number)

    def _opened(self, number: int) -> TraceLayer:
        layer = dataclasses.replace(self.trace.layers[number])
        _ = layer.matrix
        return layer

    def matrix(self, number: int) -> AttentionMatrix | None:
        """Return the whole matrix of a layer; None: the trace has kept edges only."""
        return self.layer(number).matrix


def few_digits(number: float, digits: int = 5) -> float:
    """Round a number to significant digits; keep more where it is large or near a half.

    The page rounds again, to fewer digits. 28.749939 in five digits, 28.750, would become 28.8
    there, but 28.7 is right. That happens only where the last digit is a 5, so digits are added
    until it is not. Whole numbers keep all digits.

    >>> few_digits(28.749939), few_digits(28.761234), few_digits(28.75)
    (28.7499, 28.761, 28.75)
    >>> few_digits(1234567.8), few_digits(-0.00123451)
    (1234568.0, -0.00123451)
    """
    number = float(number)
    if number == 0 or not math.isfinite(number):
        return number
    least = max(digits, math.floor(math.log10(abs(number))) + 1)
    for count in range(min(least, 17), 18):
        text = f"{number:.{count - 1}e}"
        rounded = float(text)
        if rounded == number or not text.partition("e")[0].rstrip(".0").endswith("5"):
            return rounded
    return number


def as_json(content: object) -> bytes:
    """Encode as compact JSON in ASCII; numbers that are not finite become null."""
    try:
        text = json.dumps(content, separators=(",", ":"), allow_nan=False)
    except ValueError:  # queries or keys were NaN
        text = json.dumps(finite(content), separators=(",", ":"))
    return text.encode("ascii")
