"""Receives the attention calls of a running model: computes each, keeps or writes its graph."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from fnmatch import fnmatchcase
from typing import Any

import torch
from torch import Tensor, nn

from weft.errors import InputError
from weft.formats.terms import Terms
from weft.formats.trace import Held, TraceLayer
from weft.formats.trace_folder import TraceWriter
from weft.mechanism.function import attend, attention
from weft.mechanism.graph import All, AttentionGraph, Keep, Top
from weft.tracing.graphs import cut, proven_mask
from weft.tracing.interface import InterfaceCall, transformers
from weft.tracing.sequences import InputSequence, Sequences, layer_kind
from weft.tracing.terms import cut_terms, ranges_of
from weft.tracing.verification import deviation

__all__ = ["Catcher"]


@dataclass(frozen=True, eq=False)
class _Caught:
    """What came of one attention call, with a batch; the rest as TraceLayer says."""

    path: str
    kind: str
    index: int
    graph: AttentionGraph
    call: InterfaceCall | None
    scale: float
    positions: str
    deviation: float | None


class Catcher:
    """Receives the attention calls of a run: computes each, and keeps or writes its graph."""

    def __init__(
        self,
        sequences: Sequences,
        samples: int,
        keep: Keep,
        queries_keys: bool,
        layers: Sequence[int | str] | None,
    ) -> None:
        self._sequences, self._samples, self._keep = sequences, samples, keep
        self._queries_keys, self._wanted = queries_keys, layers
        self.writer: TraceWriter | None = None
        self.caught: list[list[TraceLayer]] = [[] for _ in range(samples)]
        self.named: list[dict[str, InputSequence]] = [{} for _ in range(samples)]
        self._paths: list[str] = []
        self._counts: dict[str, int] = {}
        self._used: set[int | str] = set()
        # With the mask itself, so that no other takes its id meanwhile.
        self._ranges: dict[tuple[int, int, tuple[int, int]], tuple[Any, Tensor | None]] = {}

    def __call__(self, call: InterfaceCall) -> Tensor:
        """The output of one attention call, (batch, heads, queries, value_depth)."""
        kind = layer_kind(call.path, call.module, call.is_causal)
        number, index, keep = self._next(call.path, kind, call.keys.shape[2])
        if not self._is_wanted(number, call.path):
            return attention(call.queries, call.keys, call.values, **call.arguments())
        # Half precision is for the model; scores and their sums are taken in float32.
        tensors = (call.queries.float(), call.keys.float(), call.values.float())
        output, graph = attend(*tensors, keep=keep, **call.arguments())
        found: Tensor = output.to(call.values.dtype)
        depth = call.queries.shape[-1]
        self._keep_layer(
            _Caught(
                path=call.path,
                kind=kind,
                index=index,
                graph=graph,
                call=call,
                scale=depth**-0.5 if call.scale is None else call.scale,
                positions="none" if call.bias is None else "bias",
                deviation=deviation(call, found, graph),
            )
        )
        return found

    def weights(self, path: str, module: nn.Module, weights: Tensor) -> None:
        """Receive the dense weights of a layer, (batch, heads, queries, keys), instead of a call.

        Its scores are the logarithms of its weights: the true ones less a number for each row.
        """
        ahead = weights.triu(1) if weights.shape[-2] == weights.shape[-1] > 1 else weights
        # In one input at least: a row of padding may look anywhere.
        is_causal = not bool(ahead.flatten(1).any(-1).all())
        kind = layer_kind(path, module, is_causal)
        number, index, keep = self._next(path, kind, weights.shape[-1])
        if not self._is_wanted(number, path):
            return
        empty = weights.new_zeros(*weights.shape[:3], 1, dtype=torch.float32)
        nothing = weights.new_zeros(*weights.shape[:2], weights.shape[3], 1, dtype=torch.float32)
        _, graph = attend(empty, nothing, nothing, bias=weights.float().log(), keep=keep)
        self._keep_layer(_Caught(path, kind, index, graph, None, 1.0, "bias", None))

    def _next(self, path: str, kind: str, keys: int) -> tuple[int, int, Top]:
        """The number of the next layer, its index among those of its kind, and what to keep."""
        self._paths.append(path)
        index = self._counts.get(kind, 0)
        self._counts[kind] = index + 1
        keep = Top(keys) if isinstance(self._keep, All) else self._keep
        return len(self._paths) - 1, index, keep

    def _is_wanted(self, number: int, path: str) -> bool:
        if self._wanted is None:
            return True
        matches = [
            wanted
            for wanted in self._wanted
            if (wanted == number if isinstance(wanted, int) else fnmatchcase(path, wanted))
        ]
        self._used.update(matches)
        return bool(matches)

    def _keep_layer(self, caught: _Caught) -> None:
        graph = caught.graph
        _, _, queries, keys = graph.shape
        ends = self._sequences.ends(caught.path, caught.kind, queries, keys)
        for sample in range(self._samples):
            rows, columns = (
                self._sequence(name, length, sample)
                for name, length in zip(ends, (queries, keys), strict=True)
            )
            # One graph serves every input where the model computes it once for all.
            one = graph[min(sample, len(graph) - 1)]
            part = cut(one, rows.span, columns.span).cpu()
            verified = caught.deviation
            if verified is not None:
                verified = max(verified, _mass_lost(one, part, rows.span))
            tensors, terms, norms = self._made_of(caught.call, sample, rows.span, columns.span)
            layer = TraceLayer(
                name=caught.path,
                kind=caught.kind,
                index=caught.index,
                shape=(part.shape[0], part.shape[1], part.shape[2]),
                queries_from=ends[0],
                keys_from=ends[1],
                query_tokens=rows.names,
                key_tokens=columns.names,
                scale=caught.scale,
                positions=caught.positions,
                mask=proven_mask(part) if terms is None else terms.rule,
                softcap=None if caught.call is None else caught.call.softcap,
                deviation=verified,
                data=Held(part, tensors, terms, norms),
            )
            if self.writer is None:
                self.caught[sample].append(layer)
            else:
                self._write(self.writer, layer, dict(zip(ends, (rows, columns), strict=True)))

    def _made_of(
        self, call: InterfaceCall | None, sample: int, rows: slice, columns: slice
    ) -> tuple[tuple[Tensor, Tensor] | None, Terms | None, Tensor | None]:
        """Queries and keys if they are kept, the terms, and the norms of values, of one input."""
        if call is None:
            return None, None, None
        # One stands for every input where the model computes it once for all.
        queries, keys, values = (
            tensor[min(sample, len(tensor) - 1), :, span]
            for tensor, span in (
                (call.queries, rows), (call.keys, columns), (call.values, columns)
            )
        )  # fmt: skip
        terms = cut_terms(
            self._mask_ranges(call, sample),
            None,
            call.bias,
            call.sinks,
            sample=sample,
            rows=rows,
            columns=columns,
            limit=queries.numel() + keys.numel(),
        )
        kept = (queries.cpu().clone(), keys.cpu().clone()) if self._queries_keys else None
        return kept, terms, values.float().norm(dim=-1).cpu()

    def _mask_ranges(self, call: InterfaceCall, sample: int) -> Tensor | None:
        """The ranges of a call's mask; layers that share a mask share them."""
        shape = call.queries.shape[2], call.keys.shape[2]
        where = id(call.mask), sample, shape
        if where not in self._ranges:
            self._ranges[where] = call.mask, ranges_of(call.mask, *shape, sample)
        return self._ranges[where][1]

    def _sequence(self, name: str, length: int, sample: int) -> InputSequence:
        named = self.named[sample]
        if name not in named:
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
        layer.append_to(writer)

    def check(self, model: nn.Module) -> None:
        """Raise where nothing came, or not every layer that was asked for."""
        if not self._paths:
            raise InputError(
                f"trace: {type(model).__name__} neither uses the attention interface of "
                f"Transformers {transformers().__version__} nor returns dense weights that could "
                "be taken instead. docs/tracing.md lists models that can be traced."
            )
        missing = [wanted for wanted in self._wanted or () if wanted not in self._used]
        if missing:
            raise InputError(
                f"trace: no layer {', '.join(map(repr, missing))}; the model has layers 0 to "
                f"{len(self._paths) - 1}: {self._paths[0]} ... {self._paths[-1]}."
            )
        if self._wanted is not None and not self._wanted:
            raise InputError("trace: layers=[] asks for no layer; None traces every one.")


def _mass_lost(whole: AttentionGraph, part: AttentionGraph, rows: slice) -> float:
    """The mass that a row had on padding, at most."""
    lost = part.rest - whole.rest[:, rows].cpu()
    return float(lost.max()) if lost.numel() else 0.0
