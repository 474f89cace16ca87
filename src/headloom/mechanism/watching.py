"""Setting observers and editors on the attention layers of a model, and taking them off again."""

from __future__ import annotations

from collections.abc import Iterator
from contextlib import contextmanager
from dataclasses import replace

from torch import nn

from headloom.mechanism.attention_layer import AttentionLayer, Editor, Observation, Observer
from headloom.mechanism.graph import Keep
from headloom.mechanism.module_paths import named_modules

__all__ = ["Recorder", "editing", "layers_of", "watching"]


def layers_of(model: nn.Module) -> list[tuple[str, AttentionLayer]]:
    """The attention layers of a model with their paths, in the order of the model.

    Of layers that were compiled one by one the paths are those of the model as it is written.
    """
    return [(path, part) for path, part in named_modules(model) if isinstance(part, AttentionLayer)]


class Recorder:
    """An observer that keeps what it sees: name, layer and observation of each call, in order.

    Names are the layers' paths in the model. Everything is cut off from autograd.
    """

    def __init__(self, model: nn.Module, keep: Keep) -> None:
        self.keep = keep
        self.calls: list[tuple[str, AttentionLayer, Observation]] = []
        self._names = {id(layer): name for name, layer in layers_of(model)}

    def __call__(self, layer: AttentionLayer, observation: Observation) -> None:
        caught = observation.caught.detach()
        detached = replace(
            observation,
            queries=observation.queries.detach(),
            keys=observation.keys.detach(),
            values=observation.values.detach(),
            caught=caught,
        )
        self.calls.append((self._names[id(layer)], layer, detached))


@contextmanager
def watching(model: nn.Module, observer: Observer | None) -> Iterator[None]:
    """Let an observer, or nobody, see every attention call of a model; afterwards who did."""
    layers = [layer for _, layer in layers_of(model)]
    before = [layer.observer for layer in layers]
    try:
        for layer in layers:
            layer.observer = observer
        yield
    finally:
        for layer, observer_before in zip(layers, before, strict=True):
            layer.observer = observer_before


@contextmanager
def editing(model: nn.Module, editor: Editor) -> Iterator[None]:
    """Let an editor change the output of every attention call; afterwards nobody does."""
    layers = [layer for _, layer in layers_of(model)]
    before = [layer.editor for layer in layers]
    try:
        for layer in layers:
            layer.editor = editor
        yield
    finally:
        for layer, editor_before in zip(layers, before, strict=True):
            layer.editor = editor_before
