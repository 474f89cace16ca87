"""Tracing any module of torch, by the attention functions that it calls."""

from __future__ import annotations

import inspect
from collections.abc import Callable, Iterator, Mapping, Sequence
from contextlib import ExitStack, contextmanager, nullcontext
from dataclasses import replace
from functools import partial
from typing import Any

import torch
from torch import Tensor, nn

from headloom.errors import InputError
from headloom.formats.files import JsonMapping
from headloom.formats.trace import TraceData
from headloom.mechanism.graph import AttentionGraph, Keep
from headloom.mechanism.module_paths import named_modules
from headloom.mechanism.received import LastQueries, last_queries
from headloom.mechanism.watching import layers_of
from headloom.tracing.arguments import Arguments, Inputs
from headloom.tracing.description import describe
from headloom.tracing.inputs import check_loaded, explained
from headloom.tracing.model_state import as_written, evaluation_mode, recording_alone
from headloom.tracing.noticing import AttentionNotice, noticing, untraced
from headloom.tracing.options import TraceOptions, Verify
from headloom.tracing.recording.comparison import Comparison
from headloom.tracing.recording.layer_call import LayerCall, RecordedCall
from headloom.tracing.recording.layers import LayerMaker
from headloom.tracing.recording.module_sequences import ModuleSequences, samples_of
from headloom.tracing.recording.recorder import CallRecorder
from headloom.tracing.recording.sequences import check_can_be_saved
from headloom.tracing.sources.geometric import unknown_layers
from headloom.tracing.sources.graphs import reads_a_graph
from headloom.tracing.sources.shared_switch import SharedSwitch
from headloom.tracing.sources.source import Receive, Receivers, recorded
from headloom.tracing.sources.torch_functions import AttentionCalls
from headloom.tracing.sources.transformers import NothingRecordedError, is_transformers_model
from headloom.tracing.verification import UntouchedRun, run_untouched

__all__ = [
    "ModuleRun",
    "around_of",
    "as_recorded",
    "attention_calls",
    "check_visible",
    "named_arguments",
    "nothing_seen",
    "trace_module",
    "traced_calls",
    "untouched_module",
]


@contextmanager
def attention_calls(
    model: nn.Module,
    keep: Keep,
    compute: Receive,
    take: Callable[[LayerCall, AttentionGraph], None],
) -> Iterator[tuple[AttentionNotice, AttentionCalls]]:
    """Send every attention call of a module to a recorder, while the block runs.

    Args: keep: the edges of each query. compute, take: see `Receivers`.
    Yields: what notices the attention that is not recorded, and what records.
    """
    with ExitStack() as stack:
        stack.enter_context(as_written())
        notice = stack.enter_context(noticing(model, told=True))
        receivers = Receivers(notice.unnoticed(compute), notice.unnoticed(take))
        stack.enter_context(recorded(model, keep, receivers))
        observed = {path or type(model).__name__ for path, _ in layers_of(model)}
        calls = AttentionCalls(notice, receivers, keep, observed)
        for path, layer in unknown_layers(model).items():
            refuse = partial(_refuse, calls, path or type(layer).__name__)
            stack.callback(layer.register_forward_hook(refuse).remove)
        stack.enter_context(calls)
        yield notice, calls


def _refuse(calls: AttentionCalls, path: str, *_: object) -> None:
    """A layer of PyTorch Geometric ran that is not known."""
    calls.refused[path] = (
        "it takes a softmax over edges, and PyTorch Geometric gives its weights to nobody; those "
        "of GATConv, GATv2Conv and TransformerConv are taken"
    )


class ModuleRun:
    """One call of a module, recorded: from its attention calls to traces.

    Args:
        model: any module. inputs: what it is given, by name.
        keep, layers: as for `headloom.trace`.
        untouched: what the run is held against; None: nothing.
        received: what is asked of keys, as for `headloom.trace`.
        strict: whether a call that differs from its layer's own attention is an error.
    """

    def __init__(
        self,
        model: nn.Module,
        inputs: Inputs,
        keep: Keep,
        layers: Sequence[int | str] | None,
        untouched: UntouchedRun | None = None,
        received: bool | LastQueries = False,
        strict: bool = True,
    ) -> None:
        self._received = last_queries(received, "trace")
        self._model, self._inputs = model, inputs
        self._calls: list[RecordedCall] = []
        receive: Callable[[RecordedCall], None] = self._calls.append
        if untouched is not None:
            receive = untouched.comparing(receive)
        self.recorder = CallRecorder(receive, keep, layers, strict=strict, received=received)

    def traces(
        self,
        notice: AttentionNotice,
        refused: dict[str, str],
        tokenizer: Any,
        queries_keys: bool,
        verification: JsonMapping | None,
    ) -> list[TraceData]:
        """The trace of each input; none where no attention was recorded."""
        samples = samples_of(self._inputs, self._calls)
        sequences = ModuleSequences(self._model, self._inputs, samples, self._calls, tokenizer)
        made = LayerMaker(sequences, samples, queries_keys, self._received)
        for call in self._calls:
            made(call)
        made.refused.update(refused)
        recorder = self.recorder
        made.finish(
            untraced(self._model, notice, recorder.paths, made.refused, left_out=recorder.left_out)
        )
        return made.traces(describe(self._model), verification) if self._calls else []


def trace_module(
    model: nn.Module,
    inputs: Inputs | Tensor | Sequence[Any] | str,
    options: TraceOptions,
    generate: int | Inputs | None = None,
) -> TraceData | list[TraceData]:
    """Trace a module of torch: see `headloom.trace`."""
    name = type(model).__name__
    if generate is not None:
        raise InputError(
            f"trace: generate= is for models of Transformers and of headloom; {name} is neither. "
            + (around_of(model) or "Run what writes the text in a block of headloom.watch(model).")
        )
    check_visible(model, "trace")
    arguments = module_arguments(model, inputs)
    for argument, value in arguments.items():
        if isinstance(value, Tensor) and value.is_nested:
            raise InputError(
                f"trace: {argument} is a nested tensor, whose rows no graph has. Pad it, as by "
                "torch.nested.to_padded_tensor, and give a mask of the padding."
            )
    with recording_alone(model, "trace"):
        traces = _traces(model, arguments, options)
    check_can_be_saved(options.save, len(traces))
    return options.result(traces)


def traced_calls(
    model: nn.Module, arguments: Arguments, options: TraceOptions, described: JsonMapping
) -> TraceData | list[TraceData] | None:
    """Trace a model of Transformers by its calls of torch's functions; None: it calls none.

    Takes what `headloom.tracing.huggingface.trace_huggingface` takes; the model is recorded alone.
    """
    try:
        traces = [replace(trace, model=described) for trace in _traces(model, arguments, options)]
    except NothingRecordedError:
        return None
    check_can_be_saved(options.save, len(traces))
    return options.result(traces)


def _traces(model: nn.Module, arguments: Arguments, options: TraceOptions) -> list[TraceData]:
    """The trace of each input of a module that reads them once."""
    with explained(model, arguments):
        untouched = untouched_module(model, arguments, options.verify)
        run = ModuleRun(
            model, arguments, options.keep, options.layers, untouched, options.received,
            strict=options.verify is not False,
        )  # fmt: skip
        again = as_recorded(model, options.keep)
        with (
            untouched.verifying(again) if untouched else nullcontext(),
            evaluation_mode(model), torch.no_grad(),
            attention_calls(
                model, options.keep, run.recorder, run.recorder.take
            ) as (notice, calls),
        ):  # fmt: skip
            model(**arguments)
        if not run.recorder.paths:
            raise NothingRecordedError(f"trace: {nothing_seen(model, notice, calls)}")
        run.recorder.check()
        report = None if untouched is None else untouched.report()
        return run.traces(notice, calls.refused, options.tokenizer, options.queries_keys, report)


def nothing_seen(model: nn.Module, notice: AttentionNotice, calls: AttentionCalls) -> str:
    """Why a module that ran has no attention in a trace, and what to do."""
    name = type(model).__name__
    if calls.refused:
        path, reason = next(iter(calls.refused.items()))
        return f"{name}: the attention of {path} cannot be recorded: {reason}."
    if notice.computed:
        path, kind = next(iter(notice.computed.items()))
        verb = "compute" if len(notice.computed) > 1 else "computes"
        more = f" and {len(notice.computed) - 1} more" if len(notice.computed) > 1 else ""
        return (
            f"{name}: {path or 'it'} ({kind}){more} {verb} its softmax by hand, which is not "
            "seen. Let it call torch's scaled_dot_product_attention, or headloom.attention; many "
            "libraries have an option for that (flash, fused, sdpa). Weights that you have are "
            "traced by headloom.from_weights."
        )
    named = ", ".join(f"{path or 'it'} ({kind})" for path, kind in [*notice.named.items()][:3])
    said = f"; its {named} ran, and called none of them" if named else ""
    return (
        f"{name} called no attention function: torch's scaled_dot_product_attention, "
        f"nn.MultiheadAttention, flex_attention, or headloom.attention{said}."
    )


def check_visible(model: nn.Module, operation: str) -> None:
    """Raise an InputError for code that runs past every watch, and for a model without numbers."""
    check_loaded(model, operation)
    for path, module in named_modules(model):
        if isinstance(module, torch.jit.ScriptModule):
            raise InputError(
                f"{operation}: {path or 'the model'} is compiled by torch.jit, and runs past every "
                f"watch. Give {type(model).__name__} as it was before torch.jit.script or trace."
            )


def module_arguments(model: nn.Module, inputs: Any) -> Arguments:
    """The inputs of a module by the names of its arguments, where the module is.

    Args: inputs: a tensor (the first argument), several in a tuple or list, or a mapping.

    Raises: InputError: they are something else, or do not fit the arguments.
    """
    name = type(model).__name__
    if isinstance(inputs, Mapping):
        return _on_device_of(model, inputs)
    if isinstance(inputs, str) or not isinstance(inputs, Tensor | tuple | list):
        raise InputError(
            f"trace: the inputs are {type(inputs).__name__}; {name} reads tensors: give one, a "
            "tuple of them, or a dict with one for each argument."
        )
    given = (inputs,) if isinstance(inputs, Tensor) else tuple(inputs)
    try:
        arguments, named = named_arguments(model, given, {})
    except TypeError as error:
        raise InputError(
            f"trace: {name}.forward does not take {len(given)} inputs: {error}. Give a dict with "
            "a tensor for each argument."
        ) from None
    if not named:
        raise InputError(
            f"trace: {name}.forward takes inputs without a name. "
            + (
                around_of(model)
                or "Wrap it in a module whose forward names them, or run it in a block of "
                "headloom.watch(model)."
            )
        )
    return _on_device_of(model, arguments)


def around_of(model: nn.Module) -> str | None:
    """What to give instead of a module around a model of Transformers; None: it is around none."""
    for path, module in named_modules(model):
        if is_transformers_model(module):
            return (
                f"It is around a {type(module).__name__}: call it in a block of "
                f"headloom.watch(model.{path})."
            )
    return None


def _on_device_of(model: nn.Module, inputs: Inputs) -> Arguments:
    device = next((parameter.device for parameter in model.parameters()), torch.device("cpu"))
    return {
        str(name): value.to(device) if isinstance(value, Tensor) else value
        for name, value in inputs.items()
    }


def named_arguments(
    model: nn.Module, given: tuple[Any, ...], keywords: Inputs
) -> tuple[Arguments, bool]:
    """What a module was given by the names of its arguments, and whether all have one.

    Raises: TypeError: it does not take them.
    """
    signature = inspect.signature(model.forward)
    named = True
    arguments: Arguments = {}
    for name, value in signature.bind(*given, **keywords).arguments.items():
        kind = signature.parameters[name].kind
        if kind is inspect.Parameter.VAR_KEYWORD:
            arguments.update(value)
        elif kind is inspect.Parameter.VAR_POSITIONAL:
            arguments.update((f"input {number}", part) for number, part in enumerate(value))
        else:
            arguments[name] = value
        without = (inspect.Parameter.VAR_POSITIONAL, inspect.Parameter.POSITIONAL_ONLY)
        named = named and kind not in without
    return arguments, named


def untouched_module(model: nn.Module, inputs: Inputs, verify: Verify) -> UntouchedRun | None:
    """Let a module read the beginning of its inputs unwatched; returns as `run_untouched`.

    Without torch's fast paths, which answer padding in another way and which no watched module
    takes.
    """
    over_edges = reads_a_graph(model)

    def cut(whole: Inputs, tokens: int | None) -> tuple[Arguments, int]:
        part: Arguments = {}
        lengths = [0]
        if over_edges:  # whole numbers are edges, of which half would be another graph
            return dict(whole), 0
        for name, value in whole.items():
            part[name] = value
            if isinstance(value, Tensor) and value.ndim == 2 and not value.is_floating_point():
                part[name] = value if tokens is None else value[:, :tokens]
                lengths.append(part[name].shape[1])
        return part, max(lengths)

    with as_written(), fast_paths_off.on():
        return run_untouched(model, inputs, verify, {}, cut)


def as_recorded(model: nn.Module, keep: Keep) -> Callable[[Inputs, Comparison], None]:
    """What runs a module as it is traced, for `verify_prefix`."""

    def traced(part: Inputs, comparison: Comparison) -> None:
        recorder = CallRecorder(comparison.edges, keep, None, lambda: False)
        with attention_calls(model, keep, recorder, recorder.take):
            model(**part)

    return traced


@contextmanager
def _no_fast_paths() -> Iterator[None]:
    before = torch.backends.mha.get_fastpath_enabled()
    torch.backends.mha.set_fastpath_enabled(False)
    try:
        yield
    finally:
        torch.backends.mha.set_fastpath_enabled(before)


#: Off: torch's fast paths of its encoder layers, which call no attention function.
fast_paths_off = SharedSwitch(_no_fast_paths)
