"""Traces of what somebody has already: queries and keys, or attention weights, as arrays."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from pathlib import Path
from typing import Any

import torch
from torch import Tensor

from headloom.errors import InputError
from headloom.formats.trace import TraceData
from headloom.mechanism.graph import Keep, Top
from headloom.mechanism.masks import Mask
from headloom.mechanism.positions import Relative
from headloom.mechanism.shapes import check_flag, finite_number, in_words, whole_number
from headloom.tracing.given_layers import (
    GivenLayers,
    Making,
    checked_model,
    each,
    in_layer,
    masks_of,
    tensors_of,
)
from headloom.tracing.given_tokens import GivenTokens
from headloom.tracing.recording.recorder import CallRecorder
from headloom.tracing.sources.given_queries_keys import LAYOUTS, GivenCalls
from headloom.tracing.sources.given_weights import (
    Sums,
    checked_weights,
    graph_of_weights,
    weights_call,
)
from headloom.tracing.sources.tensors import Layers, is_causal

__all__ = ["from_queries_keys", "from_weights"]


def from_queries_keys(
    queries: Any,
    keys: Any,
    values: Any = None,
    *,
    mask: Mask | Tensor | Sequence[Mask | Tensor | None] | None = None,
    scale: float | None = None,
    tokens: Any = None,
    tokenizer: Any = None,
    layout: str = "HND",
    heads: int | None = None,
    relative: Relative | Sequence[Relative | None] | None = None,
    bias: Any = None,
    softcap: float | None = None,
    sinks: Any = None,
    kind: str | Sequence[str | None] | None = None,
    names: Sequence[str] | None = None,
    model: str | None = None,
    keep: Keep = Top(32),  # noqa: B008 - frozen
    queries_keys: bool = True,
    save: Path | str | None = None,
    dtype: torch.dtype | None = None,
    overwrite: bool = False,
) -> TraceData | list[TraceData]:
    """A trace of queries and keys that are there as arrays: NumPy's, torch's, JAX's.

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
        heads: of the queries, where a list has arrays (positions, heads * depth).
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
    operation = "from_queries_keys"
    checked_model(operation, model)
    if scale is not None:
        scale = finite_number(operation, "scale", scale)
    if softcap is not None:
        softcap = finite_number(operation, "softcap", softcap)
    stacks = _stacks(operation, queries, keys, values, layout, heads)
    count = len(stacks[0])
    calls = GivenCalls(
        stacks[0],
        stacks[1],
        stacks[2] if len(stacks) > 2 else None,
        layout,
        heads,
        scale,
        softcap,
        masks=masks_of(operation, mask, count),
        relatives=_relatives(operation, relative, count),
        biases=tensors_of(operation, "bias", bias, count),
        sinks=tensors_of(operation, "sinks", sinks, count),
    )
    layers = GivenLayers.of(operation, count, names, kind, calls.lengths)
    sequences = GivenTokens(operation, tokens, tokenizer, stacks[0].samples, layers.pair)

    def record(recorder: CallRecorder) -> None:
        for number, name in enumerate(layers.names):
            call = calls.call(number, name, layers.kind(number, calls.causal(number)))
            with in_layer(operation, name):
                recorder(call)

    said = {"name": model or "queries and keys", "given": "queries and keys"}
    making = Making(operation, keep, queries_keys, save, dtype, overwrite)
    return making.traces(sequences, record, said)


def _relatives(operation: str, relative: Any, count: int) -> tuple[Relative | None, ...]:
    """The relative positions of each layer."""
    entries = each(operation, "relative", relative, count)
    for entry in entries:
        if entry is not None and not isinstance(entry, Relative):
            raise InputError(
                f"{operation}: relative is {type(entry).__name__}; expected relative positions, "
                "as headloom.ALiBi or headloom.Shaw, or None."
            )
    return tuple(entries)


def _stacks(
    operation: str, queries: Any, keys: Any, values: Any, layout: str, heads: int | None
) -> list[Layers]:
    """The arrays as layers, as many of each."""
    if not isinstance(layout, str) or layout not in LAYOUTS:
        raise InputError(f'{operation}: layout={in_words(layout)}; expected "HND" or "NHD".')
    if heads is not None:
        whole_number(operation, "heads", heads, 1)
    given = {"queries": queries, "keys": keys, "values": values}
    rank = 3 if heads is None else 2
    stacks = [
        Layers(name, array, rank)
        for name, array in given.items()
        if name != "values" or array is not None
    ]
    for other in stacks[1:]:
        if len(other) != len(stacks[0]):
            raise InputError(
                f"{operation}: {len(stacks[0])} layers of queries and {len(other)} of "
                f"{other.name}; expected as many."
            )
    return stacks


def from_weights(
    weights: Any,
    *,
    mask: Mask | Tensor | Sequence[Mask | Tensor | None] | None = None,
    tokens: Any = None,
    tokenizer: Any = None,
    normalise: bool = False,
    partial: bool = False,
    kind: str | Sequence[str | None] | None = None,
    names: Sequence[str] | None = None,
    model: str | None = None,
    keep: Keep = Top(32),  # noqa: B008 - frozen
    save: Path | str | None = None,
    overwrite: bool = False,
) -> TraceData | list[TraceData]:
    """A trace of attention weights that are there as arrays: its edges are the weights given.

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
        normalise: divide each row by its sum.
        partial: let rows sum to less than 1: sinks, or keys that are not here, have the rest.
        keep: the edges kept of each query; ``headloom.All()`` for all.

    Returns: the trace, or a list of traces where there is a batch of several inputs.

    Raises: InputError: rows that do not sum to 1, numbers below 0 or not finite, scores in the
        place of weights, a weight that the mask hides, shapes that do not fit.

    >>> import numpy as np
    >>> trace = from_weights(np.array([[[1.0, 0.0], [0.25, 0.75]]]), tokens=["a", "b"])
    >>> trace.layers[0].kind, trace.layers[0].graph.keys[0, 1, :2].tolist()
    ('decoder', [1, 0])
    """
    operation = "from_weights"
    checked_model(operation, model)
    check_flag(operation, "normalise", normalise)
    check_flag(operation, "partial", partial)
    if normalise and partial:
        raise InputError(f"{operation}: normalise and partial exclude each other; give one.")
    stack = Layers("weights", weights)
    sums: Sums = "normalise" if normalise else "less" if partial else "one"
    masks = masks_of(operation, mask, len(stack))

    def lengths(number: int) -> tuple[int, int]:
        shape = stack.shape(number)
        return shape[-2], shape[-1]

    steps = not isinstance(tokens, Mapping)
    layers = GivenLayers.of(operation, len(stack), names, kind, lengths, steps)
    sequences = GivenTokens(operation, tokens, tokenizer, stack.samples, layers.pair)

    def record(recorder: CallRecorder) -> None:
        for number, name in enumerate(layers.names):
            label = stack.label(number)
            checked = checked_weights(label, stack[number], sums)
            places = recorder.places(checked.shape[-1])
            graph = graph_of_weights(label, checked, places, masks[number], partial=partial)
            layer_kind = layers.kind(number, is_causal(checked))
            recorder.take(weights_call(name, layer_kind, checked, masks[number]), graph)

    said = {"name": model or "weights", "given": "weights"}
    if normalise:
        said["rows"] = "divided by their sums"
    making = Making(operation, keep, False, save, None, overwrite)
    return making.traces(sequences, record, said)
