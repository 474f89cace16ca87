"""Layers of a trace, for each input of a batch, from recorded calls.

The padding of an input is cut off its calls. A model may run its attention on a batch of parts:
windows of an image, frames of a video, chunks of a text. The parts of one input become one layer,
side by side, in which no part attends to another.
"""

from __future__ import annotations

from dataclasses import replace

import torch
from torch import Tensor

from headloom.errors import InputError
from headloom.formats.files import JsonMapping
from headloom.formats.terms import Terms
from headloom.formats.trace import LayerInMemory, TraceData, TraceLayer
from headloom.formats.trace_writer import TraceWriter
from headloom.mechanism.function import attend
from headloom.mechanism.graph import AttentionGraph, Top
from headloom.mechanism.matrix.calls import matrix_call
from headloom.mechanism.parts import changed
from headloom.mechanism.received import LastQueries, Received, of_edges
from headloom.tracing.recording.layer_call import LayerCall, RowRanges
from headloom.tracing.recording.score_terms import cut_terms, mask_terms
from headloom.tracing.recording.sequences import InputSequence, NamesOfSequences

#: Largest log-sum-exp that float32 stores exactly enough: it rounds weights by 2^-24 of it.
FARTHEST = 5e-4 * 2**24


class LayerMaker:
    """Makes layers of each input of a batch from recorded calls, and holds or writes them.

    A call on parts becomes one layer if there is one input. With several inputs the parts cannot
    be assigned: the call is not kept but named in `refused`.

    Args:
        sequences: names the positions.
        samples: inputs of the batch.
        queries_keys: whether to keep queries and keys.
        received: number of last queries whose attention is summed separately; None: no sums.
        writer: writes each layer at once; None: hold them.
    """

    def __init__(
        self, sequences: NamesOfSequences, samples: int, queries_keys: bool, received: int | None,
        writer: TraceWriter | None,
    ) -> None:  # fmt: skip
        self._sequences, self._samples, self._queries_keys = sequences, samples, queries_keys
        self._received, self._writer = received, writer
        self._layers: list[list[TraceLayer]] = [[] for _ in range(samples)]
        self._named: list[dict[str, InputSequence]] = [{} for _ in range(samples)]
        #: Reasons why recorded layers were not kept, by their paths.
        self.refused: dict[str, str] = {}
        #: Tracks of the sequences of each name, numbered in the order of their first layers.
        self._tracks: dict[str, dict[int, int]] = {}

    def __call__(self, call: LayerCall) -> None:
        """Make the layer of every input."""
        batch, _, queries, keys = call.graph.shape
        if batch != self._samples > 1:
            self.refused[call.path] = (
                f"it ran on a batch of {batch} for {self._samples} inputs, which cannot be "
                "assigned; trace one input at a time"
            )
            return
        ends = call.sequences or self._sequences.ends(call)
        parts = batch if batch != self._samples else 1
        if parts > 1:
            call = _side_by_side(call)
            ends = (
                f"{ends[0].removesuffix(f'-{queries}')}-{parts}x{queries}",
                f"{ends[1].removesuffix(f'-{keys}')}-{parts}x{keys}",
            )
        # In self-attention there may be more keys than queries, as in a cache of a fixed size.
        of_queries, of_keys = call.tracks or (0, 0)
        of_keys = of_queries if ends[0] == ends[1] else of_keys
        ends = self._apart(ends[0], of_queries), self._apart(ends[1], of_keys)
        for sample in range(self._samples):
            rows, columns = (
                self._sequence(name, length, parts, sample)
                for name, length in zip(ends, (queries, keys), strict=True)
            )
            layer = self._layer(call, sample, ends, rows, columns)
            if self._writer is None:
                self._layers[sample].append(layer)
                continue
            for name, sequence in zip(ends, (rows, columns), strict=True):
                self._writer.add_sequence(name, sequence.names)
                if sequence.known:
                    self._writer.describe(name, sequence.known)
                if sequence.images:
                    self._writer.images = sequence.images
            self._writer.append(layer)

    def _layer(
        self, call: LayerCall, sample: int, ends: tuple[str, str], rows: InputSequence,
        columns: InputSequence,
    ) -> TraceLayer:  # fmt: skip
        """Return the layer of one input."""
        part = cut(call.graph[sample], rows.span, columns.span).cpu()
        tensors, terms = self._made_of(call, sample, rows.span, columns.span)
        if self._received is not None:
            part = _with_received(part, self._received, tensors, terms, call)
        if not self._queries_keys:
            tensors = None
        elif tensors is not None:
            # Copies, because the model may change its tensors.
            layout = torch.contiguous_format
            tensors = tensors[0].clone(memory_format=layout), tensors[1].clone(memory_format=layout)
        norms = call.value_norms
        return TraceLayer(
            name=call.path, kind=call.kind, index=call.index,
            shape=(part.shape[0], part.shape[1], part.shape[2]), queries_from=ends[0],
            keys_from=ends[1], query_tokens=rows.names, key_tokens=columns.names, scale=call.scale,
            positions=call.positions,
            mask=terms.rule if terms is not None and terms.mask_known else proven_mask(part),
            softcap=call.softcap, deviation=call.deviations[min(sample, len(call.deviations) - 1)],
            data=LayerInMemory(
                part, tensors, terms,
                None if norms is None else _of_sample(norms, sample, columns.span).cpu(),
            ),
        )  # fmt: skip

    def _made_of(
        self, call: LayerCall, sample: int, rows: slice, columns: slice
    ) -> tuple[tuple[Tensor, Tensor] | None, Terms | None]:
        """Return the queries and keys, and the terms, of one input."""
        ranges = None if call.ranges is None else call.ranges[min(sample, len(call.ranges) - 1)]
        if not call.has_products:
            # A call with weights only may come with its mask.
            terms = None if ranges is None else mask_terms(ranges, rows, columns)
            if call.missing is not None:
                terms = replace(terms or Terms(mask_known=False), missing=call.missing)
            return None, terms
        queries = _of_sample(call.queries, sample, rows)
        keys = _of_sample(call.keys, sample, columns)
        terms = cut_terms(
            ranges, call.relative, call.bias, call.sinks, sample=sample, rows=rows, columns=columns,
            # At most as large as queries and keys together.
            limit=queries.shape[0] * queries.shape[1] * keys.shape[2] + keys.numel(),
        )  # fmt: skip
        lse = call.graph[sample].lse[:, rows]
        far = float(lse[lse.isfinite()].abs().max()) if bool(lse.isfinite().any()) else 0.0
        # For example by an added mask of large numbers, in a row without other keys.
        if terms.missing is None and terms.bias is not None and far > FARTHEST:
            terms = replace(
                terms,
                missing=f"the log-sum-exp of a row is {far:.1e} from 0, too large for float32 to "
                "compute its weights from",
            )
        return (queries.cpu(), keys.cpu()), terms

    def _apart(self, name: str, track: int) -> str:
        """Return the name of a sequence on a track, with a number after the first track."""
        tracks = self._tracks.setdefault(name, {})
        number = tracks.setdefault(track, len(tracks)) if track else 0
        return f"{name}-call-{number}" if number else name

    def _sequence(self, name: str, length: int, parts: int, sample: int) -> InputSequence:
        named = self._named[sample]
        if name not in named and parts > 1:
            places = [(part, place) for part in range(parts) for place in range(length)]
            names = [f"part {part}, position {place}" for part, place in places]
            known = {"parts": [part for part, _ in places]}
            named[name] = InputSequence(slice(0, parts * length), names, known)
        elif name not in named:
            named[name] = self._sequences.of(name, length, sample)
        return named[name]

    def check(self) -> None:
        """Raise an InputError if no layer was kept: all ran on parts of several inputs."""
        if self.refused and self._writer is None and not self._layers[0]:
            path, reason = next(iter(self.refused.items()))
            raise InputError(f"trace: no layer could be kept: {path}: {reason}.")

    def traces(
        self, model: JsonMapping, verification: JsonMapping | None, not_traced: list[dict[str, str]]
    ) -> list[TraceData]:
        """Return the trace of each input from the held layers, with a description."""
        return [
            TraceData(
                {name: sequence.names for name, sequence in named.items()}, tuple(layers), model,
                {name: sequence.known for name, sequence in named.items() if sequence.known},
                verification, tuple(not_traced),
                next((part.images for part in named.values() if part.images), ()),
            )
            for layers, named in zip(self._layers, self._named, strict=True)
        ]  # fmt: skip


def _of_sample(tensor: Tensor, sample: int, span: slice) -> Tensor:
    return tensor[min(sample, len(tensor) - 1), :, span]


def cut(graph: AttentionGraph, queries: slice, keys: slice) -> AttentionGraph:
    """Return the part of a graph between some queries and keys; other mass goes to `rest`."""
    _, rows, length = graph.shape
    whole = slice(0, rows), slice(0, length)
    if (queries, keys) == whole and graph.k <= length:
        return graph
    columns = graph.keys[:, queries]
    inside = (columns >= keys.start) & (columns < keys.stop)
    # Remaining edges move forward, in their order, and empty places to the end.
    order = (~inside).to(torch.uint8).sort(dim=-1, stable=True).indices
    order = order[..., : min(graph.k, keys.stop - keys.start)]
    inside_now = inside.gather(-1, order)
    weights = graph.weights[:, queries]
    lost = torch.where(inside | (columns < 0), 0.0, weights).sum(-1)

    def taken(tensor: Tensor, empty: float) -> Tensor:
        return torch.where(inside_now, tensor.gather(-1, order), empty)

    return AttentionGraph(
        keys=taken(columns - keys.start, -1), scores=taken(graph.scores[:, queries], -torch.inf),
        weights=taken(weights, 0), lse=graph.lse[:, queries].clone(),
        entropy=graph.entropy[:, queries].clone(), rest=graph.rest[:, queries] + lost,
        count=graph.count[:, queries].clone(), length=keys.stop - keys.start,
        symmetric=graph.symmetric,
    )  # fmt: skip


def proven_mask(graph: AttentionGraph) -> str | None:
    """Return the mask's rule if counts and kept edges prove it: "all", "causal", or None."""
    _, queries, keys = graph.shape
    if bool((graph.count == keys).all()):
        return "all"
    positions = torch.arange(queries, device=graph.keys.device)
    ahead = graph.keys > positions[:, None]
    if queries == keys and bool((graph.count == positions + 1).all()) and not bool(ahead.any()):
        complete = bool((graph.k >= graph.count).all())
        return "causal" if complete else None
    return None


def _side_by_side(call: LayerCall) -> LayerCall:
    """Return a call on the parts of one input as a call on the whole, with a batch of one."""
    graph = call.graph
    parts, _, queries, keys = graph.shape
    first = torch.arange(parts, device=graph.keys.device)[:, None, None, None] * keys
    moved = torch.where(graph.keys >= 0, graph.keys + first.to(graph.keys.dtype), graph.keys)
    whole = AttentionGraph(
        keys=_joined(moved), scores=_joined(graph.scores), weights=_joined(graph.weights),
        lse=_joined(graph.lse), entropy=_joined(graph.entropy), rest=_joined(graph.rest),
        count=_joined(graph.count), length=parts * keys,
    )  # fmt: skip
    joined = call.changed(
        graph=whole, queries=_joined(call.queries), keys=_joined(call.keys),
        value_norms=None if call.value_norms is None else _joined(call.value_norms),
        ranges=_ranges_of_all(call.ranges, parts, queries, keys), bias=None,
        deviations=[max((d for d in call.deviations if d is not None), default=None)],
    )  # fmt: skip
    if call.bias is None or not call.has_products:
        return joined
    bias = call.bias.expand(parts, -1, queries, keys)
    if bias[0].numel() * parts * parts > call.queries.numel() + call.keys.numel():
        return joined.changed(missing="a bias within each of its parts is added to its scores")
    blocks = [torch.block_diag(*bias[:, head]) for head in range(bias.shape[1])]  # type: ignore[no-untyped-call]
    return joined.changed(bias=torch.stack(blocks)[None])


def _joined(tensor: Tensor) -> Tensor:
    """Reshape (parts, heads, positions, ...) to (1, heads, parts * positions, ...)."""
    return tensor.transpose(0, 1).flatten(1, 2)[None]


def _ranges_of_all(ranges: RowRanges, parts: int, queries: int, keys: int) -> RowRanges:
    """Return the ranges of all rows; a batch of one applies to every part."""
    if ranges is None:
        return None
    joined = []
    for part in range(parts):
        rows = ranges[min(part, len(ranges) - 1)]
        if rows is None:
            return (None,)
        joined.append(torch.where(rows[1] > rows[0], rows + part * keys, 0))
    return (torch.cat(joined, 1),)


def _with_received(
    graph: AttentionGraph, last: int, queries_keys: tuple[Tensor, Tensor] | None,
    terms: Terms | None, call: LayerCall,
) -> AttentionGraph:  # fmt: skip
    """Return a layer's graph, without a batch, with the attention that keys receive, if known.

    A call has these sums for all its rows. A graph without its padding, or joined from several
    passes, has other rows: then they are summed from the edges if all were kept, otherwise from
    queries and keys in one more pass. last: number of last queries; 0: none.
    """
    if graph.received is not None and bool(last) == (graph.received_last is not None):
        return graph
    if bool((graph.count <= (graph.keys >= 0).sum(-1)).all()):
        return changed(graph, **_of_kept(graph, last)._asdict())
    if queries_keys is None or terms is None or terms.missing is not None:
        return graph
    matrix = matrix_call(
        *queries_keys, mask=terms.mask, bias=terms.bias, relative=terms.relative, scale=call.scale,
        softcap=call.softcap, sinks=terms.sinks,
    )  # fmt: skip
    _, again = attend(
        matrix.queries, matrix.keys, matrix.values, mask=matrix.mask, bias=matrix.bias,
        relative=matrix.relative, scale=matrix.scale, softcap=matrix.softcap, sinks=terms.sinks,
        keep=Top(0), received=LastQueries(last) if last else True,
    )  # fmt: skip
    return changed(graph, **{name: getattr(again[0], name) for name in Received._fields})


def _of_kept(graph: AttentionGraph, last: int) -> Received:
    """Return the attention that keys receive from kept edges, which are all edges."""
    heads, queries, keys = graph.shape
    of_heads = []
    for head in range(heads):
        rows, places = (graph.keys[head] >= 0).nonzero(as_tuple=True)
        weights = graph.weights[head, rows, places].float()[:, None]
        columns = graph.keys[head, rows, places]
        of_heads.append(of_edges(weights, rows, columns, (queries, keys), last))
    joined = [
        None if parts[0] is None else torch.cat([part for part in parts if part is not None])
        for parts in zip(*of_heads, strict=True)
    ]
    return Received(*joined)
