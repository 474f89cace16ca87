"""Traces of queries and keys, or of attention weights, from arrays."""

from __future__ import annotations

from collections.abc import Callable, Mapping, Sequence, Sized
from pathlib import Path
from typing import TypeVar, cast

import torch

from headloom.errors import InputError
from headloom.formats.trace import TraceData
from headloom.mechanism.graph import KeepLike, as_keep
from headloom.mechanism.masks import Mask, MaskLike, causal, read_mask
from headloom.mechanism.positions import ALiBi, Relative, Shaw
from headloom.tracing.given_generation import join_weights
from headloom.tracing.given_sequences import ENDS, GivenSequences, TokensGiven
from headloom.tracing.options import TraceOptions
from headloom.tracing.recording.layer_call import LayerCall
from headloom.tracing.recording.score_terms import ranges_of, without_hidden
from headloom.tracing.recording.sequences import kind_of_name
from headloom.tracing.recording.session import Session
from headloom.tracing.sources.tensors import (
    as_tensor,
    check_numbers,
    graph_of_weights,
    is_causal,
    layer_tensors,
    weights_call,
)

T = TypeVar("T")


def from_queries_keys(
    queries: object,
    keys: object,
    values: object = None,
    *,
    mask: MaskLike | Sequence[MaskLike] = None,
    is_causal: bool = False,
    scale: float | None = None,
    tokens: TokensGiven | None = None,
    tokenizer: object = None,
    layout: str = "HND",
    relative: Relative | Sequence[Relative | None] | None = None,
    bias: object = None,
    softcap: float | None = None,
    sinks: object = None,
    kind: str | Sequence[str | None] | None = None,
    names: Sequence[str] | None = None,
    model: str | None = None,
    keep: KeepLike = 32,
    queries_keys: bool = True,
    save: Path | str | None = None,
    dtype: torch.dtype | None = None,
    overwrite: bool = False,
) -> TraceData | list[TraceData]:
    """Make a trace from arrays of queries and keys: NumPy's, torch's, JAX's.

        weights = softmax(scale * queries . keys), as `headloom.attend` computes them

    Args:
        queries: (heads, positions, depth), one layer; (layers, heads, positions, depth); or a list
            with an array for each layer, (heads, positions, depth) or with a batch before that;
            shapes may differ. As they enter the scores: after the rotation of rotary positions.
        keys: the same shapes; the number of query heads is a multiple of the number of key heads.
        values: the same shapes, for `value_norms`; None: unknown.
        mask: as for `headloom.attend`, like is_causal; a list: one for each layer. None: every
            query sees every key.
        is_causal: whether to hide later keys.
        scale: the factor on the scores; None: 1 / sqrt(depth).
        tokens: texts or ids of the positions; {"source": ..., "target": ...} for an
            encoder-decoder; a list of them for a batch. None: numbers.
        tokenizer: turns ids into names.
        layout: "HND", or "NHD" for (positions, heads, depth), as in JAX and vLLM.
        relative: as for `headloom.attend`, like bias and sinks; a list: one for each layer.
        bias: added to the scores.
        softcap: as for `headloom.attend`.
        sinks: logits of the sinks of each head.
        kind: "encoder", "decoder" or "cross", or a list with one for each layer; None: from names,
            lengths and masks.
        names: of the layers; None: "layers.0", "layers.1", ...
        model: name of the model in the trace.
        keep: the edges kept of each query.
        queries_keys: see `headloom.trace`, as for save, dtype and overwrite.
        save: a folder to write the trace to.
        dtype: of saved queries and keys.
        overwrite: whether to replace an existing trace.

    Returns: the trace, or a list of traces where there is a batch of several inputs.

    Raises: InputError: not an array, numbers that are not finite, or shapes that do not fit.

    >>> import numpy as np
    >>> random = np.random.default_rng(0)
    >>> queries, keys = random.normal(size=(2, 3, 4, 5, 8))    # 3 layers, 4 heads, 5 positions
    >>> from_queries_keys(queries, keys, tokens="a b c d e".split())
    Trace(3 encoder layers, tokens: 5 tokens)
    """
    if layout not in ("HND", "NHD"):
        raise InputError(f'layout={layout!r}; expected "HND" or "NHD".')
    stacks = {"queries": layer_tensors("queries", queries), "keys": layer_tensors("keys", keys)}
    placeholders = [layer[..., :1] for layer in stacks["keys"]]
    stacks["values"] = placeholders if values is None else layer_tensors("values", values)
    if len({len(stack) for stack in stacks.values()}) > 1:
        counts = ", ".join(f"{len(stack)} layers of {name}" for name, stack in stacks.items())
        raise InputError(f"from_queries_keys: {counts}; expected as many of each.")
    masks: list[MaskLike] = _per_layer("mask", mask, stacks["keys"])
    relatives: list[Relative | None] = _per_layer("relative", relative, masks)
    biases: list[object] = _per_layer("bias", bias, masks)
    every_sinks: list[object] = _per_layer("sinks", sinks, masks)
    calls: list[LayerCall] = []
    for number, shown in enumerate(masks):
        own_mask = read_mask(shown, is_causal)
        parts = [stack[number] for stack in stacks.values()]
        if layout == "NHD":
            parts = [part.transpose(1, 2) for part in parts]
        for name, part in zip(stacks, parts, strict=True):
            label = f"{name} of layer {number}"
            check_numbers(label, ~part.isfinite(), part, "are not finite; expected none")
        rows, columns, own_values = parts
        lengths = rows.shape[2], columns.shape[2]
        if own_mask == causal() and lengths[0] != lengths[1]:
            raise InputError(
                f"layer {number}: {lengths[0]} queries and {lengths[1]} keys under a causal mask. "
                "If these are the last queries, give headloom.causal(offset=keys - queries); "
                "between two sequences, no mask."
            )
        own_bias, own_sinks, places = biases[number], every_sinks[number], relatives[number]
        added = None
        if own_bias is not None:
            added = as_tensor("bias", own_bias)
            added = added.reshape((1,) * (4 - added.ndim) + tuple(added.shape))
            own_mask, added = without_hidden(own_mask, added, (*rows.shape[:3], lengths[1]))
        position = "none" if added is None else "bias"
        if places is not None:
            position = {Shaw: "shaw", ALiBi: "alibi"}.get(type(places), "bias")
        calls.append(
            LayerCall(
                "",
                "",
                rows,
                columns,
                own_values,
                scale=rows.shape[3] ** -0.5 if scale is None else scale,
                mask=own_mask,
                bias=added,
                relative=places and places.in_scores(),
                softcap=softcap,
                sinks=None if own_sinks is None else as_tensor("sinks", own_sinks),
                positions=position,
                is_causal=mask_is_causal(own_mask, *lengths),
                values_known=values is not None,
            )
        )
    sizes = [(call.queries.shape[2], call.keys.shape[2]) for call in calls]
    layers = _layers(names, kind, sizes, [call.is_causal for call in calls])
    pair = "cross" in [layer_kind for _, layer_kind in layers]
    sequences = GivenSequences(tokens, tokenizer, len(calls[0].queries), pair)

    def record(session: Session) -> None:
        for call, (path, layer_kind) in zip(calls, layers, strict=True):
            session(call.changed(path=path, kind=layer_kind))

    options = TraceOptions(
        keep=as_keep("from_queries_keys", keep), queries_keys=queries_keys, save=save, dtype=dtype,
        overwrite=overwrite, verify=False, sampled=False,
    )  # fmt: skip
    traces = given_traces("queries and keys", model, sequences, options, record)
    return traces[0] if len(traces) == 1 else traces


def from_weights(
    weights: object,
    *,
    mask: MaskLike | Sequence[MaskLike] = None,
    tokens: TokensGiven | None = None,
    tokenizer: object = None,
    partial: bool = False,
    kind: str | Sequence[str | None] | None = None,
    names: Sequence[str] | None = None,
    model: str | None = None,
    keep: KeepLike = 32,
    save: Path | str | None = None,
    overwrite: bool = False,
) -> TraceData | list[TraceData]:
    """Make a trace from arrays of attention weights; its edges are these weights.

    There are no queries and keys: a layer has no `matrix`, and its scores are the logarithms of
    its weights. With every edge kept, all results computed from the trace are exact.

    Args:
        weights: (heads, queries, keys), one layer; (layers, heads, queries, keys); or a list with
            an array for each layer, with or without a batch before its dimensions. From
            Transformers, for ``output_attentions=True``: the output of a model or of its
            ``generate``, as it is, or its attentions. Rows sum to 1, or to 0 where the mask hides
            every key. Padding before the texts of a batch is cut off.
        mask: or a list with one for each layer; a weight at a hidden key is an error. None: keys
            whose weight is 0 are hidden.
        tokens: see `from_queries_keys`, as for tokenizer, kind, names, model, save, overwrite;
            None: those of the output.
        tokenizer: turns ids into names.
        partial: let rows sum to less than 1: the rest is on sinks, or on keys not in the arrays.
        kind: "encoder", "decoder" or "cross", or a list; None: from names, lengths and weights.
        names: of the layers.
        model: name of the model in the trace.
        keep: the edges kept of each query; "all".
        save: a folder to write the trace to.
        overwrite: whether to replace an existing trace.

    Returns: the trace, or a list of traces where there is a batch of several inputs.

    Raises: InputError: rows that do not sum to 1, numbers below 0 or not finite, a weight that the
        mask hides, shapes that do not fit.

    >>> import numpy as np
    >>> trace = from_weights(np.array([[[1.0, 0.0], [0.25, 0.75]]]), tokens=["a", "b"])
    >>> trace.layers[0].kind, trace.layers[0].graph.keys[0, 1, :2].tolist()
    ('decoder', [1, 0])
    """
    joined = join_weights(weights, tokenizer)
    stack = joined.layers
    if tokens is None or isinstance(tokens, Mapping):
        tokens = {**(joined.ids or {}), **(tokens or {})} or None
    masks: list[MaskLike] = _per_layer("mask", mask, stack)
    lengths = [(layer.shape[2], layer.shape[3]) for layer in stack]
    kind = kind or joined.kinds
    if kind is None and isinstance(tokens, Mapping) and "source" in tokens:
        kind = [None if queries == keys else "cross" for queries, keys in lengths]
    causal = [is_causal(layer) for layer in stack]
    layers = _layers(names or joined.names, kind, lengths, causal)
    pair = "cross" in [layer_kind for _, layer_kind in layers]

    def record(session: Session) -> None:
        for number, (name, own_kind) in enumerate(layers):
            label, shown = f"weights of layer {number}", masks[number]
            own_mask = read_mask(shown)
            places = session.places(stack[number].shape[-1])
            graph = graph_of_weights(label, stack[number], places, own_mask, partial=partial)
            session.take(weights_call(name, own_kind, graph, own_mask), graph)

    sequences = GivenSequences(tokens, tokenizer, len(stack[0]), pair, joined.spans, joined.rows)
    options = TraceOptions(
        keep=as_keep("from_weights", keep), save=save, overwrite=overwrite, verify=False,
        sampled=False,
    )  # fmt: skip
    traces = given_traces("weights", model, sequences, options, record)
    return traces[0] if len(traces) == 1 else traces


def given_traces(
    what: str,
    model: str | None,
    sequences: GivenSequences,
    options: TraceOptions,
    record: Callable[[Session], None],
) -> list[TraceData]:
    """Return the trace of each input; `record` sends each layer of the arrays to the session."""
    with Session(options) as session:
        session.begin(sequences, sequences.samples, {"name": model or what, "given": what})
        record(session)
        if sequences.unread:
            raise InputError(
                f"no layer reads the tokens of {', '.join(map(repr, sequences.unread))}. Mark the "
                'cross-attention layers: kind="cross", or a list with the kind of each layer.'
            )
        return session.end([])


def mask_is_causal(mask: Mask | None, queries: int, keys: int) -> bool:
    """Return whether a mask hides every key after its query."""
    if mask is None or queries != keys or queries < 2:
        return False
    ranges = ranges_of(mask, queries, keys)
    return ranges is not None and bool((ranges[1] <= torch.arange(1, queries + 1)).all())


def _per_layer(name: str, value: T | Sequence[T], layers: Sized) -> list[T]:
    """Return an argument for each layer: the list itself, or anything else repeated."""
    if not isinstance(value, list | tuple):
        return [cast(T, value)] * len(layers)
    if len(value) != len(layers):
        raise InputError(f"{name} is a list of {len(value)} for {len(layers)} layers.")
    return list(value)


def _layers(
    names: Sequence[str] | None,
    kind: str | Sequence[str | None] | None,
    lengths: Sequence[tuple[int, int]],
    causal: Sequence[bool],
) -> list[tuple[str, str]]:
    """Return the name and the kind of each layer."""
    every: list[str] = _per_layer(
        "names", names or [f"layers.{n}" for n in range(len(lengths))], lengths
    )
    kinds: list[str | None] = _per_layer("kind", kind, lengths)
    layers = []
    for name, layer_kind, (queries, keys), ahead in zip(every, kinds, lengths, causal, strict=True):
        if layer_kind not in (*ENDS, None):
            raise InputError(f"kind={layer_kind!r}; expected {', '.join(ENDS)} or None.")
        by_name = kind_of_name(name, ahead)
        if layer_kind is None and by_name != "cross" and queries == 1 < keys:
            if len(set(lengths)) > 1:
                raise InputError(
                    f"layer {name} has 1 query and {keys} keys, others have other lengths. Give "
                    'kind="decoder" for a step of a generation, kind="cross" for cross-attention.'
                )
            layer_kind = "decoder"  # a new token over its cache
        layers.append((name, layer_kind or ("cross" if queries != keys else by_name)))
    return layers
