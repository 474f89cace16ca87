"""The modules of a model by their paths, and who watches or edits its attention layers.

`torch.compile` puts what it compiles into a module of its own, whose part `_orig_mod` is the module
as it is written. A model of which some layers were compiled so has the paths of one of which none
were.
"""

from __future__ import annotations

from collections.abc import Iterator
from contextlib import contextmanager
from dataclasses import replace

from torch import nn

from headloom.mechanism.attention_layer import AttentionLayer, Editor, Observation, Observer
from headloom.mechanism.graph import Keep


def is_compiled(module: object) -> bool:
    """Whether something is what torch.compile returns; its class would load the compiler."""
    return type(module).__name__ == "OptimizedModule" and hasattr(module, "_orig_mod")


def named_modules(model: nn.Module) -> Iterator[tuple[str, nn.Module]]:
    """Every module of a model, once, with its path, as `nn.Module.named_modules` gives them."""
    seen: set[nn.Module] = set()
    # Those to come, the next one last.
    waiting: list[tuple[str, nn.Module]] = [("", model)]
    while waiting:
        path, module = waiting.pop()
        while is_compiled(module):
            module = module._orig_mod  # type: ignore[assignment]
        if module in seen:
            continue
        seen.add(module)
        yield path, module
        inner = [
            (f"{path}.{name}" if path else name, part)
            for name, part in module._modules.items()
            if part is not None
        ]
        waiting += reversed(inner)


def layers_of(model: nn.Module) -> list[tuple[str, AttentionLayer]]:
    """The attention layers of a model with their paths, in the order of the model."""
    return [(path, part) for path, part in named_modules(model) if isinstance(part, AttentionLayer)]


class Recorder:
    """An observer that keeps name, layer and observation of each call, cut off from autograd."""

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
    """Let an observer, or nobody, see every attention call of a model; afterwards who did."""
    with _with(model, "observer", observer):
        yield


@contextmanager
def editing(model: nn.Module, editor: Editor) -> Iterator[None]:
    """Let an editor change the output of every attention call; afterwards nobody does."""
    with _with(model, "editor", editor):
        yield


@contextmanager
def _with(model: nn.Module, name: str, value: object) -> Iterator[None]:
    """Set an attribute of every attention layer; afterwards what it was."""
    before = [(layer, getattr(layer, name)) for _, layer in layers_of(model)]
    try:
        for layer, _ in before:
            setattr(layer, name, value)
        yield
    finally:
        for layer, old in before:
            setattr(layer, name, old)
