"""`trace`: run a model once and catch the attention graph of every layer."""

from __future__ import annotations

from collections.abc import Callable, Mapping, Sequence
from contextlib import nullcontext
from functools import partial
from pathlib import Path
from typing import Any

import torch
from torch import Tensor, nn

from headloom.errors import InputError
from headloom.formats.trace import TraceData
from headloom.mechanism.graph import All, Keep, Top
from headloom.mechanism.received import LastQueries
from headloom.mechanism.watching import layers_of
from headloom.tracing.arguments import Inputs
from headloom.tracing.description import describe
from headloom.tracing.inputs import explained
from headloom.tracing.model_state import evaluation_mode, recording_alone, unwrapped
from headloom.tracing.modules import trace_module
from headloom.tracing.noticing import noticing, untraced
from headloom.tracing.options import TraceOptions, Verify, checked_tokens
from headloom.tracing.recording.layer_call import RecordedCall
from headloom.tracing.recording.layers import LayerMaker
from headloom.tracing.recording.passes import Passes
from headloom.tracing.recording.recorder import CallRecorder
from headloom.tracing.recording.sequences import check_can_be_saved
from headloom.tracing.sources.headloom_models import (
    as_inputs,
    longest_of,
    named_sequences,
    reads_sequences,
    sequences_of,
)
from headloom.tracing.sources.source import Receivers, recorded
from headloom.tracing.sources.transformers import is_transformers_model, without_peft
from headloom.tracing.verification import as_observed, untouched_own, verify_prefix

__all__ = ["trace", "trace_as"]


def trace(
    model: nn.Module,
    inputs: Inputs | Tensor | str,
    *,
    tokenizer: Any = None,
    keep: Keep = Top(32),  # noqa: B008 - frozen
    queries_keys: bool = True,
    layers: Sequence[int | str] | None = None,
    save: Path | str | None = None,
    dtype: torch.dtype | None = None,
    overwrite: bool = False,
    generate: int | Inputs | None = None,
    verify: Verify = None,
    received: bool | LastQueries = False,
) -> TraceData | list[TraceData]:
    """Run a model once and catch the attention graph of every layer.

    The model runs as in evaluation, without gradients, and is left as it was. Padding (the id
    ``model.padding``; in a model of Transformers what its attention mask hides) at either end of
    a sequence is cut off its graphs.

    Args:
        model: any module of torch whose attention is computed by torch's functions
            (scaled_dot_product_attention, nn.MultiheadAttention, flex_attention) or by
            `headloom.attention`; made of headloom's layers, those over graphs too; or any model of
            Hugging Face's Transformers that uses its attention interface. Unmodified.
        inputs: token ids, (length,) or (batch, length), or images, (batch, channels, rows,
            columns): a tensor (the model's first argument), or a tensor for each argument:
            {"source": ids, "target": ids}. Of any other module: whatever it takes, the first
            arguments in a tuple, or all by their names. For a model of Transformers: what its
            tokenizer or processor gives, or a text.
        tokenizer: who names the ids: a `tokenizers.Tokenizer`, a tokenizer of Transformers or a
            headloom vocabulary; or one for each sequence, {"source": ..., "target": ...}. None: the
            name of id 17 is "#17".
        keep: ``Top(k)``, or ``All()`` for every edge.
        queries_keys: whether to keep the queries and keys of each layer too.
        layers: which layers, by their number in the order of the run, or by their path, in which
            ``*`` stands for anything; None: all.
        save: a folder to write the trace to. A model of Transformers is written layer by layer
            while it runs, so that memory holds one layer at most; the trace that is returned is
            read from the folder when it is asked.
        dtype: of saved queries and keys: float32, bfloat16 or float16; None: as they are.
        overwrite: replace a trace that is there, and nothing else.
        generate: how many tokens the model is to write after the inputs, each the likeliest, with
            a cache; each adds its row to one trace. For a model of Transformers also a dict, the
            options of its `generate`. None: it reads and writes nothing.
        verify: how many tokens of the inputs the model reads without headloom too, to see that it
            computes the same with it: a number, or "all"; None or True: 64; False: none. See
            `headloom.tracing.verification`.
        received: True: keep what each key receives too, exactly, as `headloom.attend` has it:
            ``trace.layers[i].graph.received`` and ``received_most``; ``LastQueries(n)``:
            ``received_last`` as well, of the last n queries without padding. None in a layer
            whose queries and keys are not known.

    Returns: a Trace; for a batch of several inputs a list with a Trace for each.

    Raises:
        InputError: the model calls no attention function that can be seen, or the inputs do not
            fit it.
        VerificationError: the model does not compute with headloom what it computes without.
        DataError: the folder exists, or cannot be written.
    """
    options = TraceOptions(
        tokenizer, keep, queries_keys, layers, save, dtype, overwrite, verify, received=received
    )
    return trace_as(model, inputs, options, generate)


def trace_as(
    model: nn.Module,
    inputs: Inputs | Tensor | str,
    options: TraceOptions,
    generate: int | Inputs | None = None,
) -> TraceData | list[TraceData]:
    """As `trace`, whose options are one thing."""
    model = without_peft(unwrapped(model, "trace"))
    if is_transformers_model(model):
        from headloom.tracing.huggingface import trace_huggingface

        return trace_huggingface(model, inputs, options, generate)
    if not reads_sequences(model):
        given = _as_batches(inputs) if layers_of(model) else inputs
        return trace_module(model, given, options, generate)
    if isinstance(inputs, str):
        raise InputError(
            "trace: the inputs are str; a model of headloom reads token ids. Encode the text first."
        )
    return _trace_layers(model, inputs, options, generate)


def _as_batches(inputs: Inputs | Tensor | str) -> Inputs | Tensor | str:
    """Inputs of a model of headloom's layers, which read batches: ids of one text become a batch.

    What comes in a tuple is given as it is.
    """

    def batch(value: Any) -> Any:
        ids = isinstance(value, Tensor) and value.ndim == 1 and not value.is_floating_point()
        return value[None] if ids and value.dtype != torch.bool else value

    if isinstance(inputs, Mapping):
        return {name: batch(value) for name, value in inputs.items()}
    one: Inputs | Tensor | str = batch(inputs)
    return one


def _trace_layers(
    model: nn.Module,
    inputs: Inputs | Tensor,
    options: TraceOptions,
    generate: int | Inputs | None,
) -> TraceData | list[TraceData]:
    """Trace a model of layers that some source knows, as headloom's own."""
    keep = options.keep
    new = 0 if generate is None else checked_tokens(generate)
    arguments = as_inputs(model, inputs)
    ids = sequences_of(arguments)
    samples = len(next(iter(ids.values())))
    check_can_be_saved(options.save, samples)
    longest = longest_of(ids)
    places = Top(longest + new) if isinstance(keep, All) else keep
    calls: list[RecordedCall] = []
    with recording_alone(model, "trace"), explained(model, arguments):
        untouched = untouched_own(model, arguments, options.verify)
        if untouched is not None and generate is not None:
            verify_prefix(untouched, as_observed(model, keep))
        passes = Passes()
        recorder = CallRecorder(
            calls.append if generate is None else passes, keep, options.layers,
            lambda: options.sampled, options.verify is not False, options.received,
            new_keys=None if generate is None else passes.new_keys,
        )  # fmt: skip
        with (
            untouched.verifying(as_observed(model, keep))
            if untouched and generate is None else nullcontext(),
            evaluation_mode(model), torch.no_grad(), noticing(model) as notice,
            recorded(
                model, places,
                Receivers(notice.unnoticed(recorder), notice.unnoticed(recorder.take)),
            ),
        ):  # fmt: skip
            if generate is None:
                model(**arguments)
            else:
                ids = _generated(model, ids, new, partial(_begin, recorder, passes))
                calls = list(passes.joined())
        recorder.check()
    prompt = None if generate is None else longest
    sequences = named_sequences(model, ids, options.tokenizer, prompt)
    made = LayerMaker(sequences, samples, options.queries_keys, options.received_last)
    for call in calls:
        made(call)
    made.finish(
        untraced(
            model, notice, recorder.paths, made.refused, "computed", left_out=recorder.left_out
        )
    )
    verification = None if untouched is None else untouched.report()
    return options.result(made.traces(describe(model), verification))


def _begin(recorder: CallRecorder, passes: Passes, position: int) -> None:
    """A model begins a pass; its cache holds so many positions."""
    recorder.new_pass()
    passes.new_pass(position)


def _generated(
    model: Any, sequences: Mapping[str, Tensor], tokens: int, begin: Callable[[int], None]
) -> dict[str, Tensor]:
    """Let a language model write the likeliest tokens; returns the ids that it has read."""
    if len(sequences) != 1 or not hasattr(model, "start") or not hasattr(model, "step"):
        raise InputError(
            f"trace: {type(model).__name__} does not continue a text; generate= is for language "
            "models."
        )
    ((name, ids),) = sequences.items()
    # The first of them reads the prompt.
    state, last = model.start(), ids
    for _ in range(tokens):
        begin(state.position)
        last = model.step(last, state)[:, -1].argmax(-1, keepdim=True)
        ids = torch.cat((ids, last), 1)
    begin(state.position)
    model.step(last, state)
    return {name: ids}
