"""Room for the steps of a layer that wait to be joined, taken once.

The small tensors of a step would else lie in the holes that the last cache has left, and the next
one, which is longer, would find no room there: a step took 40 MB more, of 90 MB of caches.
"""

from __future__ import annotations

import torch
from torch import Tensor

from headloom.mechanism.graph import AttentionGraph
from headloom.tracing.recording.joining import shape_of
from headloom.tracing.recording.layer_call import RecordedCall

__all__ = ["StepRoom"]

_OF_GRAPH = ("keys", "scores", "weights", "lse", "entropy", "rest", "count")


class StepRoom:
    """Holds the tensors of steps that are alike.

    Args:
        call: one of them, whose keys and values are its own alone.
        steps: how many there may be.
        queries: whether their queries are wanted, not their shape alone.
    """

    def __init__(self, call: RecordedCall, steps: int, queries: bool) -> None:
        self._queries = None if queries else shape_of(call.queries)
        tensors = self._tensors(call)
        self._shapes = [tensor.shape for tensor in tensors]
        rooms = [tensor.new_empty(steps, *tensor.shape).unbind() for tensor in tensors]
        #: What a step at each place has: of its graph, and keys, values and queries.
        self._places = [list(of_place) for of_place in zip(*rooms, strict=True)]

    def _tensors(self, call: RecordedCall) -> list[Tensor]:
        own = (call.keys, call.values, call.queries if self._queries is None else None)
        of_graph = [getattr(call.graph, name) for name in _OF_GRAPH]
        return of_graph + [tensor for tensor in own if tensor is not None]

    def take(self, call: RecordedCall, place: int) -> bool:
        """Copy the tensors of a step to a place, and let the call have these; whether they fit."""
        tensors = self._tensors(call)
        if call.graph.received is not None or [t.shape for t in tensors] != self._shapes:
            return False
        held = self._places[place]
        # One call for all: ten would take as long as the attention.
        torch._foreach_copy_(held, tensors)
        keys, scores, weights, lse, entropy, rest, count = held[:7]
        length, symmetric = call.graph.length, call.graph.symmetric
        call.graph = AttentionGraph(
            keys, scores, weights, lse, entropy, rest, count, length, symmetric
        )
        call.keys, call.values = held[7], held[8]
        call.queries = held[9] if self._queries is None else self._queries
        return True
