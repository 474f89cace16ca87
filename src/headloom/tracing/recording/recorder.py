"""The recorder: takes the attention calls of a model that runs, chooses, computes, verifies."""

from __future__ import annotations

from collections.abc import Callable, Sequence
from fnmatch import fnmatchcase
from typing import Any

import torch
from torch import Tensor

from headloom.errors import InputError
from headloom.mechanism.function import attend, attention
from headloom.mechanism.graph import All, AttentionGraph, Keep, Top
from headloom.mechanism.received import LastQueries
from headloom.tracing.recording.joining import Ranges
from headloom.tracing.recording.layer_call import LayerCall, RecordedCall
from headloom.tracing.recording.row_check import deviation, reference_deviation
from headloom.tracing.recording.score_terms import ranges_of

__all__ = ["CallRecorder"]


class CallRecorder:
    """Records the attention calls of a model that runs, whatever their source.

    Args:
        receive: is given each call of a layer that is wanted, recorded.
        keep: edges of each query.
        layers: numbers in the order of the run, or paths; None: all.
        verified: whether a call is to be verified, from its queries and the keys before them.
        strict: whether a call that differs from the model's own attention is an error.
        received: what is asked of keys; see `headloom.attend`.
        new_keys: from a call, and the ranges of its mask, to those of its keys that no call before
            it had, or to None where their norms are taken later; None: all.
    """

    def __init__(
        self,
        receive: Callable[[RecordedCall], None],
        keep: Keep,
        layers: Sequence[int | str] | None,
        verified: Callable[[], bool] = lambda: True,
        strict: bool = True,
        received: bool | LastQueries = False,
        new_keys: Callable[[LayerCall, Ranges], slice | None] | None = None,
    ) -> None:
        self.receive, self.keep, self._wanted = receive, keep, layers
        self._new_keys = new_keys
        #: Whether the model goes on with what is computed here, not with its own attention.
        self.computes = True
        self._verified, self._strict, self._received = verified, strict, received
        #: Told the path and the number of each layer that has run.
        self.progress: Callable[[str, int], None] = lambda path, number: None
        #: Number and index of each layer by its path and how often the path came before in a pass.
        self._known: dict[tuple[str, int], tuple[int, int]] = {}
        self._passed: dict[str, int] = {}
        self._counts: dict[str, int] = {}
        self._used: set[int | str] = set()
        #: The paths of layers that have run and were not asked for, in the order of the run.
        self.left_out: dict[str, None] = {}
        # With the mask itself, so that no other takes its id meanwhile.
        self._ranges: dict[
            tuple[int, torch.Size, torch.Size], tuple[Any, tuple[Tensor | None, ...]]
        ] = {}

    def __call__(self, call: LayerCall) -> Tensor | None:
        """Compute a call; returns its output, (batch, heads, queries, value_depth).

        None: the model is to go on with its own.
        """
        number, index = self._next(call)
        tensors = call.queries, call.keys, call.values
        if not self._is_wanted(number, call.path):
            return attention(*tensors, **call.arguments()) if self.computes else None
        with torch.set_grad_enabled(self.computes and torch.is_grad_enabled()):
            # Half precision is for the model; scores and their sums are taken in float32.
            output, graph = attend(
                *(tensor.float() for tensor in tensors),
                keep=self.places(call.keys.shape[2]),
                received=self._received,
                **call.arguments(),
            )
        result = output.to(call.values.dtype)
        differs = None
        if self._verified():
            differs = deviation(call, result, graph, strict=self._strict)
        self._hand_on(call, number, index, graph, [differs] * len(call.queries))
        return result if self.computes else None

    def take(self, call: LayerCall, graph: AttentionGraph) -> None:
        """Take a call that its layer has computed itself, with the graph of it."""
        number, index = self._next(call)
        if self._is_wanted(number, call.path):
            verified = self._verified() and not call.weights_only
            samples = range(len(call.queries)) if verified else ()
            differ = [
                reference_deviation(call, graph, sample, strict=self._strict) for sample in samples
            ] or [None]
            self._hand_on(call, number, index, graph, differ)

    def places(self, keys: int) -> Top:
        """The edges that are kept of a query over so many keys."""
        return Top(keys) if isinstance(self.keep, All) else self.keep

    def _hand_on(
        self,
        call: LayerCall,
        number: int,
        index: int,
        graph: AttentionGraph,
        deviations: list[float | None],
    ) -> None:
        products = call.products()
        queries, keys = (None, None) if products is None else products
        known = products is not None
        unknown = call.weights_only and call.mask is None
        ranges = None if unknown else self._ranges_of(call)
        norms = values = None
        if call.values_known and not call.weights_only:
            new = slice(None) if self._new_keys is None else self._new_keys(call, ranges)
            if new is None:
                values = call.values.detach()
            else:
                norms = torch.linalg.vector_norm(call.values.detach()[:, :, new].float(), dim=-1)
        self.receive(
            RecordedCall(
                path=call.path,
                kind=call.kind,
                index=index,
                graph=graph.detach() if graph.weights.requires_grad else graph,
                scale=call.scale,
                positions=call.positions,
                deviations=deviations,
                queries=None if queries is None else queries.detach(),
                keys=None if keys is None else keys.detach(),
                value_norms=norms,
                values=values,
                ranges=ranges,
                bias=call.bias if known else None,
                relative=call.relative,
                sinks=call.sinks,
                softcap=call.softcap,
                is_causal=call.is_causal,
                by_formula=call.by_formula,
                grids=call.grids,
                missing=call.missing,
                tracks=call.tracks,
                sequences=call.sequences,
            )
        )
        self.progress(call.path, number)

    def new_pass(self) -> None:
        """The model begins another pass through its layers."""
        self._passed.clear()
        self._ranges.clear()

    def _next(self, call: LayerCall) -> tuple[int, int]:
        """The number of the layer that comes, and its index among those of its kind."""
        path, kind = call.path, call.kind
        before = self._passed.get(path, 0)
        self._passed[path] = before + 1
        if (path, before) not in self._known:
            index = self._counts.get(kind, 0)
            self._counts[kind] = index + 1
            self._known[path, before] = len(self._known), index
        return self._known[path, before]

    def _is_wanted(self, number: int, path: str) -> bool:
        if self._wanted is None:
            return True
        matches = [
            wanted
            for wanted in self._wanted
            if (wanted == number if isinstance(wanted, int) else fnmatchcase(path, wanted))
        ]
        self._used.update(matches)
        if not matches:
            self.left_out[path] = None
        return bool(matches)

    def _ranges_of(self, call: LayerCall) -> tuple[Tensor | None, ...]:
        """The ranges of a call's mask, for each input; layers that share a mask share them."""
        where = id(call.mask), call.queries.shape, call.keys.shape
        known = self._ranges.get(where)
        if known is None:
            sizes = call.queries.shape[2], call.keys.shape[2]
            inputs = range(len(call.queries))
            known = call.mask, tuple(ranges_of(call.mask, *sizes, sample) for sample in inputs)
            self._ranges[where] = known
        return known[1]

    @property
    def paths(self) -> list[str]:
        """The paths of all layers that have run, wanted or not."""
        return [path for path, _ in self._known]

    def check(self) -> None:
        """Raise an InputError where not every layer came that was asked for."""
        missing = [wanted for wanted in self._wanted or () if wanted not in self._used]
        if missing:
            paths = self.paths
            raise InputError(
                f"trace: no layer {', '.join(map(repr, missing))}; the model has layers 0 to "
                f"{len(paths) - 1}: {paths[0]} ... {paths[-1]}."
            )
