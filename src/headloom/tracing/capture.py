"""`trace`: run a model once and record the attention graph of every layer."""

from __future__ import annotations

from collections.abc import Callable, Sequence
from functools import partial
from threading import RLock
from typing import Any

import torch
from torch import Tensor, nn

from headloom.errors import InputError
from headloom.formats.files import JsonMapping, JsonObject
from headloom.formats.trace import TraceData
from headloom.mechanism.graph import All, Keep
from headloom.mechanism.shapes import whole_number
from headloom.tracing.arguments import Arguments, Inputs, explained
from headloom.tracing.given_sequences import GivenSequences
from headloom.tracing.huggingface import TransformersReader, reader_of
from headloom.tracing.model_state import describe, evaluation_mode
from headloom.tracing.options import TraceOptions
from headloom.tracing.readers import HeadloomReader, Reader
from headloom.tracing.recording.session import Session
from headloom.tracing.recording.verification import UntracedRun
from headloom.tracing.sources.dense_weights import run_dense
from headloom.tracing.sources.functions import Functions, recorded
from headloom.tracing.sources.transformers import NothingRecordedError
from headloom.tracing.watch import Watched

#: Traces of several threads take turns: a model that runs in one must not be recorded by another.
_TURN = RLock()
#: Called for each layer done, with its path, its number and the expected total (None: unknown).
Progress = Callable[[str, int, int | None], None]


def trace_with(
    model: nn.Module, inputs: Inputs | Tensor | str, options: TraceOptions,
    generate: int | Inputs | None = None, *, verification: JsonMapping | None = None,
    about: JsonMapping | None = None, progress: Progress = lambda path, number, expected: None,
) -> TraceData | list[TraceData]:  # fmt: skip
    """Trace a model, as `trace`, with checked options.

    Args:
        model: see `trace`, as for inputs and generate.
        inputs: of the model.
        options: of the trace.
        generate: number of tokens, or options.
        verification: result of an earlier verification, for the trace; None: verify here.
        about: description of the model, beside name, class and size.
        progress: called for each layer done.
    """
    reader = reader_of(model, "trace")
    arguments = reader.arguments(inputs, options.tokenizer, generate is not None)
    about = {**describe(reader.model), **(about or {})}
    with _TURN:
        if generate is None:
            traces = _one_pass(reader, arguments, options, about, verification, progress)
        elif isinstance(reader, TransformersReader):
            traces = _generation(
                reader, arguments, generate, options, about, verification, progress
            )
        else:
            traces = _written(reader, arguments, generate, options, about, verification)
    return traces[0] if len(traces) == 1 else traces


def _one_pass(
    reader: Reader, arguments: Arguments, options: TraceOptions, about: JsonMapping,
    verification: JsonMapping | None, progress: Progress,
) -> list[TraceData]:  # fmt: skip
    """Trace one pass over the inputs, layer by layer if positions have names before the run."""
    model, untraced = reader.model, None
    with Session(options) as session, explained(reader.name):
        if verification is None:
            untraced = UntracedRun.of(model, arguments, options.verify, reader.prefix)
        expected = reader.expected if isinstance(reader, TransformersReader) else None
        session.progress = partial(_tell, progress, expected)
        names = reader.names(arguments, options.tokenizer, None)
        if names is not None:
            session.begin(*names, about)
        output, functions, dense = _run(reader, arguments, session, options.keep)
        if untraced is not None:
            again = partial(_run_again, reader, options.keep)
            verification = untraced.verified(output, session.coarsest, again)
        if not session.paths:
            raise NothingRecordedError(f"trace: {reader.nothing(functions)}")
        if names is None:
            names = reader.names(arguments, options.tokenizer, session.calls)
            assert names is not None
            session.begin(*names, about)
        not_traced = functions.not_traced(
            session.paths, session.refused(), session.left_out, returned=dense
        )
        return session.end(not_traced, verification)


def _run(
    reader: Reader, arguments: Arguments, session: Session, keep: Keep
) -> tuple[object, Functions, bool]:
    """Run a model once; return its output, its functions, and whether it returned weights."""
    model = reader.model
    with (
        evaluation_mode(model), torch.no_grad(),
        recorded(model, keep, session, session.take) as functions,
    ):  # fmt: skip
        output: object = model(**arguments)
        ran = bool(functions.named or functions.computed)
        dense = not session.paths and ran and isinstance(reader, TransformersReader)
        if dense:
            functions.clear()
            output = run_dense(model, arguments, functions.compute)
    return output, functions, dense


def _run_again(reader: Reader, keep: Keep, arguments: Arguments) -> tuple[object, float]:
    """Run a model with tracing; return its output, and the coarsest tolerance of a layer."""
    session = Session(TraceOptions(keep=keep, verify=False, sampled=False))
    return _run(reader, arguments, session, keep)[0], session.coarsest


def _tell(progress: Progress, expected: int | None, path: str, number: int) -> None:
    """Report a layer as done, without the total once that is exceeded."""
    progress(path, number, expected if expected is None or number < expected else None)


def verify(
    model: nn.Module, inputs: Inputs | Tensor | str, options: TraceOptions, *,
    generates: bool = False,
) -> JsonObject | None:  # fmt: skip
    """Check on a prefix of the inputs that tracing leaves the output of a model unchanged.

    Args: generates: whether the inputs are a prompt; of an encoder-decoder, the source alone.
    Returns: the result for the trace; None: verification is off.
    Raises: VerificationError: outputs differ by more than rounding explains.
    """
    reader = reader_of(model, "trace")
    return _verified(reader, reader.arguments(inputs, options.tokenizer, generates), options)


def _verified(reader: Reader, arguments: Arguments, options: TraceOptions) -> JsonObject | None:
    with explained(reader.name):
        if isinstance(reader, TransformersReader):
            arguments = reader.as_prompt(arguments)
        untraced = UntracedRun.of(reader.model, arguments, options.verify, reader.prefix)
        if untraced is None:
            return None
        return untraced.verified_again(partial(_run_again, reader, options.keep))


def _generation(
    reader: TransformersReader, arguments: Arguments, generate: int | Inputs, options: TraceOptions,
    about: JsonMapping, verification: JsonMapping | None, progress: Progress,
) -> list[TraceData]:  # fmt: skip
    """Trace a generation by a model of Transformers."""
    model: Any = reader.model
    generation = reader.generation(arguments, generate)
    if verification is None:
        verification = _verified(reader, arguments, options)
    watched = Watched(reader, options, about, {**arguments, **generation})
    watched.verification = verification
    watched.progress = partial(_tell, progress, generation["max_new_tokens"])
    with (
        evaluation_mode(model), torch.no_grad(), watched.watching(),
        explained(reader.name, "generate"),
    ):  # fmt: skip
        model.generate(**{**arguments, **generation})
    return watched.traces


def _written(
    reader: Reader, arguments: Arguments, generate: int | Inputs, options: TraceOptions,
    about: JsonMapping, verification: JsonMapping | None,
) -> list[TraceData]:  # fmt: skip
    """Trace a generation by a language model of headloom."""
    assert isinstance(reader, HeadloomReader)  # others do not generate
    model, tokens = reader.model, whole_number("trace", "generate", generate, 1)  # type: ignore[arg-type]
    if verification is None:
        verification = _verified(reader, arguments, options)
    with (
        Session(options, joins=True) as session, explained(reader.name), evaluation_mode(model),
        torch.no_grad(), recorded(model, options.keep, session, session.take) as functions,
    ):  # fmt: skip
        arguments, prompt = reader.write(arguments, tokens, session.new_pass)
        session.begin(*reader.names(arguments, options.tokenizer, None, prompt), about)
        session.make_joined()
        not_traced = functions.not_traced(session.paths, session.refused(), session.left_out)
        return session.end(not_traced, verification)


def trace_nodes(model: nn.Module, inputs: Inputs, names: Sequence[str]) -> TraceData:
    """Run a model of graph layers once and record the attention of every layer over the nodes.

    The nodes are the positions of the trace. Queries and keys are not kept, as a score of graph
    attention is more than their product: a layer has no `matrix`, but its graph holds every edge.

    Args: model: left unchanged. inputs: its arguments by name. names: of the nodes.
    Raises: InputError: the wrong number of names, or no graph layers.
    """
    options = TraceOptions(keep=All(), verify=False)
    with (
        Session(options) as session, evaluation_mode(model), torch.no_grad(),
        recorded(model, options.keep, session, session.take),
    ):  # fmt: skip
        session.begin(GivenSequences(list(names), None, 1, pair=False), 1, describe(model))
        model(**inputs)
        if not session.paths:
            raise InputError(
                f"trace_nodes: {type(model).__name__} has no graph layers of headloom "
                "(headloom.GATConv, headloom.GATv2Conv); only these can be traced."
            )
        (trace,) = session.end([])
        return trace
