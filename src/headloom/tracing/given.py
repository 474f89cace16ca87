"""Traces of queries and keys, or of attention weights, that are there as arrays."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from pathlib import Path
from typing import TypeVar, cast

import torch
from torch import Tensor

from headloom.errors import InputError
from headloom.formats.trace import TraceData
from headloom.mechanism.graph import Keep, Top
from headloom.mechanism.masks import Mask, as_mask, causal
from headloom.mechanism.positions import ALiBi, Relative, Shaw
from headloom.mechanism.shapes import finite_number
from headloom.tracing.given_tokens import GivenTokens, TokensGiven, given_traces
from headloom.tracing.recording.layer_call import LayerCall
from headloom.tracing.recording.score_terms import ranges_of, without_hidden
from headloom.tracing.recording.sequences import kind_of_name
from headloom.tracing.recording.session import Session
from headloom.tracing.sources.tensors import (
    as_tensor,
    check_numbers,
    checked_weights,
    graph_of_weights,
    is_causal,
    layer_tensors,
    weights_call,
)

__all__ = ["KINDS", "from_queries_keys", "from_weights", "mask_is_causal"]

KINDS = ("encoder", "decoder", "cross")

T = TypeVar("T")


def from_queries_keys(
    queries: object,
    keys: object,
    values: object = None,
    *,
    mask: Mask | Tensor | Sequence[Mask | Tensor | None] | None = None,
    scale: float | None = None,
    tokens: TokensGiven | Mapping[str, TokensGiven] | None = None,
    tokenizer: object = None,
    layout: str = "HND",
    relative: Relative | Sequence[Relative | None] | None = None,
    bias: object = None,
    softcap: float | None = None,
    sinks: object = None,
    kind: str | Sequence[str | None] | None = None,
    names: Sequence[str] | None = None,
    model: str | None = None,
    keep: Keep = Top(32),  # noqa: B008 - frozen
    queries_keys: bool = True,
    save: Path | str | None = None,
    dtype: torch.dtype | None = None,
    overwrite: bool = False,
) -> TraceData | list[TraceData]:
    """Make a trace of queries and keys that are there as arrays: NumPy's, torch's, JAX's.

        weights = softmax(scale * queries . keys), as `headloom.attend` computes them

    Args:
        queries: (heads, positions, depth), one layer; (layers, heads, positions, depth); or a list
            with an array for each layer, whose shapes may differ, (heads, positions, depth) or
            with a batch before that. As they enter the scores: turned, where positions are rotary.
        keys: likewise; heads of keys divide those of queries.
        values: likewise, for `value_norms`; None: they are not known.
        mask: who may look at whom, as `headloom.attend` takes it; a list: one for each layer. None:
            everybody at everybody.
        scale: the factor on the scores; None: 1 / sqrt(depth).
        tokens: the texts, or the ids, of the positions; {"source": ..., "target": ...} where one
            sequence looks at another; a list of them for a batch. None: numbers.
        tokenizer: names ids.
        layout: "HND", or "NHD" for (positions, heads, depth), as JAX and vLLM have it.
        relative, bias, sinks: as `headloom.attend` takes them; a list: one for each layer.
        softcap: as `headloom.attend` takes it.
        kind: "encoder", "decoder" or "cross", or a list with one for each layer; None: from names,
            lengths and masks.
        names: of the layers; None: "layers.0", "layers.1", ...
        model: what the trace calls the model.
        keep: the edges kept of each query.
        queries_keys: whether the trace keeps queries and keys, and so the exact `matrix`.
        save, dtype, overwrite: a folder to write, layer by layer, and how: see `headloom.trace`.

    Returns: the trace, or a list of traces where there is a batch of several inputs.

    Raises: InputError: an array that is none, has numbers that are not finite, or does not fit.

    >>> import numpy as np
    >>> random = np.random.default_rng(0)
    >>> queries, keys = random.normal(size=(2, 3, 4, 5, 8))    # 3 layers, 4 heads, 5 positions
    >>> from_queries_keys(queries, keys, tokens="a b c d e".split())
    Trace(3 encoder layers, tokens: 5 tokens)
    """
    if layout not in ("HND", "NHD"):
        raise InputError(f'layout={layout!r}; expected "HND" or "NHD".')
    scale = None if scale is None else finite_number("from_queries_keys", "scale", scale)
    arrays = {"queries": queries, "keys": keys, "values": values}
    stacks = {
        name: _heads_first(name, array, layout)
        for name, array in arrays.items()
        if array is not None
    }
    count = len(stacks["queries"])
    if any(len(stack) != count for stack in stacks.values()):
        counts = ", ".join(f"{len(stack)} layers of {name}" for name, stack in stacks.items())
        raise InputError(f"from_queries_keys: {counts}; expected as many of each.")
    biases: list[object] = _each("bias", bias, count)
    every_sinks: list[object] = _each("sinks", sinks, count)
    relatives: list[Relative | None] = _each("relative", relative, count)
    calls = []
    for number, own_mask in enumerate(_masks(mask, count)):
        rows, columns = stacks["queries"][number], stacks["keys"][number]
        lengths = rows.shape[2], columns.shape[2]
        if own_mask == causal() and lengths[0] != lengths[1]:
            raise InputError(
                f"queries of layer {number}: {lengths[0]} queries and {lengths[1]} keys under a "
                "causal mask. Of queries that are the last of the keys, "
                "headloom.causal(offset=keys - queries); between two sequences, no mask."
            )
        added = None if biases[number] is None else as_tensor("bias", biases[number])
        if added is not None:
            added = added.reshape((1,) * (4 - added.ndim) + tuple(added.shape))
            own_mask, added = without_hidden(own_mask, added, (*rows.shape[:3], lengths[1]))
        places = relatives[number]
        known = "values" in stacks
        own_values = stacks["values"][number] if known else columns.new_zeros(*columns.shape[:3], 1)
        position = "none" if added is None else "bias"
        if places is not None:
            position = {Shaw: "shaw", ALiBi: "alibi"}.get(type(places), "bias")
        own_sinks = every_sinks[number]
        calls.append(
            LayerCall(
                path="",
                kind="",
                queries=rows,
                keys=columns,
                values=own_values,
                scale=rows.shape[3] ** -0.5 if scale is None else scale,
                mask=own_mask,
                bias=added,
                relative=None if places is None else places.in_scores(),
                softcap=softcap,
                sinks=None if own_sinks is None else as_tensor("sinks", own_sinks),
                positions=position,
                is_causal=mask_is_causal(own_mask, *lengths),
                values_known=known,
            )
        )
    layers = _layers(names, kind, [_lengths(call) for call in calls], [c.is_causal for c in calls])
    samples = len(calls[0].queries)
    sequences = GivenTokens(tokens, tokenizer, samples, "cross" in [own for _, own in layers])

    def record(session: Session) -> None:
        for call, (path, own_kind) in zip(calls, layers, strict=True):
            session(call.changed(path=path, kind=own_kind))

    traces = given_traces(
        sequences, record, "queries and keys", model, keep, save,
        overwrite=overwrite, queries_keys=queries_keys, dtype=dtype,
    )  # fmt: skip
    return traces[0] if len(traces) == 1 else traces


def _lengths(call: LayerCall) -> tuple[int, int]:
    return call.queries.shape[2], call.keys.shape[2]


def _heads_first(name: str, array: object, layout: str) -> list[Tensor]:
    """The arrays as layers, (batch, heads, positions, depth)."""
    layers = layer_tensors(name, array)
    if layout == "NHD":
        layers = [layer.transpose(1, 2) for layer in layers]
    for number, layer in enumerate(layers):
        words = ("input", "head", "position", "number")
        check_numbers(f"{name} of layer {number}", layer, words)
    return layers


def mask_is_causal(mask: Mask | None, queries: int, keys: int) -> bool:
    """Whether a mask shows no query of a sequence a key after it."""
    if mask is None or queries != keys or queries < 2:
        return False
    ranges = ranges_of(mask, queries, keys)
    return ranges is not None and bool((ranges[1] <= torch.arange(1, queries + 1)).all())


def _each(name: str, value: object, count: int) -> list[T]:
    """An argument for each layer: a list as it is, anything else for all."""
    if not isinstance(value, (list, tuple)):
        return [cast(T, value)] * count
    if len(value) != count:
        raise InputError(
            f"{name} is a list of {len(value)} for {count} layers; expected one for each, or one "
            "for all."
        )
    return list(value)


def _masks(mask: object, count: int) -> list[Mask | None]:
    masks: list[Mask | Tensor | None] = _each("mask", mask, count)
    return [None if mask is None else as_mask(mask) for mask in masks]


def _layers(
    names: Sequence[str] | None,
    kind: str | Sequence[str | None] | None,
    lengths: Sequence[tuple[int, int]],
    causal: Sequence[bool],
) -> list[tuple[str, str]]:
    """The name and the kind of each layer."""
    count = len(lengths)
    names = [f"layers.{number}" for number in range(count)] if names is None else list(names)
    if len(names) != count or not all(isinstance(name, str) for name in names):
        raise InputError(f"names={names!r:.80} for {count} layers; expected a text for each.")
    kinds: list[str | None] = _each("kind", kind, count)
    made = []
    for name, own, (queries, keys), ahead in zip(names, kinds, lengths, causal, strict=True):
        if own is not None and own not in KINDS:
            raise InputError(f"kind={own!r}; expected {', '.join(KINDS)} or None.")
        by_name = kind_of_name(name, ahead)
        if own is None and by_name != "cross" and queries == 1 < keys:
            raise InputError(
                f"layer {name} has 1 query and {keys} keys: a later step of a generation, or a "
                'position that looks at another sequence. Say which: kind="decoder" or "cross".'
            )
        made.append((name, own or ("cross" if queries != keys else by_name)))
    return made


def from_weights(
    weights: object,
    *,
    mask: Mask | Tensor | Sequence[Mask | Tensor | None] | None = None,
    tokens: TokensGiven | Mapping[str, TokensGiven] | None = None,
    tokenizer: object = None,
    partial: bool = False,
    kind: str | Sequence[str | None] | None = None,
    names: Sequence[str] | None = None,
    model: str | None = None,
    keep: Keep = Top(32),  # noqa: B008 - frozen
    save: Path | str | None = None,
    overwrite: bool = False,
) -> TraceData | list[TraceData]:
    """Make a trace of attention weights that are there as arrays: its edges are the weights given.

    There are no queries and keys: a layer has no `matrix`, and its scores are the logarithms of
    its weights. Where every edge is kept, all that is computed from the trace is exact.

    Args:
        weights: (heads, queries, keys), one layer; (layers, heads, queries, keys); or a list or a
            tuple with an array for each layer, with a batch before its dimensions or not, as
            Transformers gives them for ``output_attentions=True``. Rows sum to 1, or to 0 where
            a query may look nowhere.
        mask: who may look at whom, or a list with one for each layer: weights elsewhere are an
            error. None: at every key whose weight is not 0.
        tokens, tokenizer, names, model, kind, save, overwrite: as of `from_queries_keys`.
        partial: let rows sum to less than 1: sinks, or keys that are not here, have the rest.
        keep: the edges kept of each query; ``headloom.All()`` for all.

    Returns: the trace, or a list of traces where there is a batch of several inputs.

    Raises: InputError: rows that do not sum to 1, numbers below 0 or not finite, a weight that the
        mask hides, shapes that do not fit.

    >>> import numpy as np
    >>> trace = from_weights(np.array([[[1.0, 0.0], [0.25, 0.75]]]), tokens=["a", "b"])
    >>> trace.layers[0].kind, trace.layers[0].graph.keys[0, 1, :2].tolist()
    ('decoder', [1, 0])
    """
    stack = layer_tensors("weights", weights)
    masks = _masks(mask, len(stack))
    lengths = [(layer.shape[2], layer.shape[3]) for layer in stack]
    if kind is None and isinstance(tokens, Mapping) and "source" in tokens:
        kind = [None if queries == keys else "cross" for queries, keys in lengths]
    layers = _layers(names, kind, lengths, [is_causal(layer) for layer in stack])
    pair = "cross" in [own for _, own in layers]
    sequences = GivenTokens(tokens, tokenizer, len(stack[0]), pair)

    def record(session: Session) -> None:
        for number, (name, own_kind) in enumerate(layers):
            label, own_mask = f"weights of layer {number}", masks[number]
            checked = checked_weights(label, stack[number], partial=partial)
            places = session.places(checked.shape[-1])
            graph = graph_of_weights(label, checked, places, own_mask, partial=partial)
            session.take(weights_call(name, own_kind, graph, own_mask), graph)

    traces = given_traces(sequences, record, "weights", model, keep, save, overwrite=overwrite)
    return traces[0] if len(traces) == 1 else traces
