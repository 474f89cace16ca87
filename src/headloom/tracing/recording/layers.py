"""Layers of a trace, for each input of a batch, from recorded calls.

A call is cut off the padding of its input. A model may give its attention a batch of its own:
windows of an image, frames of a video, chunks of a text. Of one input they are one layer, side by
side, in which no part looks into another.
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

#: The log-sum-exp up to which float32 holds it well enough: it rounds weights by 2^-24 of it.
FARTHEST = 5e-4 * 2**24


class LayerMaker:
    """Cuts recorded calls to each input of the batch, and holds them, or writes them at once.

    A call on parts of its inputs is one layer where there is one input. Of several, nothing says
    which part is whose: it is not kept but named in `refused`.

    Args:
        sequences: names the positions.
        samples: inputs of the batch.
        queries_keys: whether to keep queries and keys.
        received: of how many last queries what keys receive is kept by itself; None: it is not.
        writer: where layers are written at once; None: they are held.
    """

    def __init__(
        self,
        sequences: NamesOfSequences,
        samples: int,
        queries_keys: bool,
        received: int | None,
        writer: TraceWriter | None,
    ) -> None:
        self._sequences, self._samples, self._queries_keys = sequences, samples, queries_keys
        self._received, self._writer = received, writer
        self._layers: list[list[TraceLayer]] = [[] for _ in range(samples)]
        self._named: list[dict[str, InputSequence]] = [{} for _ in range(samples)]
        #: Why a layer was recorded and not kept, by its path.
        self.refused: dict[str, str] = {}
        #: The tracks of the sequences of a name, numbered in the order of their first layers.
        self._tracks: dict[str, dict[int, int]] = {}

    def __call__(self, call: LayerCall) -> None:
        """Keep one layer of every input."""
        batch, _, queries, keys = call.graph.shape
        if batch != self._samples > 1:
            self.refused[call.path] = (
                f"it ran on a batch of {batch} for {self._samples} inputs, and nothing says which "
                "is whose; trace one input at a time"
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
        # Keys of one's own sequence may be more than its queries, as in a cache of a fixed size.
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
        self,
        call: LayerCall,
        sample: int,
        ends: tuple[str, str],
        rows: InputSequence,
        columns: InputSequence,
    ) -> TraceLayer:
        """A layer of one input."""
        part = cut(call.graph[sample], rows.span, columns.span).cpu()
        tensors, terms = self._made_of(call, sample, rows.span, columns.span)
        if self._received is not None:
            part = _with_received(part, self._received, tensors, terms, call)
        if not self._queries_keys:
            tensors = None
        elif tensors is not None:
            # Copies: the model goes on with its own.
            layout = torch.contiguous_format
            tensors = tensors[0].clone(memory_format=layout), tensors[1].clone(memory_format=layout)
        norms = call.value_norms
        return TraceLayer(
            name=call.path,
            kind=call.kind,
            index=call.index,
            shape=(part.shape[0], part.shape[1], part.shape[2]),
            queries_from=ends[0],
            keys_from=ends[1],
            query_tokens=rows.names,
            key_tokens=columns.names,
            scale=call.scale,
            positions=call.positions,
            mask=terms.rule if terms is not None and terms.mask_known else proven_mask(part),
            softcap=call.softcap,
            deviation=call.deviations[min(sample, len(call.deviations) - 1)],
            data=LayerInMemory(
                part, tensors, terms,
                None if norms is None else _of_sample(norms, sample, columns.span).cpu(),
            ),
        )  # fmt: skip

    def _made_of(
        self, call: LayerCall, sample: int, rows: slice, columns: slice
    ) -> tuple[tuple[Tensor, Tensor] | None, Terms | None]:
        """Queries and keys, and the terms, of one input."""
        ranges = None if call.ranges is None else call.ranges[min(sample, len(call.ranges) - 1)]
        if not call.has_products:
            # Of weights alone the mask is known, if it was given too.
            terms = None if ranges is None else mask_terms(ranges, rows, columns)
            if call.missing is not None:
                terms = replace(terms or Terms(mask_known=False), missing=call.missing)
            return None, terms
        queries = _of_sample(call.queries, sample, rows)
        keys = _of_sample(call.keys, sample, columns)
        terms = cut_terms(
            ranges,
            call.relative,
            call.bias,
            call.sinks,
            sample=sample,
            rows=rows,
            columns=columns,
            # As many numbers as both have.
            limit=queries.shape[0] * queries.shape[1] * keys.shape[2] + keys.numel(),
        )
        lse = call.graph[sample].lse[:, rows]
        far = float(lse[lse.isfinite()].abs().max()) if bool(lse.isfinite().any()) else 0.0
        # As of a mask of large numbers that are added, where a row sees nothing else.
        if terms.missing is None and terms.bias is not None and far > FARTHEST:
            terms = replace(
                terms,
                missing=f"the log-sum-exp of a row is {far:.1e} from 0, too large for float32 to "
                "compute its weights from",
            )
        return (queries.cpu(), keys.cpu()), terms

    def _apart(self, name: str, track: int) -> str:
        """The sequence of a name on a track; those after the first have their number in it."""
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
        """Raise an InputError where no layer was kept: all ran on parts of several inputs."""
        if self.refused and self._writer is None and not self._layers[0]:
            path, reason = next(iter(self.refused.items()))
            raise InputError(f"trace: no layer could be kept: {path}: {reason}.")

    def traces(
        self,
        model: JsonMapping,
        verification: JsonMapping | None,
        not_traced: list[dict[str, str]],
    ) -> list[TraceData]:
        """The trace of each input, of what was held; the arguments are what they say beside it."""
        return [
            TraceData(
                {name: sequence.names for name, sequence in named.items()},
                tuple(layers),
                model,
                {name: sequence.known for name, sequence in named.items() if sequence.known},
                verification,
                tuple(not_traced),
                next((part.images for part in named.values() if part.images), ()),
            )
            for layers, named in zip(self._layers, self._named, strict=True)
        ]


def _of_sample(tensor: Tensor, sample: int, span: slice) -> Tensor:
    return tensor[min(sample, len(tensor) - 1), :, span]


def cut(graph: AttentionGraph, queries: slice, keys: slice) -> AttentionGraph:
    """The part of a graph between some queries and some keys; mass on others goes to `rest`."""
    _, rows, length = graph.shape
    whole = slice(0, rows), slice(0, length)
    if (queries, keys) == whole and graph.k <= length:
        return graph
    columns = graph.keys[:, queries]
    inside = (columns >= keys.start) & (columns < keys.stop)
    # Edges that stay move forward, in their order, and empty places to the end.
    order = (~inside).to(torch.uint8).sort(dim=-1, stable=True).indices
    order = order[..., : min(graph.k, keys.stop - keys.start)]
    inside_now = inside.gather(-1, order)
    weights = graph.weights[:, queries]
    lost = torch.where(inside | (columns < 0), 0.0, weights).sum(-1)

    def taken(tensor: Tensor, empty: float) -> Tensor:
        return torch.where(inside_now, tensor.gather(-1, order), empty)

    return AttentionGraph(
        keys=taken(columns - keys.start, -1),
        scores=taken(graph.scores[:, queries], -torch.inf),
        weights=taken(weights, 0),
        lse=graph.lse[:, queries].clone(),
        entropy=graph.entropy[:, queries].clone(),
        rest=graph.rest[:, queries] + lost,
        count=graph.count[:, queries].clone(),
        length=keys.stop - keys.start,
        symmetric=graph.symmetric,
    )


def proven_mask(graph: AttentionGraph) -> str | None:
    """The rule of the mask, where counts and kept edges prove it: "all", "causal", or None."""
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
    """A call on the parts of one input as a call on the whole of it, with a batch of one."""
    graph = call.graph
    parts, _, queries, keys = graph.shape
    first = torch.arange(parts, device=graph.keys.device)[:, None, None, None] * keys
    moved = torch.where(graph.keys >= 0, graph.keys + first.to(graph.keys.dtype), graph.keys)
    whole = AttentionGraph(
        keys=_joined(moved),
        scores=_joined(graph.scores),
        weights=_joined(graph.weights),
        lse=_joined(graph.lse),
        entropy=_joined(graph.entropy),
        rest=_joined(graph.rest),
        count=_joined(graph.count),
        length=parts * keys,
    )
    joined = call.changed(
        graph=whole,
        queries=_joined(call.queries),
        keys=_joined(call.keys),
        value_norms=None if call.value_norms is None else _joined(call.value_norms),
        ranges=_ranges_of_all(call.ranges, parts, queries, keys),
        bias=None,
        deviations=[max((d for d in call.deviations if d is not None), default=None)],
    )
    if call.bias is None or not call.has_products:
        return joined
    bias = call.bias.expand(parts, -1, queries, keys)
    if bias[0].numel() * parts * parts > call.queries.numel() + call.keys.numel():
        return joined.changed(missing="a bias within each of its parts is added to its scores")
    blocks = [torch.block_diag(*bias[:, head]) for head in range(bias.shape[1])]  # type: ignore[no-untyped-call]
    return joined.changed(bias=torch.stack(blocks)[None])


def _joined(tensor: Tensor) -> Tensor:
    """From (parts, heads, positions, ...) to (1, heads, parts * positions, ...)."""
    return tensor.transpose(0, 1).flatten(1, 2)[None]


def _ranges_of_all(ranges: RowRanges, parts: int, queries: int, keys: int) -> RowRanges:
    """The ranges of all rows; a batch of one stands for every part."""
    if ranges is None:
        return None
    joined = []
    for part in range(parts):
        own = ranges[min(part, len(ranges) - 1)]
        if own is None:
            return (None,)
        joined.append(torch.where(own[1] > own[0], own + part * keys, 0))
    return (torch.cat(joined, 1),)


def _with_received(
    graph: AttentionGraph,
    last: int,
    queries_keys: tuple[Tensor, Tensor] | None,
    terms: Terms | None,
    call: LayerCall,
) -> AttentionGraph:
    """The graph of a layer, without a batch, with what its keys receive, if that can be known.

    A call says what keys receive from all its rows. Of a graph that was cut off its padding, or
    joined from several passes, other rows count; then it is summed from the edges where all were
    kept, else from queries and keys in one more pass. last: of how many last queries; 0: none.
    """
    if graph.received is not None and bool(last) == (graph.received_last is not None):
        return graph
    if bool((graph.count <= (graph.keys >= 0).sum(-1)).all()):
        return changed(graph, **_of_kept(graph, last)._asdict())
    if queries_keys is None or terms is None or terms.missing is not None:
        return graph
    one = matrix_call(
        *queries_keys, mask=terms.mask, bias=terms.bias, relative=terms.relative, scale=call.scale,
        softcap=call.softcap, sinks=terms.sinks,
    )  # fmt: skip
    _, again = attend(
        one.queries, one.keys, one.values, mask=one.mask, bias=one.bias,
        relative=one.relative, scale=one.scale, softcap=one.softcap, sinks=terms.sinks,
        keep=Top(0), received=LastQueries(last) if last else True,
    )  # fmt: skip
    return changed(graph, **{name: getattr(again[0], name) for name in Received._fields})


def _of_kept(graph: AttentionGraph, last: int) -> Received:
    """From the kept edges, which are all."""
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
