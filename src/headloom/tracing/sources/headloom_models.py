"""Attention calls of models that are made of headloom's own layers, seen by observers of these."""

from __future__ import annotations

import inspect
from collections.abc import Callable, Iterator, Mapping
from contextlib import AbstractContextManager, contextmanager
from typing import Any

import torch
from torch import Tensor, nn

from headloom.errors import InputError
from headloom.mechanism.attention_layer import AttentionLayer, Observation
from headloom.mechanism.graph import AttentionGraph, Keep, Top
from headloom.mechanism.watching import layers_of, watching
from headloom.tracing.arguments import Arguments, Inputs
from headloom.tracing.recording.layer_call import LayerCall
from headloom.tracing.recording.sequences import Sequences, on_device_of
from headloom.tracing.sources.source import Receivers, Source

__all__ = [
    "SOURCE",
    "LayerObserver",
    "as_inputs",
    "longest_of",
    "named_sequences",
    "observed",
    "reads_sequences",
    "sequences_of",
]

#: As many edges as there are keys, whatever their number.
_EVERY = Top(2**31 - 1)
#: What a trace calls the positions of a layer, where that is not what the layer does.
_POSITIONS = {"shaw-keys": "shaw", "buckets": "bias"}
#: Types of token ids.
_INTEGERS = (torch.int64, torch.int32, torch.int16, torch.int8, torch.uint8)


def reads_sequences(model: nn.Module) -> bool:
    """Whether a model of headloom's layers is read as headloom's own are, by its texts or images.

    As it says by its padding, or by outputs from which it predicts. Any other module with such
    layers is one of torch's, which may take attention in other ways beside.
    """
    return bool(layers_of(model)) and (hasattr(model, "padding") or hasattr(model, "outputs"))


class LayerObserver:
    """Hands on the calls of a model's layers, each with its graph.

    keep: the edges that layers keep of each query; it may change while the model runs.
    """

    def __init__(
        self, model: nn.Module, keep: Keep, receive: Callable[[LayerCall, AttentionGraph], None]
    ) -> None:
        self.keep: Keep = keep
        self._receive = receive
        self._paths = {id(layer): path or type(layer).__name__ for path, layer in layers_of(model)}

    def __call__(self, layer: AttentionLayer, observation: Observation) -> None:
        """Receive what a layer computed."""
        seen, graph = observation, observation.caught
        if not isinstance(graph, AttentionGraph):
            raise TypeError("an observer that keeps Top(k) is given graphs")
        call = LayerCall(
            path=self._paths[id(layer)],
            kind=layer.kind,
            queries=seen.queries.detach(),
            keys=seen.keys.detach(),
            values=seen.values.detach(),
            scale=seen.scale,
            mask=seen.mask,
            relative=seen.relative,
            positions=_POSITIONS.get(layer.relative, layer.relative),
            by_formula=True,
            grids=seen.grids,
            softcap=seen.softcap,
            sinks=None if seen.sinks is None else seen.sinks.detach(),
        )
        self._receive(call, graph.of_places(graph.length).detach())


@contextmanager
def observed(
    model: nn.Module, keep: Keep, receive: Callable[[LayerCall, AttentionGraph], None]
) -> Iterator[LayerObserver]:
    """Send every attention call of a model of headloom's layers to `receive`, with its graph."""
    observer = LayerObserver(model, keep if isinstance(keep, Top) else _EVERY, receive)
    with watching(model, observer):
        yield observer


def _calls(
    model: nn.Module, keep: Keep, receivers: Receivers
) -> AbstractContextManager[LayerObserver]:
    return observed(model, keep, receivers.take)


SOURCE = Source(lambda model: dict(layers_of(model)), _calls)


def as_inputs(model: nn.Module, inputs: Inputs | Tensor) -> Arguments:
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


def sequences_of(inputs: Inputs) -> dict[str, Tensor]:
    """What a model reads among its arguments, by their names: token ids, (batch, length); or, if
    there are none, images, (batch, channels, rows, columns).

    Raises: InputError: neither, or batches of different sizes.
    """
    sequences = {
        name: ids
        for name, ids in inputs.items()
        if isinstance(ids, Tensor) and ids.ndim == 2 and ids.dtype in _INTEGERS
    }
    if not sequences:
        sequences = {
            name: images
            for name, images in inputs.items()
            if isinstance(images, Tensor) and images.ndim == 4 and images.is_floating_point()
        }
    if not sequences:
        raise InputError(
            "trace: the inputs hold no token ids and no images; expected integers of shape "
            "(length,) or (batch, length), or numbers of shape (batch, channels, rows, columns)."
        )
    if len({len(ids) for ids in sequences.values()}) > 1:
        sizes = ", ".join(f"{name}: {len(ids)}" for name, ids in sequences.items())
        raise InputError(f"trace: the inputs are batches of different sizes ({sizes}).")
    return sequences


def longest_of(sequences: Mapping[str, Tensor]) -> int:
    """How many positions a layer has at most, for what `sequences_of` gives.

    Of an image as many as pixels, and a class token.
    """
    return max(
        part.shape[1] if part.ndim == 2 else part.shape[2] * part.shape[3] + 1
        for part in sequences.values()
    )


def named_sequences(
    model: nn.Module, ids: Mapping[str, Tensor], tokenizer: Any, prompt: int | None = None
) -> Sequences:
    """The sequences that a model read, for `LayerMaker`.

    Padding is the id ``model.padding``. A model that reads one sequence calls it "tokens",
    whatever its argument is called; of two, they are "source" and "target". Places of an image are
    "patches".

    Args:
        ids: from `sequences_of`. tokenizer: as for `headloom.trace`.
        prompt: tokens that were given; those after them were generated. None: nothing was.
    """
    images = next((part for part in ids.values() if part.ndim == 4), None)
    if images is not None:
        return Sequences(model, {"pixel_values": images}, None)
    names = {"source": "input_ids", "target": "decoder_input_ids"}
    if not all(name in ids for name in names):
        first = next(iter(ids))
        names = {first: "input_ids"}
        if isinstance(tokenizer, Mapping):
            tokenizer = tokenizer.get(first)
    padding = getattr(model, "padding", None)
    inputs: Arguments = {}
    for name, argument in names.items():
        inputs[argument] = ids[name]
        if padding is not None:
            inputs[argument.replace("input_ids", "attention_mask")] = ids[name] != padding
    return Sequences(model, inputs, tokenizer, prompt=prompt, exact=", ".join(ids))
