"""`trace`: run a model once and catch the attention graph of every layer."""

from __future__ import annotations

import inspect
from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from fnmatch import fnmatchcase
from pathlib import Path
from typing import Any

import torch
from torch import Tensor, nn

from weft.errors import InputError
from weft.formats.trace import Held, Trace, TraceLayer
from weft.mechanism.graph import All, AttentionGraph, Keep, Top
from weft.mechanism.multihead import MultiHeadAttention
from weft.mechanism.observe import Observation, Recorder, layers_of, watching
from weft.tracing.at_rest import at_rest
from weft.tracing.graphs import cut
from weft.tracing.growing import joined_calls
from weft.tracing.interface import is_transformers_model
from weft.tracing.names import token_names
from weft.tracing.sequences import on_device_of
from weft.tracing.terms import cut_terms, ranges_of

__all__ = ["trace"]

#: The sequences that the queries and the keys of a layer come from, of a model that reads two.
_TWO = {
    "encoder": ("source", "source"),
    "decoder": ("target", "target"),
    "cross": ("target", "source"),
}


def trace(
    model: nn.Module,
    inputs: Mapping[str, Any] | Tensor | str,
    *,
    tokenizer: Any = None,
    keep: Keep = Top(32),  # noqa: B008 - frozen
    queries_keys: bool = True,
    layers: Sequence[int | str] | None = None,
    save: Path | str | None = None,
    dtype: torch.dtype | None = None,
    overwrite: bool = False,
    generate: int | Mapping[str, Any] | None = None,
) -> Trace | list[Trace]:
    """Run a model once and catch the attention graph of every layer.

    The model runs as in evaluation, without gradients, and is left as it was. Padding (the id
    ``model.padding``; in a model of Transformers what its attention mask hides) at either end of
    a sequence is cut off its graphs.

    Args:
        model: made of weft's attention layers; or any model of Hugging Face's Transformers that
            uses its attention interface, unmodified.
        inputs: token ids, (length,) or (batch, length): a tensor (the model's first argument), or
            a tensor for each argument: {"source": ids, "target": ids}. For a model of
            Transformers: what its tokenizer or processor gives, or a text.
        tokenizer: who names the ids: a `tokenizers.Tokenizer`, a tokenizer of Transformers or a
            weft vocabulary; or one for each sequence, {"source": ..., "target": ...}. None: the
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

    Returns: a Trace; for a batch of several inputs a list with a Trace for each.

    Raises:
        InputError: the model has no attention layers of weft and is none of Transformers' models
            that can be traced, or the inputs do not fit it.
        DataError: the folder exists, or cannot be written.
    """
    if is_transformers_model(model):
        from weft.tracing.huggingface import trace_huggingface

        return trace_huggingface(
            model,
            inputs,
            tokenizer=tokenizer,
            keep=keep,
            queries_keys=queries_keys,
            layers=layers,
            save=save,
            dtype=dtype,
            overwrite=overwrite,
            generate=generate,
        )
    if isinstance(inputs, str):
        raise InputError(
            "trace: the inputs are str; a model of weft reads token ids. Encode the text first."
        )
    given = _as_inputs(model, inputs)
    sequences = {name: ids for name, ids in given.items() if _is_sequence(ids)}
    if not layers_of(model):
        raise InputError(
            f"trace: {type(model).__name__} has no attention layers of weft "
            "(weft.mechanism.multihead.MultiHeadAttention), and is no model of Transformers. "
            "Only these can be traced."
        )
    if not sequences:
        raise InputError(
            "trace: the inputs hold no token ids; expected integers of shape (length,) or "
            "(batch, length)."
        )
    batch = {len(ids) for ids in sequences.values()}
    if len(batch) > 1:
        sizes = ", ".join(f"{name}: {len(ids)}" for name, ids in sequences.items())
        raise InputError(f"trace: the inputs are batches of different sizes ({sizes}).")
    (samples,) = batch

    if save is not None and samples > 1:
        raise InputError(
            f"trace: a batch of {samples} inputs cannot be saved as one trace. Trace one after "
            "the other, or leave save= out and save each trace."
        )
    longest = max(ids.shape[1] for ids in sequences.values())
    whole = longest + (generate if isinstance(generate, int) else 0)
    recorder = Recorder(model, Top(whole) if isinstance(keep, All) else keep)
    with at_rest(model), torch.no_grad(), watching(model, recorder):
        if generate is None:
            model(**given)
            calls = recorder.calls
        else:
            prompt = longest
            sequences = _generated(model, sequences, generate)
            calls = joined_calls(recorder.calls)

    padding = getattr(model, "padding", None)
    description = _describe(model)
    traces = []
    for sample in range(samples):
        spans = {name: _span(ids[sample], padding) for name, ids in sequences.items()}
        names = {
            name: token_names(ids[sample, spans[name]].tolist(), _namer(tokenizer, name))
            for name, ids in sequences.items()
        }
        taken = {name: _Sequence(spans[name], names[name], ids.shape[1])
                 for name, ids in sequences.items()}  # fmt: skip
        caught = _chosen(_layers(calls, sample, taken, queries_keys), layers)
        used = {layer.queries_from for layer in caught} | {layer.keys_from for layer in caught}
        # A model that reads one sequence calls it "tokens", whatever its argument is called.
        shown = {"tokens": next(iter(names.values()))} if used == {"tokens"} else names
        known = {}
        if generate is not None:
            (name,) = shown
            first = next(iter(spans.values())).start
            known[name] = {"generated": [first + i >= prompt for i in range(len(shown[name]))]}
        traces.append(Trace(shown, caught, description, known))
    if save is not None:
        traces[0].save(save, dtype=dtype, overwrite=overwrite)
        return Trace.open(save)
    return traces[0] if samples == 1 else traces


def _generated(
    model: Any, sequences: Mapping[str, Tensor], generate: int | Mapping[str, Any]
) -> dict[str, Tensor]:
    """Let a language model write the likeliest tokens; returns the ids that it has read."""
    if not isinstance(generate, int) or generate < 1:
        raise InputError(f"trace: generate={generate!r}; expected a number of tokens, 1 or more.")
    if len(sequences) != 1 or not hasattr(model, "start") or not hasattr(model, "step"):
        raise InputError(
            f"trace: {type(model).__name__} does not continue a text; generate= is for language "
            "models."
        )
    ((name, ids),) = sequences.items()
    # The first of them reads the prompt.
    state, last = model.start(), ids
    for _ in range(generate):
        last = model.step(last, state)[:, -1].argmax(-1, keepdim=True)
        ids = torch.cat((ids, last), 1)
    model.step(last, state)
    return {name: ids}


@dataclass(frozen=True)
class _Sequence:
    """The part of an input that is not padding, its tokens, and the length of the whole input."""

    span: slice
    tokens: list[str]
    length: int


def _as_inputs(model: nn.Module, inputs: Mapping[str, Tensor] | Tensor) -> dict[str, Any]:
    """The inputs by the names of the model's arguments, ids with a batch dimension."""
    if isinstance(inputs, Tensor):
        first = next(iter(inspect.signature(model.forward).parameters), None)
        if first is None:
            raise InputError(f"trace: {type(model).__name__}.forward takes no arguments.")
        inputs = {first: inputs}
    if not isinstance(inputs, Mapping):
        raise InputError(
            f"trace: the inputs are {type(inputs).__name__}; expected a tensor of token ids, or a "
            "dict with a tensor for each argument of the model."
        )
    return on_device_of(model, inputs)


def _is_sequence(value: Any) -> bool:
    integers = (torch.int64, torch.int32, torch.int16, torch.int8, torch.uint8)
    return isinstance(value, Tensor) and value.ndim == 2 and value.dtype in integers


def _namer(tokenizer: Any, sequence: str) -> Any:
    return tokenizer.get(sequence) if isinstance(tokenizer, Mapping) else tokenizer


def _span(ids: Tensor, padding: int | None) -> slice:
    """From the first to the last position that is not padding."""
    if padding is None:
        return slice(0, len(ids))
    (real,) = (ids != padding).nonzero(as_tuple=True)
    return slice(int(real[0]), int(real[-1]) + 1) if len(real) else slice(0, 0)


def _describe(model: nn.Module) -> dict[str, Any]:
    """What a trace says of its model."""
    kind = type(model)
    return {
        "name": kind.__name__,
        "class": f"{kind.__module__}.{kind.__qualname__}",
        "parameters": sum(parameter.numel() for parameter in model.parameters()),
    }


def _layers(
    calls: Sequence[tuple[str, MultiHeadAttention, Observation]],
    sample: int,
    sequences: Mapping[str, _Sequence],
    queries_keys: bool,
) -> tuple[TraceLayer, ...]:
    layers = []
    counts: dict[str, int] = {}
    for name, layer, seen in calls:
        assert isinstance(seen.caught, AttentionGraph)
        queries_from, keys_from = _ends(name, layer.kind, sequences)
        of_queries, of_keys = (
            sequences.get(end) or next(iter(sequences.values()))
            for end in (queries_from, keys_from)
        )
        caught = seen.caught[sample]
        if caught.shape[1:] != (of_queries.length, of_keys.length):
            raise InputError(
                f"trace: layer {name} ({layer.kind}) has {caught.shape[1]} queries and "
                f"{caught.shape[2]} keys, its inputs {of_queries.length} and {of_keys.length} "
                "tokens. trace names positions by input tokens: give the inputs as the model "
                "reads them."
            )
        graph = cut(caught, of_queries.span, of_keys.span).cpu()
        of_sample = seen.queries[sample, :, of_queries.span], seen.keys[sample, :, of_keys.span]
        terms = cut_terms(
            ranges_of(seen.mask, caught.shape[1], caught.shape[2], sample),
            seen.relative,
            None,
            None,
            sample=sample,
            rows=of_queries.span,
            columns=of_keys.span,
            limit=sum(tensor.numel() for tensor in of_sample),
        )
        norms = seen.values[sample, :, of_keys.span].float().norm(dim=-1).cpu()
        tensors = None
        if queries_keys:
            tensors = (of_sample[0].cpu().clone(), of_sample[1].cpu().clone())
        index = counts.get(layer.kind, 0)
        counts[layer.kind] = index + 1
        heads, queries, keys = graph.shape
        layers.append(
            TraceLayer(
                name=name,
                kind=layer.kind,
                index=index,
                shape=(heads, queries, keys),
                queries_from=queries_from,
                keys_from=keys_from,
                query_tokens=of_queries.tokens,
                key_tokens=of_keys.tokens,
                scale=seen.scale,
                positions=layer.relative,
                mask=terms.rule,
                data=Held(graph, tensors, terms, norms),
            )
        )
    return tuple(layers)


def _chosen(
    layers: tuple[TraceLayer, ...], wanted: Sequence[int | str] | None
) -> tuple[TraceLayer, ...]:
    """The layers asked for by number or path."""
    if wanted is None:
        return layers

    def matches(number: int, name: str, one: int | str) -> bool:
        return one == number if isinstance(one, int) else fnmatchcase(name, one)

    for one in wanted:
        if not any(matches(number, layer.name, one) for number, layer in enumerate(layers)):
            raise InputError(
                f"trace: no layer {one!r}; the model has layers 0 to {len(layers) - 1}: "
                f"{layers[0].name} ... {layers[-1].name}."
            )
    return tuple(
        layer
        for number, layer in enumerate(layers)
        if any(matches(number, layer.name, one) for one in wanted)
    )


def _ends(name: str, kind: str, sequences: Mapping[str, _Sequence]) -> tuple[str, str]:
    """The sequences that a layer's queries and keys come from."""
    if "source" in sequences and "target" in sequences:
        return _TWO[kind]
    if kind == "cross":
        raise InputError(
            f"trace: layer {name} looks from a target at a source; the inputs are "
            f"{', '.join(sequences)}. Give both, as {{'source': ids, 'target': ids}}."
        )
    return "tokens", "tokens"
