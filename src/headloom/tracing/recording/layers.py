"""From the recorded calls of a batch to the layers of a trace for each of its inputs."""

from __future__ import annotations

import warnings
from collections.abc import Mapping
from dataclasses import replace
from typing import Any

import torch
from torch import Tensor

from headloom.errors import InputError
from headloom.formats.files import JsonMapping
from headloom.formats.terms import Terms
from headloom.formats.trace import LayerInMemory, TraceData, TraceLayer
from headloom.formats.trace_writer import TraceWriter
from headloom.mechanism.graph import AttentionGraph
from headloom.tracing.recording.comparison import tolerance
from headloom.tracing.recording.cutting import (
    cut,
    part_names,
    part_numbers,
    proven_mask,
    side_by_side,
)
from headloom.tracing.recording.key_sums import with_received
from headloom.tracing.recording.layer_call import RecordedCall
from headloom.tracing.recording.score_terms import cut_terms, mask_terms
from headloom.tracing.recording.sequences import InputSequence, NamesOfSequences

__all__ = ["LayerMaker"]

#: The log-sum-exp up to which float32 holds it well enough: it rounds weights by 2^-24 of it.
FARTHEST = 5e-4 * 2**24


#: What is said of mass where none is expected.
_ON_PADDING = (
    "layer {path} looks at padding, with {mass:.1%} of a row: the model does not hide it. Padding "
    "is not in the trace; the mass is in the rest of the rows. Trace one input at a time."
)
_AHEAD = (
    "layer {path} looks ahead, with {mass:.1%} of a row, though it says that it is causal. The "
    "trace shows what the model computed; check the mask that it makes."
)


class LayerMaker:
    """Cuts recorded calls to each input of the batch, and holds them, or writes them at once.

    A call on parts of its inputs (see headloom.tracing.recording.cutting) is one layer where there
    is one input. Of several, nothing says which part is whose: it is not kept but named in
    `refused`.

    Args:
        sequences: names the positions.
        samples: inputs of the batch.
        queries_keys: whether to keep queries and keys.
        received: whether to keep what keys receive; see AttentionCall.received.
    """

    def __init__(
        self,
        sequences: NamesOfSequences,
        samples: int,
        queries_keys: bool,
        received: int | None = None,
    ) -> None:
        self._sequences, self._samples, self._queries_keys = sequences, samples, queries_keys
        self._received = received
        self.writer: TraceWriter | None = None
        self._layers: list[list[TraceLayer]] = [[] for _ in range(samples)]
        self._named: list[dict[str, InputSequence]] = [{} for _ in range(samples)]
        #: Why a layer was recorded and not kept, by its path.
        self.refused: dict[str, str] = {}
        #: Layers that are not in the trace: see Trace.not_traced.
        self.not_traced: list[dict[str, str]] = []
        #: The largest mass of a row where none is expected, by what is said of it, and its layer.
        self._odd_mass: dict[str, tuple[float, str]] = {}
        #: The tracks of the sequences of a name, numbered in the order of their first layers.
        self._tracks: dict[str, dict[int, int]] = {}

    def __call__(self, call: RecordedCall) -> None:
        """Keep one layer of every input."""
        batch, _, queries, keys = call.graph.shape
        if batch != self._samples > 1:
            self.refused[call.path] = (
                f"it ran on a batch of {batch} for {self._samples} inputs, and nothing says which "
                "is whose; trace one input at a time"
            )
            return
        ends = call.sequences or self._sequences.ends(
            call.path, call.kind, queries, keys, call.grids
        )
        if call.gone:
            ends = ends[0], self._later(ends[1], keys, call.gone)
        parts = batch if batch != self._samples else 1
        if parts > 1:
            call = side_by_side(call)
            ends = (
                f"{ends[0].removesuffix(f'-{queries}')}-{parts}x{queries}",
                f"{ends[1].removesuffix(f'-{keys}')}-{parts}x{keys}",
            )
        # Keys of one's own sequence may be more than its queries, as in a cache of a fixed size.
        of_queries, of_keys = call.tracks or (0, 0)
        of_keys = of_queries if ends[0] == ends[1] else of_keys
        ends = self._apart(ends[0], of_queries), self._apart(ends[1], of_keys)
        graph = call.graph
        for sample in range(self._samples):
            rows, columns = (
                self._sequence(name, length, parts, sample)
                for name, length in zip(ends, (queries, keys), strict=True)
            )
            of_sample = graph[sample]
            part = cut(of_sample, rows.span, columns.span).cpu()
            self._look_for_mass(call, of_sample, part, rows.span)
            tensors, terms, norms = self._made_of(call, sample, rows.span, columns.span)
            part = with_received(part, self._received, tensors, terms, call.scale, call.softcap)
            if not self._queries_keys:
                tensors = None
            elif tensors is not None:
                # Copies: the model goes on with its own.
                tensors = (_copy(tensors[0]), _copy(tensors[1]))
            layer = TraceLayer(
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
                data=LayerInMemory(part, tensors, terms, norms),
            )
            if self.writer is None:
                self._layers[sample].append(layer)
            else:
                self._write(self.writer, layer, dict(zip(ends, (rows, columns), strict=True)))

    def _look_for_mass(
        self, call: RecordedCall, whole: AttentionGraph, part: AttentionGraph, rows: slice
    ) -> None:
        """Note mass on padding, and ahead of a query in a model that says it looks behind alone.

        The numbers are those of the model, and right; but its masks are not what they seem.
        """
        masses = {_ON_PADDING: _mass_lost(whole, part, rows)}
        _, queries, keys = part.shape
        if call.is_causal and self._sequences.plain and queries == keys:
            masses[_AHEAD] = _mass_ahead(part)
        for what, mass in masses.items():
            if mass > max(tolerance(torch.float32), self._odd_mass.get(what, (0.0, ""))[0]):
                self._odd_mass[what] = mass, call.path

    def _made_of(
        self, call: RecordedCall, sample: int, rows: slice, columns: slice
    ) -> tuple[tuple[Tensor, Tensor] | None, Terms | None, Tensor | None]:
        """Queries and keys, the terms, and the norms of values, of one input."""
        ranges = None if call.ranges is None else call.ranges[min(sample, len(call.ranges) - 1)]

        def own(tensor: Tensor, span: slice) -> Tensor:
            return tensor[min(sample, len(tensor) - 1), :, span]

        norms = None if call.value_norms is None else own(call.value_norms, columns).cpu()
        if call.queries is None or call.keys is None:
            # Of weights alone the mask is known, if it was given too.
            terms = None if ranges is None else mask_terms(ranges, rows, columns)
            if call.missing is not None:
                terms = terms or Terms(mask_known=False)
                terms = replace(terms, missing=call.missing)
            return None, terms, norms
        if call.ranges is None:
            return None, None, norms
        queries, keys = own(call.queries, rows), own(call.keys, columns)
        terms = cut_terms(
            ranges,
            call.relative,
            call.bias,
            call.sinks,
            sample=sample,
            rows=rows,
            columns=columns,
            # As many numbers as both have; of queries perhaps their number alone is there.
            limit=queries.shape[0] * queries.shape[1] * keys.shape[2] + keys.numel(),
        )
        if call.missing is not None:
            terms = replace(terms, missing=call.missing)
        lse = call.graph[sample].lse[:, rows]
        far = float(lse[lse.isfinite()].abs().max()) if bool(lse.isfinite().any()) else 0.0
        # As of a mask of large numbers that are added, where a row sees nothing else.
        if terms.missing is None and terms.bias is not None and far > FARTHEST:
            terms = replace(
                terms,
                missing=f"the log-sum-exp of a row is {far:.1e} from 0, too large for float32 to "
                "compute its weights from",
            )
        return (queries.cpu(), keys.cpu()), terms, norms

    def _apart(self, name: str, track: int) -> str:
        """The sequence of a name on a track; those after the first have their number in it."""
        tracks = self._tracks.setdefault(name, {})
        number = tracks.setdefault(track, len(tracks)) if track else 0
        return f"{name}-call-{number}" if number else name

    def _later(self, name: str, length: int, first: int) -> str:
        """The sequence of positions from one on: a cache had let go of those before it."""
        name = f"{name.removesuffix(f'-{length}')}-{length}-from-{first}"
        positions = [f"position {place}" for place in range(first, first + length)]
        for named in self._named:
            named[name] = InputSequence(slice(0, length), positions)
        return name

    def _sequence(self, name: str, length: int, parts: int, sample: int) -> InputSequence:
        named = self._named[sample]
        if name not in named and parts > 1:
            known: dict[str, list[Any]] = {"parts": part_numbers(parts, length)}
            span = slice(0, parts * length)
            named[name] = InputSequence(span, part_names(parts, length), known)
        elif name not in named:
            named[name] = self._sequences.of(name, length, sample)
        return named[name]

    @staticmethod
    def _write(
        writer: TraceWriter, layer: TraceLayer, sequences: Mapping[str, InputSequence]
    ) -> None:
        for name, sequence in sequences.items():
            writer.add_sequence(name, sequence.names)
            if sequence.known:
                writer.describe(name, sequence.known)
            if sequence.images:
                writer.images = sequence.images
        writer.append(layer)

    def finish(self, not_traced: list[dict[str, str]]) -> None:
        """Say which modules ran and are not among the layers, when all have come.

        Warns of mass where none is expected.

        Raises: InputError: no layer was kept, because all ran on parts of several inputs.
        """
        if self.refused and self.writer is None and not self._layers[0]:
            path, reason = next(iter(self.refused.items()))
            raise InputError(f"trace: no layer could be kept: {path}: {reason}.")
        for what, (mass, path) in self._odd_mass.items():
            warnings.warn(f"trace: {what.format(path=path, mass=mass)}", stacklevel=4)
        self.not_traced = not_traced
        if self.writer is not None:
            self.writer.not_traced = not_traced

    def traces(
        self, model: JsonMapping, verification: JsonMapping | None = None
    ) -> list[TraceData]:
        """The trace of each input, of what was held.

        model: what they say of the model. verification: and of how it was verified.
        """
        return [
            TraceData(
                {name: sequence.names for name, sequence in self._named[sample].items()},
                tuple(self._layers[sample]),
                model,
                {
                    name: sequence.known
                    for name, sequence in self._named[sample].items()
                    if sequence.known
                },
                verification,
                tuple(self.not_traced),
                next((part.images for part in self._named[sample].values() if part.images), ()),
            )
            for sample in range(self._samples)
        ]


def _copy(tensor: Tensor) -> Tensor:
    return tensor.clone(memory_format=torch.contiguous_format)


def _mass_ahead(part: AttentionGraph) -> float:
    """The kept mass of a row on keys after it, at most."""
    position = torch.arange(part.shape[1])[:, None]
    ahead = torch.where(part.keys > position, part.weights, 0).nan_to_num(0).sum(-1)
    return float(ahead.max()) if ahead.numel() else 0.0


def _mass_lost(whole: AttentionGraph, part: AttentionGraph, rows: slice) -> float:
    """The mass that a row had on padding, at most."""
    lost = (part.rest - whole.rest[:, rows].cpu()).nan_to_num(0)
    return float(lost.max()) if lost.numel() else 0.0
