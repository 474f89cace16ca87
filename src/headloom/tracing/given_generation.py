"""Weights of an output of Transformers, or of the steps of its generation, joined to layers."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from typing import Any, NamedTuple

import torch
from torch import Tensor

from headloom.errors import InputError
from headloom.tracing.given_padding import ends_of_texts, left_padding, seen_keys, without_padding
from headloom.tracing.given_sequences import Spans
from headloom.tracing.sources.tensors import layer_tensors

#: Weights of layers, each (batch, heads, queries, keys).
Layers = list[Tensor]

_REMEDY = "Give the output of generate(return_dict_in_generate=True, output_scores=True) as it is."


class JoinedWeights(NamedTuple):
    """Weights of each layer; kinds and names: None: unknown; spans and rows: see GivenSequences.

    ids: of the tokens, also of the last one, which has no row.
    """

    layers: Layers
    spans: Spans | None = None
    rows: int | None = None
    ids: Mapping[str, Tensor] | None = None
    kinds: list[str] | None = None
    names: list[str] | None = None


def join_weights(weights: object, tokenizer: object) -> JoinedWeights:
    """Return the weights of arrays, or of an output of Transformers: see `from_weights`.

    Raises: InputError: no weights; beams without `beam_indices`; steps that do not fit together.
    """
    fields = [f"{part}attentions" for part in ("", "decoder_", "cross_", "encoder_")]
    output = weights if any(hasattr(weights, name) for name in fields) else None
    own, decoder, cross, encoder = (getattr(output, name, None) for name in fields)
    steps = weights if output is None else own or decoder
    if output is not None and not steps:
        raise InputError(
            f"weights: a {type(output).__name__} without attentions. Load the model with "
            'attn_implementation="eager", and run it with output_attentions=True.'
        )
    if not (_is_nested(steps) or cross):
        layers = layer_tensors("weights", steps)
        starts = left_padding(layers, layers[0].shape[3]) if len(layers[0]) > 1 else [0]
        spans = {"tokens": [slice(start, layers[0].shape[2]) for start in starts]}
        return JoinedWeights(without_padding(layers, starts), spans if any(starts) else None)
    calls = _calls(steps)
    texts = _rows_of_texts(output, calls)
    calls = calls[: texts.shape[1]]
    queries, keys = calls[0][0].shape[2:]
    stays = len(calls) > 1 and _used(calls[0]) == _used(calls[-1])
    if output is None and stays and not queries == keys > 1:  # (a window stays too)
        layers = _below(calls, texts, [call[0].shape[2] for call in calls])
        return JoinedWeights(layers, kinds=["cross"] * len(layers))
    layers, new = _joined(calls, texts)
    rows, length = layers[0].shape[2:]
    starts, spans, name = left_padding(layers, new[0]), {}, "target" if cross else "tokens"
    ids = getattr(output, "sequences", None)
    ids = {} if ids is None or ids.shape[1] != length + 1 else {name: ids.cpu()}
    if rows == length:  # the prompt is there
        stops = [sum(new[:count]) for count in (texts >= 0).sum(1).tolist()]
        known = ends_of_texts(ids[name], new[0], tokenizer) if ids else stops
        spans = {name: [slice(*ends) for ends in zip(starts, map(min, stops, known), strict=True)]}
    layers = without_padding(layers, starts)
    if not cross:
        return JoinedWeights(layers, spans, length, ids, ["decoder"] * len(layers))
    across = _below(_calls(cross), texts, new)
    # Of an encoder, the batch has one row for all beams of a text.
    first = layer_tensors("weights of the encoder", encoder) if encoder else []
    first = [layer[texts[:, 0] // (len(calls[0][0]) // len(layer))] for layer in first]
    spans["source"] = seen_keys([*first, *across])
    named = [(layer, "encoder", f"encoder.layers.{n}") for n, layer in enumerate(first)]
    for n, pair in enumerate(zip(layers, across, strict=True)):
        path = f"decoder.layers.{n}"
        named += [(pair[0], "decoder", path), (pair[1], "cross", f"{path}.cross_attn")]
    layers, kinds, names = map(list, zip(*named, strict=True))
    return JoinedWeights(layers, spans, length, ids, kinds, names)


def _is_nested(steps: object) -> bool:
    return isinstance(steps, list | tuple) and bool(steps) and isinstance(steps[0], list | tuple)


def _calls(steps: Any) -> list[Layers]:
    calls = steps if _is_nested(steps) else [steps]
    return [layer_tensors(f"weights of step {n}", layers) for n, layers in enumerate(calls)]


def _rows_of_texts(output: Any, calls: list[Layers]) -> Tensor:
    """Return the row of the batch that each text has in each step, (texts, steps); -1: none."""
    if hasattr(output, "beam_indices"):
        if output.beam_indices is None:
            raise InputError(f"weights of beams without beam_indices. {_REMEDY}")
        return torch.as_tensor(output.beam_indices).cpu().long()
    first = calls[0][0]
    same = torch.isclose(first[1:], first[:-1], atol=1e-5).flatten(1).all(1)
    if output is None and len(calls) > 1 < first.shape[2] and bool(same.any()):
        raise InputError(
            "weights: inputs of the batch have the same prompt, as in beam search, where a text "
            f"changes its row from step to step. {_REMEDY}"
        )
    return torch.arange(len(first))[:, None].expand(-1, len(calls))


def _used(layers: Layers) -> int:
    """Return the number of keys up to the last that the last queries see."""
    seen = [(layer[:, :, -1] != 0).any(0).any(0) for layer in layers]
    return max(int((row * torch.arange(1, len(row) + 1)).max()) for row in seen)


def _joined(calls: list[Layers], texts: Tensor) -> tuple[Layers, list[int]]:
    """Return each layer with the new rows of all steps, and the number of new rows of each."""
    new, ends, before = [calls[0][0].shape[2]], [_used(calls[0])], (0, 0)
    for call in calls[1:]:
        queries, keys = call[0].shape[2], max(layer.shape[3] for layer in call)
        # Without a cache, every step has the rows of all positions.
        new.append(queries - ends[-1] if queries == keys > 1 else queries)
        ends.append(ends[-1] + new[-1])
        late = any(bool(layer[:, :, -1, ends[-1] :].any()) for layer in call)
        if new[-1] < 1 or late or (queries == before[0] and keys < before[1]):
            raise InputError(
                f"weights of step {len(ends) - 1}: {queries} queries and {keys} keys after "
                f"{ends[-2]} positions; expected the steps of one generation, in their order."
            )
        before = queries, keys
    return _below(calls, texts, new, ends), new


def _below(
    calls: list[Layers], texts: Tensor, new: list[int], ends: Sequence[int] | None = None
) -> Layers:
    """Return the new rows of each step under those of the steps before.

    ends: keys of self-attention so far; a layer with fewer has the last ones, a fixed cache more.
    """
    layers = []
    for parts in zip(*calls, strict=True):
        reach = ends or [parts[0].shape[3]] * len(new)
        whole, at = parts[0].new_zeros(len(texts), parts[0].shape[1], sum(new), reach[-1]), 0
        for part, count, end, rows in zip(parts, new, reach, texts.T, strict=False):
            first = max(end - part.shape[3], 0)
            whole[:, :, at : at + count, first:end] = part[rows, :, -count:, : end - first]
            whole[rows < 0, :, at : at + count] = 0
            at += count
        layers.append(whole)
    return layers
