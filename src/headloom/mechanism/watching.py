"""Modules of a model by their paths; setting observers and editors of its attention layers.

`torch.compile` wraps a module in another one, whose `_orig_mod` is the original. The wrappers are
left out here, so that a model with compiled layers has the same paths as the original.
"""

from __future__ import annotations

from collections.abc import Iterator
from contextlib import contextmanager
from dataclasses import replace

from torch import nn

from headloom.mechanism.attention_layer import AttentionLayer, Editor, Observation, Observer
from headloom.mechanism.graph import Keep


def is_compiled(module: object) -> bool:
    """Whether a module is the result of torch.compile; to import its class loads the compiler."""
    return type(module).__name__ == "OptimizedModule" and hasattr(module, "_orig_mod")


def named_modules(model: nn.Module) -> Iterator[tuple[str, nn.Module]]:
    """Yield every module of a model once, with its path, as `nn.Module.named_modules` does."""
    seen: set[nn.Module] = set()
    stack: list[tuple[str, nn.Module]] = [("", model)]
    while stack:
        path, module = stack.pop()
        while is_compiled(module):
            module = module._orig_mod  # type: ignore[assignment]
        if module in seen:
            continue
        seen.add(module)
        yield path, module
        children = [
            (f"{path}.{name}" if path else name, part)
            for name, part in module._modules.items()
            if part is not None
        ]
        stack += reversed(children)


def layers_of(model: nn.Module) -> list[tuple[str, AttentionLayer]]:
    """Return the attention layers of a model with their paths, in the order of the model."""
    return [(path, part) for path, part in named_modules(model) if isinstance(part, AttentionLayer)]


class Recorder:
    """Observer that stores path, layer and detached observation of each call."""

    def __init__(self, model: nn.Module, keep: Keep) -> None:
        self.keep = keep
        self.calls: list[tuple[str, AttentionLayer, Observation]] = []
        self._names = {id(layer): name for name, layer in layers_of(model)}

    def __call__(self, layer: AttentionLayer, observation: Observation) -> None:
        names = ("output", "queries", "keys", "values", "caught")
        detached = replace(
            observation, **{name: getattr(observation, name).detach() for name in names}
        )
        self.calls.append((self._names[id(layer)], layer, detached))


@contextmanager
def watching(model: nn.Module, observer: Observer | None) -> Iterator[None]:
    """Set the observer of every attention layer, or None; restore the previous ones afterwards."""
    with _with(model, "observer", observer):
        yield


@contextmanager
def editing(model: nn.Module, editor: Editor) -> Iterator[None]:
    """Set the editor of every attention layer; restore the previous ones afterwards."""
    with _with(model, "editor", editor):
        yield


@contextmanager
def _with(model: nn.Module, name: str, value: object) -> Iterator[None]:
    """Set an attribute of every attention layer; restore the previous values afterwards."""
    before = [(layer, getattr(layer, name)) for _, layer in layers_of(model)]
    try:
        for layer, _ in before:
            setattr(layer, name, value)
        yield
    finally:
        for layer, old in before:
            setattr(layer, name, old)
