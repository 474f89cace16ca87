"""Session that turns the attention calls of a model into traces."""

from __future__ import annotations

from collections.abc import Callable
from contextlib import ExitStack
from fnmatch import fnmatchcase
from threading import get_ident
from typing import Any, Self

import torch
from torch import Tensor

from headloom.errors import InputError
from headloom.formats.files import JsonMapping
from headloom.formats.trace import TraceData
from headloom.formats.trace_writer import TraceWriter, writing_trace
from headloom.mechanism.backends.compiled import beside_a_thread
from headloom.mechanism.function import attend, attention
from headloom.mechanism.graph import All, AttentionGraph, Top
from headloom.mechanism.masks import Mask
from headloom.tracing.options import TraceOptions
from headloom.tracing.recording.layer_call import LayerCall, RowRanges
from headloom.tracing.recording.layers import LayerMaker
from headloom.tracing.recording.passes import Passes
from headloom.tracing.recording.score_terms import ranges_of
from headloom.tracing.recording.sequences import NamesOfSequences
from headloom.tracing.recording.verification import deviation, tolerance


class Session:
    """Recorder of a model's attention calls over one batch of inputs.

        with Session(options) as session:
            session.begin(names, samples, about)         # before the run, or after it
            output = session(call)                       # a call that the session computes
            session.take(call, graph)                    # a call computed by its layer
            traces = session.end(not_traced, verification)

    Args:
        options: of the trace.
        computes: whether the model uses the session's outputs; otherwise its own attention.
        joins: whether the model runs in several passes, to be joined.
    """

    def __init__(
        self, options: TraceOptions, *, computes: bool = True, joins: bool = False
    ) -> None:
        self._options, self._computes = options, computes
        #: The thread whose calls are recorded; None: `headloom.watch` chooses them.
        self._thread = get_ident() if computes else None
        #: Passes of a generation; None: a single pass.
        self.passes: Passes | None = None
        if joins:
            kept = options.queries_keys or options.received_last is not None
            self.passes = Passes(queries_keys=kept, save=options.save)
        self._maker: LayerMaker | None = None
        self._writer: TraceWriter | None = None
        self._about: JsonMapping = {}
        #: Calls recorded before their sequences have names.
        self.calls: list[LayerCall] = []
        self._stack = ExitStack()
        #: Called with the path and the number of each layer that has run.
        self.progress: Callable[[str, int], None] = lambda path, number: None
        #: Coarsest tolerance of the recorded calls: see `tolerance`.
        self.coarsest = 0.0
        #: Number and index of each layer by its path and the count of earlier calls in a pass.
        self._known: dict[tuple[str, int], tuple[int, int]] = {}
        self._passed: dict[str, int] = {}
        self._counts: dict[str, int] = {}
        self._used: set[int | str] = set()
        #: Paths of layers that have run and were not requested, in the order of the run.
        self.left_out: dict[str, None] = {}
        # Keeps the mask itself too, so that its id stays unique.
        self._ranges: dict[tuple[int, torch.Size, int], tuple[Mask | None, RowRanges]] = {}

    def __enter__(self) -> Self:
        return self

    def __exit__(self, *error: Any) -> None:
        self._stack.__exit__(*error)

    # Calls

    def __call__(self, call: LayerCall) -> Tensor | None:
        """Compute a call; return its output, (batch, heads, queries, value_depth).

        None: the model uses its own attention.
        """
        if self._thread not in (None, get_ident()):
            return None
        tensors = call.queries, call.keys, call.values
        number = self._next(call)
        if number is None:
            return attention(*tensors, **call.arguments()) if self._computes else None
        with torch.set_grad_enabled(self._computes and torch.is_grad_enabled()):
            # The scores and their sums are computed in float32, even in half precision.
            output, graph = attend(
                *(tensor.float() for tensor in tensors),
                keep=self.places(call.keys.shape[2]),
                received=self.passes is None and self._options.received,
                **call.arguments(),
            )
        result = output.to(call.values.dtype)
        self._record(call, result, graph, number)
        return result if self._computes else None

    def take(self, call: LayerCall, graph: AttentionGraph) -> None:
        """Record a call computed by its layer, with its graph."""
        if self._thread not in (None, get_ident()):
            return
        number = self._next(call)
        if number is not None:
            self._record(call, None, graph, number)

    def places(self, keys: int) -> Top:
        """Return the edges to keep of a query over a number of keys."""
        keep = self._options.keep
        return Top(keys) if isinstance(keep, All) else keep

    def _record(
        self, call: LayerCall, output: Tensor | None, graph: AttentionGraph, number: int
    ) -> None:
        is_verified = self._options.sampled and (self.passes is None or self.passes.are_verified)
        if is_verified and not call.weights_only:
            strict = self._options.verify is not False
            call.deviations = [deviation(call, output, graph, strict=strict)]
        # (Detaching the tensors of a graph takes as long as computing one row.)
        call.graph = graph.detach() if graph.weights.requires_grad else graph
        call.own_output = None
        self.coarsest = max(self.coarsest, tolerance(call.queries.dtype))
        if not (call.weights_only and call.mask is None):
            call.ranges = self._ranges_of(call)
        if call.has_products:
            call.queries, call.keys = call.products()
        call.queries, call.keys = call.queries.detach(), call.keys.detach()
        call.values = call.values.detach()
        call.values_known = call.values_known and not call.weights_only
        if self.passes is not None:
            self.passes(call)
        else:
            if call.values_known:
                call.value_norms = torch.linalg.vector_norm(call.values.float(), dim=-1)
            call.values = call.values[:, :, :0]
            (self._maker or self.calls.append)(call)
        self.progress(call.path, number)

    def new_pass(self, before: int) -> None:
        """Begin another pass. before: number of positions before it."""
        self._passed.clear()
        self._ranges.clear()
        assert self.passes is not None
        self.passes.new_pass(before)

    def _next(self, call: LayerCall) -> int | None:
        """Return the number of the next layer, and set its index; None: it is not requested."""
        path, kind = call.path, call.kind
        before = self._passed.get(path, 0)
        self._passed[path] = before + 1
        if (path, before) not in self._known:
            index = self._counts.get(kind, 0)
            self._counts[kind] = index + 1
            self._known[path, before] = len(self._known), index
        number, call.index = self._known[path, before]
        if self._options.layers is None:
            return number
        matches = [
            layer
            for layer in self._options.layers
            if (layer == number if isinstance(layer, int) else fnmatchcase(path, layer))
        ]
        self._used.update(matches)
        if not matches:
            self.left_out[path] = None
        return number if matches else None

    def _ranges_of(self, call: LayerCall) -> RowRanges:
        """Return the ranges of a call's mask for each input, cached for layers that share it."""
        where = id(call.mask), call.queries.shape[::2], call.keys.shape[2]
        if where not in self._ranges:
            sizes = call.queries.shape[2], call.keys.shape[2]
            inputs = range(len(call.queries))
            ranges = tuple(ranges_of(call.mask, *sizes, sample) for sample in inputs)
            self._ranges[where] = call.mask, ranges
        return self._ranges[where][1]

    @property
    def paths(self) -> list[str]:
        """Paths of all layers that have run, requested or not."""
        return [path for path, _ in self._known]

    # Layers

    def begin(self, names: NamesOfSequences, samples: int, about: JsonMapping) -> None:
        """Make layers from now on, the recorded calls first; write them if a folder was given.

        Args: names: of the positions. samples: inputs of the batch. about: the model.

        Raises: InputError: several inputs cannot be saved as one trace; DataError: the folder
            exists, or cannot be written.
        """
        options, self._about = self._options, about
        if options.save is not None:
            if samples > 1:
                raise InputError(
                    f"trace: a batch of {samples} inputs cannot be saved as one trace. Trace one "
                    "after the other, or leave save= out and save each trace."
                )
            if self.passes is not None:
                # A thread writes each layer while the next one is made.
                self._stack.enter_context(beside_a_thread())
            self._writer = self._stack.enter_context(
                writing_trace(
                    options.save, {}, about, dtype=options.dtype, overwrite=options.overwrite
                )
            )
        self._maker = LayerMaker(
            names, samples, options.queries_keys, options.received_last, self._writer
        )
        while self.calls:
            self._maker(self.calls.pop(0))

    def make_joined(self) -> None:
        """Make the layers of a finished generation."""
        assert self.passes is not None and self._maker is not None
        for call in self.passes.joined():
            self._maker(call)

    def refused(self) -> dict[str, str]:
        """Return the reasons why recorded layers were not kept, by their paths.

        Raises: InputError: a requested layer did not run, or no layer could be kept.
        """
        missing = [layer for layer in self._options.layers or () if layer not in self._used]
        if missing:
            paths = self.paths
            raise InputError(
                f"trace: no layer {', '.join(map(repr, missing))}; the model has layers 0 to "
                f"{len(paths) - 1}: {paths[0]} ... {paths[-1]}."
            )
        assert self._maker is not None
        self._maker.check()
        return self._maker.refused

    def end(
        self, not_traced: list[dict[str, str]], verification: JsonMapping | None = None
    ) -> list[TraceData]:
        """Return the trace of each input, saved and opened if a folder was given.

        Args: not_traced: see Trace.not_traced. verification: see Trace.verification.
        """
        assert self._maker is not None
        if self._writer is None or self._options.save is None:
            return self._maker.traces(self._about, verification, not_traced)
        self._writer.verification, self._writer.not_traced = verification, not_traced
        self._stack.close()
        return [TraceData.open(self._options.save)]
