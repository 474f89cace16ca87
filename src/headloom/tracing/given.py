"""Traces of queries and keys, or of attention weights, from arrays."""

from __future__ import annotations

from collections.abc import Callable, Mapping, Sequence, Sized
from pathlib import Path
from typing import TypeVar, cast

import numpy as np
import torch
from numpy.typing import NDArray
from torch import Tensor

from headloom.errors import InputError
from headloom.formats.tokens import Tokens
from headloom.formats.trace import TraceData
from headloom.mechanism.graph import KeepLike, as_keep
from headloom.mechanism.masks import Mask, MaskLike, causal, read_mask
from headloom.mechanism.positions import ALiBi, Relative, Shaw
from headloom.tracing.names import texts_known, token_names
from headloom.tracing.options import TraceOptions
from headloom.tracing.recording.layer_call import LayerCall
from headloom.tracing.recording.score_terms import ranges_of, without_hidden
from headloom.tracing.recording.sequences import InputSequence, NamesOfSequences, kind_of_name
from headloom.tracing.recording.session import Session
from headloom.tracing.sources.tensors import (
    as_tensor,
    check_numbers,
    graph_of_weights,
    is_causal,
    layer_tensors,
    weights_call,
)

#: Sequences of the queries and of the keys for each kind of layer of an encoder-decoder.
ENDS = {
    "encoder": ("source", "source"),
    "decoder": ("target", "target"),
    "cross": ("target", "source"),
}

#: Texts or ids of the positions of one input, or of each input of a batch.
TokensOfSequence = Sequence[str] | Sequence[int] | NDArray[np.integer] | Tensor | Sequence[object]
#: Tokens of one sequence, or of each sequence by its name.
TokensGiven = TokensOfSequence | Mapping[str, TokensOfSequence]

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
        weights: (heads, queries, keys), one layer; (layers, heads, queries, keys); or a list or a
            tuple with an array for each layer, with or without a batch before its dimensions, as
            Transformers returns them for ``output_attentions=True``. Rows sum to 1, or to 0 where
            the mask hides every key.
        mask: or a list with one for each layer; a weight at a hidden key is an error. None: keys
            whose weight is 0 are hidden.
        tokens: see `from_queries_keys`, as for tokenizer, kind, names, model, save, overwrite.
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
    stack = layer_tensors("weights", weights)
    masks: list[MaskLike] = _per_layer("mask", mask, stack)
    lengths = [(layer.shape[2], layer.shape[3]) for layer in stack]
    if kind is None and isinstance(tokens, Mapping) and "source" in tokens:
        kind = [None if queries == keys else "cross" for queries, keys in lengths]
    layers = _layers(names, kind, lengths, [is_causal(layer) for layer in stack])
    pair = "cross" in [layer_kind for _, layer_kind in layers]

    def record(session: Session) -> None:
        for number, (name, own_kind) in enumerate(layers):
            label, shown = f"weights of layer {number}", masks[number]
            own_mask = read_mask(shown)
            places = session.places(stack[number].shape[-1])
            graph = graph_of_weights(label, stack[number], places, own_mask, partial=partial)
            session.take(weights_call(name, own_kind, graph, own_mask), graph)

    sequences = GivenSequences(tokens, tokenizer, len(stack[0]), pair)
    options = TraceOptions(
        keep=as_keep("from_weights", keep),
        save=save,
        overwrite=overwrite,
        verify=False,
        sampled=False,
    )
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
            raise InputError(
                f'layer {name} has 1 query and {keys} keys. Give kind="decoder" for a later step '
                'of a generation, or kind="cross" for cross-attention.'
            )
        layers.append((name, layer_kind or ("cross" if queries != keys else by_name)))
    return layers


class GivenSequences(NamesOfSequences):
    """Sequences of layers from arrays: see `NamesOfSequences`.

    Args:
        tokens: see `from_queries_keys`. tokenizer: turns ids into names.
        samples: inputs of the batch.
        pair: whether there are a source and a target.
    """

    def __init__(
        self, tokens: TokensGiven | None, tokenizer: object, samples: int, pair: bool
    ) -> None:
        named = tokens if isinstance(tokens, Mapping) else {"tokens": tokens}
        self.samples, self.pair = samples, pair or "source" in named
        if tokens is not None and set(named) - ({"source", "target"} if self.pair else {"tokens"}):
            raise InputError(
                f"tokens of {', '.join(map(repr, named))}; expected tokens of one sequence, or "
                'tokens={"source": ..., "target": ...} of an encoder-decoder.'
            )
        self._texts = {
            name: _texts(name, entries, tokenizer, samples)
            for name, entries in named.items()
            if entries is not None
        }
        #: Sequences whose tokens no layer has read.
        self.unread = set(self._texts)
        #: Length of each sequence, from its tokens or its first layer.
        self._lengths = {name: len(texts[0]) for name, texts in self._texts.items()}

    def ends(self, call: LayerCall) -> tuple[str, str]:
        path, kind, (queries, keys) = call.path, call.kind, call.graph.shape[2:]
        names = ENDS[kind] if self.pair else ("tokens", "tokens")
        self.unread.difference_update(names)
        of_keys = self._of_length(path, names[1], keys)
        if kind == "decoder" and queries < keys:  # a later step of a generation
            return f"{of_keys}-{queries}-from-{keys - queries}", of_keys
        return self._of_length(path, names[0], queries), of_keys

    def _of_length(self, path: str, name: str, length: int) -> str:
        """Return the sequence of a length: without tokens, every length has its own sequence."""
        known = self._lengths.setdefault(name, length)
        if known != length and name in self._texts:
            raise InputError(
                f"layer {path} has {length} positions, the sequence {name!r} {known} tokens; "
                "expected a token for each, special tokens too. If the dimensions are (positions, "
                'heads, depth), give layout="NHD".'
            )
        return name if known == length else f"{name}-{length}"

    def of(self, name: str, length: int, sample: int) -> InputSequence:
        whole, _, start = name.partition(f"-{length}-from-")
        first = int(start or 0)
        if whole not in self._texts:
            return InputSequence(slice(0, length), [f"position {first + i}" for i in range(length)])
        texts = self._texts[whole][sample]
        texts = texts[first:] if first else texts
        return InputSequence(slice(0, length), texts, {**texts_known(texts)})


def _texts(name: str, entries: object, tokenizer: object, samples: int) -> list[list[str]]:
    """Return the names of the tokens of a sequence, for each input of a batch."""
    entries = entries.tolist() if isinstance(entries, (Tensor, np.ndarray)) else entries
    if isinstance(entries, Sequence) and not isinstance(entries, str):
        if all(isinstance(entry, str) for entry in entries):
            return [entries if isinstance(entries, Tokens) else list(entries)] * samples
        if all(isinstance(entry, int | np.integer) for entry in entries):
            return [token_names(entries, tokenizer)] * samples
        if len(entries) == samples and not isinstance(entries[0], str | int | np.integer):
            inputs = [_texts(name, entry, tokenizer, 1)[0] for entry in entries]
            if len({len(texts) for texts in inputs}) == 1:
                return inputs
    raise InputError(
        f"the tokens of {name!r}: expected a text or an id for each position; for a batch of "
        f"{samples} inputs, a list of such lists, each as long as the arrays, padding included."
    )
