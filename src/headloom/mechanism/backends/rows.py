"""`Rows`: what a backend gives for the queries of a call."""

from __future__ import annotations

from typing import Any, NamedTuple

import torch
from torch import Tensor
from torch.nn.functional import pad

from headloom.mechanism.call import AttentionCall
from headloom.mechanism.graph import AttentionGraph
from headloom.mechanism.shapes import Edges, Output, PerRow

__all__ = ["PER_ROW", "Rows"]

#: Tensors of `Rows` that have a row for each query; those after them are of keys.
PER_ROW = 8


class Rows(NamedTuple):
    """Output, and the tensors of an `AttentionGraph` in its order, with a batch dimension.

    keys_seen: its `count`. The last three are of keys, not of rows; None where nobody asks.
    """

    output: Output
    keys: Edges
    scores: Edges
    weights: Edges
    lse: PerRow
    entropy: PerRow
    rest: PerRow
    keys_seen: PerRow
    received: Tensor | None = None
    received_most: Tensor | None = None
    received_last: Tensor | None = None

    def changed(self, **tensors: Tensor | None) -> Rows:
        """The same with other tensors under some names.

        As `_replace`, which the compiler of torch before 2.10 does not read.
        """
        return Rows(**{**dict(zip(Rows._fields, self, strict=True)), **tensors})  # type: ignore[arg-type]

    def with_places(self, k: int) -> Rows:
        """The same with at least k places for edges, the last ones empty."""
        missing = (0, k - self.keys.shape[-1])
        if missing[1] <= 0:
            return self
        return self.changed(
            keys=pad(self.keys, missing, value=-1),
            scores=pad(self.scores, missing, value=-torch.inf),
            weights=pad(self.weights, missing),
        )

    def graph(self, call: AttentionCall) -> AttentionGraph:
        """The graph of the call that they are of."""
        fields: dict[str, Any] = {
            "keys": self.keys,
            "scores": self.scores,
            "weights": self.weights,
            "lse": self.lse,
            "entropy": self.entropy,
            "rest": self.rest,
            "count": self.keys_seen,
            "length": call.keys.shape[2],
            "symmetric": call.symmetric,
            "received": self.received,
            "received_most": self.received_most,
            "received_last": self.received_last,
        }
        if torch.compiler.is_compiling():  # which before torch 2.11 is all that the compiler reads
            return AttentionGraph(**fields)
        # Not by its __init__: of a frozen class that sets the fields one by one, in 3 microseconds.
        graph = AttentionGraph.__new__(AttentionGraph)
        vars(graph).update(fields)
        return graph
