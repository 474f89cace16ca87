"""Tracing unmodified models of Hugging Face, through the attention interface of Transformers."""

from __future__ import annotations

import inspect
from collections.abc import Callable, Iterator, Mapping
from contextlib import ExitStack, contextmanager, nullcontext
from dataclasses import replace
from functools import partial
from typing import Any

import torch
from torch import Tensor, nn

from headloom.errors import InputError, VerificationError
from headloom.formats.files import JsonMapping, JsonObject
from headloom.formats.trace import TraceData
from headloom.formats.trace_writer import writing_trace
from headloom.mechanism.graph import Keep
from headloom.mechanism.shapes import in_words
from headloom.tracing.arguments import Arguments, Inputs
from headloom.tracing.description import describe
from headloom.tracing.first_pass import FirstPass
from headloom.tracing.inputs import batch_of, check_readable, explained, token_limit
from headloom.tracing.model_state import evaluation_mode, recording_alone
from headloom.tracing.modules import check_visible, traced_calls
from headloom.tracing.noticing import noticing, untraced
from headloom.tracing.options import TraceOptions, Verify, checked_tokens, whole_number
from headloom.tracing.recording.layer_call import RecordedCall
from headloom.tracing.recording.layers import LayerMaker
from headloom.tracing.recording.recorder import CallRecorder
from headloom.tracing.recording.sequences import Sequences, check_can_be_saved, on_device_of
from headloom.tracing.sources.dense_weights import run_dense
from headloom.tracing.sources.transformers import (
    NothingRecordedError,
    check_recorded,
    check_unrouted,
    routed,
    routes,
)
from headloom.tracing.verification import (
    as_traced,
    untouched_transformer,
    verify_transformer,
)
from headloom.tracing.watch import WatchedTransformer, watching

__all__ = ["trace_huggingface", "verify_inputs"]


def trace_huggingface(
    model: nn.Module,
    inputs: Inputs | Tensor | str,
    options: TraceOptions,
    generate: int | Inputs | None = None,
    *,
    verification: JsonMapping | None = None,
    description: JsonMapping | None = None,
    progress: Callable[[str, int, int | None], None] | None = None,
) -> TraceData | list[TraceData]:
    """Run a model of Transformers once and catch the attention graph of every layer.

    Takes what `headloom.tracing.capture.trace_as` takes, and:

    Args:
        generate: tokens that the model is to write, greedily, or the options of its `generate`.
            Each token adds its row: see `headloom.watch`.
        verification: what the trace says of it where the model was verified before; None: it is
            verified here.
        description: what the trace says of its model; None: its name, class and size.
        progress: told the path, the number and the expected number of each layer that is done.

    Layers go by the path of their attention module, in the order of the run. The model is held
    against itself without headloom: see `headloom.tracing.verification`. Then each layer is
    verified on a sample of its rows: see `headloom.tracing.recording.row_check.deviation`. A model
    that does not use the attention interface is traced from its dense weights, with a warning; one
    that returns none either, by its calls of torch's attention functions, as any other module.
    """
    check_visible(model, "trace")
    with recording_alone(model, "trace"):
        check_unrouted(model)
        arguments, offsets = _as_inputs(model, inputs, options.tokenizer)
        _check(model, arguments, generate is not None)
        check_can_be_saved(options.save, batch_of(arguments))
        described = dict(description or describe(model))
        if generate is None:
            try:
                return _one_pass(
                    model, arguments, offsets, options, described, verification, progress
                )
            except NothingRecordedError as error:
                # It may call torch's attention function by itself, as any other module.
                made = traced_calls(model, arguments, options, described)
                if made is None:
                    raise InputError(str(error)) from error
                return made
        verified: JsonMapping | FirstPass | None = verification
        if verified is None:
            verified = FirstPass.of(model, arguments, options.keep, options.verify)
        if verified is None:
            verified = verify_transformer(
                model, arguments, options.keep, options.verify, generates=True
            )
        generation = _generation(model, arguments, generate)
        returned = whole_number(generation.get("num_return_sequences", 1)) or 1
        check_can_be_saved(options.save, batch_of(arguments) * returned)
        watched = WatchedTransformer(model, options, described, offsets)
        watched.expect_one_text(verified)
        if progress is not None:
            watched.progress = partial(_tell, progress, generation["max_new_tokens"])
        with (
            evaluation_mode(model), torch.no_grad(), watching(model, watched),
            explained(model, arguments, "generate"),
        ):  # fmt: skip
            model.generate(**{**arguments, **generation})  # type: ignore[operator]
        # They are saved already, where that was asked for.
        return replace(options, save=None).result(watched.traces)


@contextmanager
def _said_of_dense_weights(model: nn.Module) -> Iterator[None]:
    """Say of a model that was not what it returns weights of, that this may be Transformers'."""
    try:
        yield
    except VerificationError as error:
        if routes(model):
            raise
        raise VerificationError(
            str(error).replace(
                "Please report the model.",
                "Its weights are those that it returns with output_attentions=True, where "
                "Transformers may compute attention in another way than without. Load it with "
                'attn_implementation="eager", which computes both alike.',
            )
        ) from None


def _one_pass(
    model: nn.Module,
    arguments: Arguments,
    offsets: list[list[int]] | None,
    options: TraceOptions,
    described: JsonMapping,
    verification: JsonMapping | None,
    progress: Callable[[str, int, int | None], None] | None,
) -> TraceData | list[TraceData]:
    """Trace one pass over the inputs, layer by layer."""
    untouched = None
    if verification is None:
        untouched = untouched_transformer(model, arguments, options.verify)
    sequences = Sequences(model, arguments, options.tokenizer, offsets)
    maker = LayerMaker(sequences, batch_of(arguments), options.queries_keys, options.received_last)
    receive: Callable[[RecordedCall], None] = maker
    if untouched is not None:
        receive = untouched.comparing(maker)
    recorder = CallRecorder(
        receive, options.keep, options.layers, lambda: options.sampled,
        strict=options.verify is not False, received=options.received,
    )  # fmt: skip
    if progress is not None:
        recorder.progress = partial(_tell, progress, _expected(model))
    with ExitStack() as stack:
        if options.save is not None:
            maker.writer = stack.enter_context(
                writing_trace(
                    options.save, {}, described, dtype=options.dtype, overwrite=options.overwrite
                )
            )
        with (
            _said_of_dense_weights(model),
            untouched.verifying(as_traced(model, options.keep)) if untouched else nullcontext(),
            evaluation_mode(model), torch.no_grad(),
            noticing(model) as notice, explained(model, arguments),
        ):  # fmt: skip
            if routes(model):
                with routed(model, notice.unnoticed(recorder)):
                    model(**arguments)
            dense = not recorder.paths
            if dense:
                notice.clear()
                run_dense(model, arguments, notice.unnoticed(recorder))
        check_recorded(model, recorder.paths, notice.took_attention)
        recorder.check()
        verification = verification if untouched is None else untouched.report()
        if maker.writer is not None:
            maker.writer.verification = verification
        maker.finish(
            untraced(
                model,
                notice,
                recorder.paths,
                maker.refused,
                "returned" if dense else "called",
                recorder.left_out,
            )
        )
    if options.save is not None:
        return TraceData.open(options.save)
    return options.result(maker.traces(described, verification))


def verify_inputs(
    model: nn.Module,
    inputs: Inputs | Tensor | str,
    tokenizer: Any,
    keep: Keep,
    verify: Verify,
    generates: bool = False,
) -> JsonObject | None:
    """As `verify_transformer`, for inputs as `trace_huggingface` takes them."""
    arguments, _ = _as_inputs(model, inputs, tokenizer)
    _check(model, arguments, generates)
    return verify_transformer(model, arguments, keep, verify, generates)


def _expected(model: nn.Module) -> int | None:
    """How many attention layers a model has, where its configuration says so."""
    config: Any = model.config
    if getattr(config, "is_encoder_decoder", False):
        encoder = getattr(config, "encoder_layers", None) or getattr(config, "num_layers", None)
        decoder = getattr(config, "decoder_layers", None)
        decoder = decoder or getattr(config, "num_decoder_layers", None) or encoder
        return encoder + 2 * decoder if encoder and decoder else None
    layers = getattr(config, "num_hidden_layers", None)
    return layers if isinstance(layers, int) else None


def _tell(
    progress: Callable[[str, int, int | None], None], expected: int | None, path: str, number: int
) -> None:
    """Say which layer is done; a total that was too small is no longer said."""
    progress(path, number, expected if expected is None or number < expected else None)


def _generation(model: nn.Module, arguments: Arguments, generate: int | Inputs) -> Arguments:
    """The options of the model's `generate`, so that it reads every token that was asked for.

    Of a beam search, every token but the last.
    """
    if not isinstance(generate, Mapping) and whole_number(generate) is None:
        raise InputError(
            f"trace: generate={in_words(generate)}; expected a number of tokens, or a dict of the "
            "options of the model's generate."
        )
    asked = generate if isinstance(generate, Mapping) else {"max_new_tokens": generate}
    if "max_length" in asked:
        raise InputError(
            "trace: generate with max_length, which counts the prompt too. Give max_new_tokens: "
            "how many tokens the model is to write."
        )
    options = {"do_sample": False, "num_beams": 1, "max_new_tokens": 20, **asked}
    new = checked_tokens(options["max_new_tokens"])
    if hasattr(model, "generate") and not routes(model):
        raise InputError(
            f"trace: {type(model).__name__} does not use the attention interface of Transformers, "
            "so its generation cannot be traced. Leave generate= out, and trace the text that "
            "model.generate wrote."
        )
    if not hasattr(model, "generate"):
        raise InputError(
            f"trace: {type(model).__name__} does not generate. Open the model with its head, as by "
            "AutoModelForCausalLM, or leave generate= out."
        )
    decodes = model.config.is_encoder_decoder  # type: ignore[union-attr]
    name = "decoder_input_ids" if decodes else "input_ids"
    before = arguments[name].shape[1] if name in arguments else 1
    limit = token_limit(model)
    if limit is not None and before + new > limit:
        raise InputError(
            f"trace: {before} tokens and {new} to generate; {type(model).__name__} reads {limit} "
            "at most. Shorten the text, or generate fewer."
        )
    arguments.pop("use_cache", None)
    # One more than asked for: the last token that is written is not read, and has no row. A longer
    # beam search may end with other texts.
    unread = 1 if options["num_beams"] == 1 else 0
    return {**options, "use_cache": True, "max_new_tokens": new + unread}


def _as_inputs(
    model: nn.Module, inputs: Inputs | Tensor | str, tokenizer: Any
) -> tuple[Arguments, list[list[int]] | None]:
    """The arguments of the model, with a batch dimension; and where tokens are in a text."""
    offsets = None
    if isinstance(inputs, str):
        if tokenizer is None:
            raise InputError(
                "trace: the input is a text, and there is no tokenizer. Give tokenizer=, or ids."
            )
        # Offsets are taken out again below.
        fast = bool(getattr(tokenizer, "is_fast", False))
        # Not verbose: a text that is too long is refused below, in one line.
        encoded = dict(
            tokenizer(inputs, return_tensors="pt", return_offsets_mapping=fast, verbose=False)
        )
        inputs = encoded
    if isinstance(inputs, Tensor):
        name = getattr(model, "main_input_name", "input_ids")
        inputs = {name: inputs}
    if isinstance(inputs, Mapping) and "offset_mapping" in inputs:
        inputs = dict(inputs)
        offsets = [list(pair) for pair in inputs.pop("offset_mapping")[0].tolist()]
    if not isinstance(inputs, Mapping):
        raise InputError(
            f"trace: the inputs are {type(inputs).__name__}; expected a text, a tensor of token "
            "ids, or a dict with a tensor for each argument of the model. Of several texts, give "
            'tokenizer(texts, padding=True, return_tensors="pt").'
        )
    arguments = on_device_of(model, inputs)
    takes = inspect.signature(model.forward).parameters
    if "token_type_ids" not in takes:
        arguments.pop("token_type_ids", None)
    if "use_cache" in takes or any(p.kind is p.VAR_KEYWORD for p in takes.values()):
        arguments.setdefault("use_cache", False)
    return arguments, offsets


def _check(model: nn.Module, arguments: Inputs, generates: bool) -> None:
    """Raise an InputError for inputs that the model cannot read."""
    tensors = {name: value for name, value in arguments.items() if isinstance(value, Tensor)}
    if not tensors:
        if "input_ids" in arguments:
            raise InputError(
                f"trace: input_ids is {type(arguments['input_ids']).__name__}; expected a tensor, "
                'as tokenizer(text, return_tensors="pt") gives.'
            )
        raise InputError(
            "trace: the inputs hold no tensor; expected input_ids, pixel_values, input_features."
        )
    check_readable(model, tensors, generates)
    for name in ("input_ids", "decoder_input_ids"):
        ids = tensors.get(name)
        if ids is None:
            continue
        if ids.ndim != 2 or not ids.shape[1]:
            raise InputError(
                f"trace: {name} has the shape {tuple(ids.shape)}; expected (batch, length) with "
                "at least one token."
            )
        limit = token_limit(model)
        if limit is not None and ids.shape[1] > limit:
            raise InputError(
                f"trace: {ids.shape[1]} tokens in {name}; {type(model).__name__} reads {limit} at "
                "most. Shorten the text, or split it (headloom trace --window)."
            )
