"""Traces of queries and keys, or of attention weights, that are there as arrays."""

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
from headloom.tracing.recording.sequences import InputSequence, kind_of_name
from headloom.tracing.recording.session import Session
from headloom.tracing.sources.tensors import (
    as_tensor,
    check_numbers,
    graph_of_weights,
    is_causal,
    layer_tensors,
    weights_call,
)

#: The sequences of the queries and the keys of each kind of layer, where there are two sequences.
ENDS = {
    "encoder": ("source", "source"),
    "decoder": ("target", "target"),
    "cross": ("target", "source"),
}

#: The texts, or the ids, of the positions of one input, or of each of a batch.
TokensOfSequence = Sequence[str] | Sequence[int] | NDArray[np.integer] | Tensor | Sequence[object]
#: Of one sequence, or of each by its name.
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
    """Make a trace of queries and keys that are there as arrays: NumPy's, torch's, JAX's.

        weights = softmax(scale * queries . keys), as `headloom.attend` computes them

    Args:
        queries: (heads, positions, depth), one layer; (layers, heads, positions, depth); or a list
            with an array for each layer, whose shapes may differ, (heads, positions, depth) or
            with a batch before that. As they enter the scores: turned, where positions are rotary.
        keys: likewise; heads of keys divide those of queries.
        values: likewise, for `value_norms`; None: they are not known.
        mask, is_causal: who may look at whom, as `headloom.attend` takes it; a list of masks: one
            for each layer. None: everybody at everybody.
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
        queries_keys, save, dtype, overwrite: see `headloom.trace`.

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
    stacks = {"queries": layer_tensors("queries", queries), "keys": layer_tensors("keys", keys)}
    in_place = [layer[..., :1] for layer in stacks["keys"]]  # of values that are not known
    stacks["values"] = in_place if values is None else layer_tensors("values", values)
    if len({len(stack) for stack in stacks.values()}) > 1:
        counts = ", ".join(f"{len(stack)} layers of {name}" for name, stack in stacks.items())
        raise InputError(f"from_queries_keys: {counts}; expected as many of each.")
    masks: list[MaskLike] = _each("mask", mask, stacks["keys"])
    relatives: list[Relative | None] = _each("relative", relative, masks)
    biases: list[object] = _each("bias", bias, masks)
    every_sinks: list[object] = _each("sinks", sinks, masks)
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
                "Of the last queries, give headloom.causal(offset=keys - queries); between two "
                "sequences, no mask."
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
    pair = "cross" in [own for _, own in layers]
    sequences = GivenSequences(tokens, tokenizer, len(calls[0].queries), pair)

    def record(session: Session) -> None:
        for call, (path, own_kind) in zip(calls, layers, strict=True):
            session(call.changed(path=path, kind=own_kind))

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
        keep: the edges kept of each query; "all".

    Returns: the trace, or a list of traces where there is a batch of several inputs.

    Raises: InputError: rows that do not sum to 1, numbers below 0 or not finite, a weight that the
        mask hides, shapes that do not fit.

    >>> import numpy as np
    >>> trace = from_weights(np.array([[[1.0, 0.0], [0.25, 0.75]]]), tokens=["a", "b"])
    >>> trace.layers[0].kind, trace.layers[0].graph.keys[0, 1, :2].tolist()
    ('decoder', [1, 0])
    """
    stack = layer_tensors("weights", weights)
    masks: list[MaskLike] = _each("mask", mask, stack)
    lengths = [(layer.shape[2], layer.shape[3]) for layer in stack]
    if kind is None and isinstance(tokens, Mapping) and "source" in tokens:
        kind = [None if queries == keys else "cross" for queries, keys in lengths]
    layers = _layers(names, kind, lengths, [is_causal(layer) for layer in stack])
    pair = "cross" in [own for _, own in layers]

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
    """Return the trace of each input of a batch.

    Args: what: was given. model: its name. record: hands each layer to the session.
    """
    with Session(options) as session:
        session.begin(sequences, sequences.samples, {"name": model or what, "given": what})
        record(session)
        if sequences.unread:
            raise InputError(
                f"no layer reads the tokens of {', '.join(map(repr, sequences.unread))}. Say which "
                'layer looks from one sequence at another: kind="cross", or a list with each kind.'
            )
        return session.end([])


def mask_is_causal(mask: Mask | None, queries: int, keys: int) -> bool:
    """Whether a mask shows no query of a sequence a key after it."""
    if mask is None or queries != keys or queries < 2:
        return False
    ranges = ranges_of(mask, queries, keys)
    return ranges is not None and bool((ranges[1] <= torch.arange(1, queries + 1)).all())


def _each(name: str, value: T | Sequence[T], layers: Sized) -> list[T]:
    """An argument for each layer: a list as it is, anything else for all."""
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
    """The name and the kind of each layer."""
    every: list[str] = _each(
        "names", names or [f"layers.{n}" for n in range(len(lengths))], lengths
    )
    kinds: list[str | None] = _each("kind", kind, lengths)
    made = []
    for name, own, (queries, keys), ahead in zip(every, kinds, lengths, causal, strict=True):
        if own not in (*ENDS, None):
            raise InputError(f"kind={own!r}; expected {', '.join(ENDS)} or None.")
        by_name = kind_of_name(name, ahead)
        if own is None and by_name != "cross" and queries == 1 < keys:
            raise InputError(
                f"layer {name} has 1 query and {keys} keys. Say whether it is a later step of a "
                'generation, kind="decoder", or looks at another sequence, kind="cross".'
            )
        made.append((name, own or ("cross" if queries != keys else by_name)))
    return made


class GivenSequences:
    """The sequences of layers that are given: see `NamesOfSequences`.

    Args:
        tokens, tokenizer: see `from_queries_keys`.
        samples: inputs of the batch.
        pair: whether one sequence looks at another.
    """

    def __init__(
        self, tokens: TokensGiven | None, tokenizer: object, samples: int, pair: bool
    ) -> None:
        named = tokens if isinstance(tokens, Mapping) else {"tokens": tokens}
        self.samples, self.pair = samples, pair or "source" in named
        if tokens is not None and set(named) - ({"source", "target"} if self.pair else {"tokens"}):
            raise InputError(
                f"tokens of {', '.join(map(repr, named))}; expected tokens of one sequence, or "
                'tokens={"source": ..., "target": ...} where one looks at another.'
            )
        self._texts = {
            name: _texts(name, entries, tokenizer, samples)
            for name, entries in named.items()
            if entries is not None
        }
        #: The sequences whose tokens no layer has read.
        self.unread = set(self._texts)
        #: The length of each sequence: of its tokens, or of its first layer.
        self._lengths = {name: len(texts[0]) for name, texts in self._texts.items()}

    def ends(self, call: LayerCall) -> tuple[str, str]:
        """See NamesOfSequences."""
        path, kind, (queries, keys) = call.path, call.kind, call.graph.shape[2:]
        names = ENDS[kind] if self.pair else ("tokens", "tokens")
        self.unread.difference_update(names)
        of_keys = self._of_length(path, names[1], keys)
        if kind == "decoder" and queries < keys:  # of a later step of a generation
            return f"{of_keys}-{queries}-from-{keys - queries}", of_keys
        return self._of_length(path, names[0], queries), of_keys

    def _of_length(self, path: str, name: str, length: int) -> str:
        """The sequence of a length: where no tokens are given, every length is one of its own."""
        known = self._lengths.setdefault(name, length)
        if known != length and name in self._texts:
            raise InputError(
                f"layer {path} has {length} positions, the sequence {name!r} {known} tokens; "
                "expected a token for each, special ones too. If the dimensions are (positions, "
                'heads, depth), layout="NHD".'
            )
        return name if known == length else f"{name}-{length}"

    def of(self, name: str, length: int, sample: int) -> InputSequence:
        """See NamesOfSequences."""
        whole, _, start = name.partition(f"-{length}-from-")
        first = int(start or 0)
        if whole not in self._texts:
            return InputSequence(slice(0, length), [f"position {first + i}" for i in range(length)])
        texts = self._texts[whole][sample]
        texts = texts[first:] if first else texts
        return InputSequence(slice(0, length), texts, {**texts_known(texts)})


def _texts(name: str, entries: object, tokenizer: object, samples: int) -> list[list[str]]:
    """The names of the tokens of a sequence, for each input of a batch."""
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
        f"the tokens of {name!r}: expected a text for each position, or an id for each; for a "
        f"batch of {samples} inputs a list of that for each, as long as the arrays, padding too."
    )
