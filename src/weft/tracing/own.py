"""Weft's own models: from what their layers were seen to do to traces."""

from __future__ import annotations

import inspect
from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from fnmatch import fnmatchcase
from typing import Any

import torch
from torch import Tensor, nn

from weft.errors import InputError
from weft.formats.trace import LayerInMemory, TraceData, TraceLayer
from weft.mechanism.graph import AttentionGraph
from weft.mechanism.multihead import MultiHeadAttention
from weft.mechanism.observe import Observation
from weft.tracing.graphs import cut
from weft.tracing.names import texts_known, token_names
from weft.tracing.own_verification import reference_deviation
from weft.tracing.sequences import on_device_of
from weft.tracing.terms import cut_terms, ranges_of

__all__ = ["as_inputs", "sequences_of", "traces_of"]

#: The sequences that the queries and the keys of a layer come from, of a model that reads two.
_TWO = {
    "encoder": ("source", "source"),
    "decoder": ("target", "target"),
    "cross": ("target", "source"),
}


def sequences_of(given: Mapping[str, Any]) -> dict[str, Tensor]:
    """The token ids among the arguments of a model, (batch, length) by their names.

    Raises: InputError: there are none, or batches of different sizes.
    """
    sequences = {name: ids for name, ids in given.items() if _is_sequence(ids)}
    if not sequences:
        raise InputError(
            "trace: the inputs hold no token ids; expected integers of shape (length,) or "
            "(batch, length)."
        )
    if len({len(ids) for ids in sequences.values()}) > 1:
        sizes = ", ".join(f"{name}: {len(ids)}" for name, ids in sequences.items())
        raise InputError(f"trace: the inputs are batches of different sizes ({sizes}).")
    return sequences


def traces_of(
    model: nn.Module,
    calls: Sequence[tuple[str, MultiHeadAttention, Observation]],
    sequences: Mapping[str, Tensor],
    *,
    tokenizer: Any,
    queries_keys: bool,
    layers: Sequence[int | str] | None,
    prompt: int | None = None,
    verification: Mapping[str, Any] | None = None,
) -> list[TraceData]:
    """A trace for each input of a batch.

    Args:
        model: whose layers were seen.
        calls: what they did.
        sequences: the ids that it read, (batch, length).
        tokenizer, queries_keys, layers: as for `weft.trace`.
        prompt: tokens that were given; those after them were generated. None: nothing was.
        verification: what the traces say of how they were verified.
    """
    padding = getattr(model, "padding", None)
    description = _describe(model)
    traces = []
    for sample in range(len(next(iter(sequences.values())))):
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
        known: dict[str, dict[str, list[Any]]] = {
            name: dict(texts) for name, of in shown.items() if (texts := texts_known(of))
        }
        if prompt is not None:
            (name,) = shown
            first = next(iter(spans.values())).start
            generated = [first + i >= prompt for i in range(len(shown[name]))]
            known.setdefault(name, {})["generated"] = generated
        traces.append(TraceData(shown, caught, description, known, verification))
    return traces


@dataclass(frozen=True)
class _Sequence:
    """The part of an input that is not padding, its tokens, and the length of the whole input."""

    span: slice
    tokens: list[str]
    length: int


def as_inputs(model: nn.Module, inputs: Mapping[str, Any] | Tensor) -> dict[str, Any]:
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
                deviation=reference_deviation(seen, sample),
                data=LayerInMemory(graph, tensors, terms, norms),
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
