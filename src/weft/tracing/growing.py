"""Layers that grow: generation with a cache, where each pass of the model adds rows.

The first pass reads the prompt, each later one a token, whose query looks at the keys in the cache.
The rows of all passes, one below the other, are those of one pass over the whole text.
"""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass, replace

import torch
from torch import Tensor
from torch.nn.functional import pad

from weft.errors import InputError
from weft.mechanism.graph import AttentionGraph
from weft.mechanism.multihead import MultiHeadAttention
from weft.mechanism.observe import Observation
from weft.tracing.caught import Caught
from weft.tracing.terms import ranges_of, rule_of_ranges

__all__ = ["Growing", "joined_graphs"]


_REORDERED = (
    "trace: the cache holds other keys than the pass before left, as in beam search. Trace greedy "
    "or sampled generation, or the text that was generated."
)


def _goes_on(before: Observation | None, seen: Observation) -> bool:
    """Whether a step's cache begins with the keys of the step before it."""
    if before is None:
        return True
    length = before.keys.shape[2]
    return torch.equal(before.keys[:, :, -1:], seen.keys[:, :, length - 1 : length])


@dataclass(frozen=True, eq=False)
class _Part:
    """What one pass adds to a layer.

    caught: of the pass; keys and norms are those of its own positions alone.
    first: the place of the first key of its graph among all keys.
    """

    caught: Caught
    first: int


class Growing:
    """Receives what is caught in the passes of one text, and joins it."""

    def __init__(self) -> None:
        self._parts: dict[tuple[str, int], list[_Part]] = {}
        self._seen: dict[str, int] = {}
        self._before = 0
        #: How many passes there were.
        self.passes = 0

    def new_pass(self, before: int) -> None:
        """The model begins a pass; the cache holds so many positions."""
        self._before = before
        self._seen.clear()
        self.passes += 1

    def __call__(self, caught: Caught) -> None:
        """Take a call of a layer in this pass."""
        place = self._seen.get(caught.path, 0)
        self._seen[caught.path] = place + 1
        parts = self._parts.setdefault((caught.path, place), [])
        # Encoders with a head for language grow too: with a cache, each later token looks at all
        # before it, the prompt at itself.
        grows = caught.kind != "cross" and caught.queries is not None
        parts.append(self._part(caught, parts) if grows else _Part(caught, 0))

    def _part(self, caught: Caught, parts: list[_Part]) -> _Part:
        """A pass of self-attention with its own keys alone."""
        assert caught.queries is not None and caught.keys is not None
        assert caught.value_norms is not None
        own, there = caught.queries.shape[2], caught.keys.shape[2]
        # Caches of windows have let go of the first keys; those of a fixed size have room at the
        # end, which the mask hides.
        total = self._before + own
        first, end = max(0, total - there), min(there, total)
        if parts and end > own:
            last = parts[-1].caught.keys
            assert last is not None
            if not torch.equal(last[:, :, -1:], caught.keys[:, :, end - own - 1 : end - own]):
                raise InputError(_REORDERED)
        new = slice(0, end) if not parts else slice(end - own, end)
        # Not a view: it would keep the whole cache of every step in memory.
        changed = replace(
            caught,
            keys=caught.keys[:, :, new].clone(),
            value_norms=caught.value_norms[:, :, new].clone(),
        )
        return _Part(changed, first)

    def joined(self) -> list[Caught]:
        """Every layer, its passes one below the other."""
        return [_joined(parts) for parts in self._parts.values()]


def _joined(parts: list[_Part]) -> Caught:
    first = parts[0].caught
    if len(parts) == 1 and first.graph.length == _length(parts):
        return first
    length = _length(parts)
    caught = [part.caught for part in parts]
    keys, norms = first.keys, first.value_norms
    if first.kind != "cross":
        keys = _cat([one.keys for one in caught])
        norms = _cat([one.value_norms for one in caught])
    measured = [one.deviation for one in caught if one.deviation is not None]
    return replace(
        first,
        graph=joined_graphs([(part.caught.graph, part.first) for part in parts], length),
        deviation=max(measured) if measured else None,
        queries=_cat([one.queries for one in caught]),
        keys=keys,
        value_norms=norms,
        ranges=_ranges(parts, length),
        bias=_bias(caught, length),
    )


def _length(parts: list[_Part]) -> int:
    """How many keys the layer has in the end."""
    first = parts[0].caught
    if first.kind == "cross" or first.keys is None:
        return first.graph.length
    return sum(part.caught.keys.shape[2] for part in parts if part.caught.keys is not None)


def _cat(tensors: list[Tensor | None]) -> Tensor | None:
    found = [tensor for tensor in tensors if tensor is not None]
    return torch.cat(found, 2) if found else None


def joined_graphs(graphs: list[tuple[AttentionGraph, int]], length: int) -> AttentionGraph:
    """Graphs with a batch, one below the other.

    Args:
        graphs: each with the place of its first key among all.
        length: all keys.
    """
    places = max(graph.k for graph, _ in graphs)

    def below(name: str, empty: float | None = None) -> Tensor:
        parts = []
        for graph, first in graphs:
            tensor = getattr(graph, name)
            if name == "keys":
                tensor = torch.where(tensor >= 0, tensor + first, tensor)
            parts.append(
                tensor if empty is None else pad(tensor, (0, places - graph.k), value=empty)
            )
        return torch.cat(parts, 2)

    return AttentionGraph(
        keys=below("keys", -1),
        scores=below("scores", -torch.inf),
        weights=below("weights", 0),
        lse=below("lse"),
        entropy=below("entropy"),
        rest=below("rest"),
        count=below("count"),
        length=length,
    )


def joined_calls(
    calls: Sequence[tuple[str, MultiHeadAttention, Observation]],
) -> list[tuple[str, MultiHeadAttention, Observation]]:
    """What weft's own layers were seen to do, step by step with a cache, one below the other."""
    steps: dict[str, list[tuple[MultiHeadAttention, Observation]]] = {}
    for name, layer, seen in calls:
        steps.setdefault(name, []).append((layer, seen))
    joined = []
    for name, of in steps.items():
        layer, first = of[0]
        last = of[-1][1]
        length = last.keys.shape[2]
        graphs = [seen.caught for _, seen in of if isinstance(seen.caught, AttentionGraph)]
        rows, before = [], None
        for _, seen in of:
            if not _goes_on(before, seen):
                raise InputError(_REORDERED)
            before = seen
            ranges = ranges_of(seen.mask, seen.queries.shape[2], seen.keys.shape[2])
            assert ranges is not None, "a step's mask is causal"
            rows.append(ranges)
        changed = replace(
            first,
            queries=torch.cat([seen.queries for _, seen in of], 2),
            keys=last.keys,
            values=last.values,
            caught=joined_graphs([(graph, 0) for graph in graphs], length),
            mask=rule_of_ranges(torch.cat(rows, 1), length),
        )
        joined.append((name, layer, changed))
    return joined


def _ranges(parts: list[_Part], length: int) -> tuple[Tensor | None, ...] | None:
    """For each input, the ranges of all rows."""
    found: list[Tensor | None] = []
    for sample, ranges in enumerate(parts[0].caught.ranges or ()):
        if ranges is None:
            found.append(None)
            continue
        rows = []
        for part in parts:
            one = (part.caught.ranges or ())[sample]
            if one is None:
                break
            seen = one[1] > one[0]
            rows.append(torch.where(seen, one + part.first, one).clamp(max=length))
        found.append(torch.cat(rows, 1) if len(rows) == len(parts) else None)
    return tuple(found) or None


def _bias(caught: list[Caught], length: int) -> Tensor | None:
    """A bias by distance of all rows, taken from the last one, which sees every distance.

    Keys ahead of a query, which it never sees, have the bias 0 here.
    """
    last = caught[-1].bias
    if last is None:
        return None
    row = last[:, :, -1, :]
    if last.shape[-1] != length or caught[0].kind == "encoder":
        # Between two sequences, or in a window: not a bias by distance that is known whole. In an
        # encoder the prompt looks ahead, at distances that the last query does not see.
        if last.shape[-1] == length:
            return _rows_of_bias(caught, length)
        return torch.cat([one.bias for one in caught if one.bias is not None], 2)
    values = pad(row, (0, length - 1))
    queries = sum(one.graph.shape[2] for one in caught)
    index = torch.arange(length)[None, :] - torch.arange(queries)[:, None] + length - 1
    whole = values[:, :, index.clamp(min=0)]
    start = 0
    for one in caught:
        own = one.bias
        end = start + one.graph.shape[2]
        if own is not None:
            same = own.tril(start) == whole[:, :, start:end, : own.shape[-1]].tril(start)
            if not bool(same.all()):
                # Not by distance: what is known, and nothing ahead.
                return _rows_of_bias(caught, length)
        start = end
    return whole


def _rows_of_bias(caught: list[Caught], length: int) -> Tensor:
    """The rows of a bias as the passes had them, 0 for keys that were not there yet."""
    rows = [part.bias for part in caught if part.bias is not None]
    return torch.cat([pad(row, (0, length - row.shape[-1])) for row in rows], 2)
