"""What a source of attention calls is, and the sources that a model has.

A source is a file of this folder with a `SOURCE`. It says which modules of a model it knows, and
sends the calls of these to the recorder; `headloom.trace` asks every source there is, in turn.
"""

from __future__ import annotations

import importlib
import pkgutil
from collections.abc import Callable, Iterator, Mapping
from contextlib import AbstractContextManager, ExitStack, contextmanager
from dataclasses import dataclass

from torch import Tensor, nn

from headloom.mechanism.graph import AttentionGraph, Keep
from headloom.tracing import sources
from headloom.tracing.recording.layer_call import LayerCall

__all__ = ["Excuse", "Receive", "Receivers", "Source", "attention_layers", "excused", "recorded"]


#: From a call to its output, (batch, heads, queries, value_depth); None: the layer computes it.
Receive = Callable[[LayerCall], Tensor | None]
#: Whether the model that runs goes on where a call of it could not be recorded.
Excuse = Callable[[Exception], bool]


@dataclass(frozen=True)
class Receivers:
    """Where a source sends the calls of a model's layers.

    compute   from a call to its output for a layer to go on with: the recorder computes the call
    take      a call that its layer has computed itself, with its graph
    """

    compute: Receive
    take: Callable[[LayerCall, AttentionGraph], None]


@contextmanager
def excused(excuse: Excuse) -> Iterator[None]:
    """Go on after an error in the block, where it is excused."""
    try:
        yield
    except Exception as error:
        if not excuse(error):
            raise


@dataclass(frozen=True)
class Source:
    """A kind of attention layers whose calls can be recorded.

    layers   from a model to those of its modules that are such layers, by their paths
    calls    sends every call of a model's layers to `Receivers`, while its block runs, and leaves
             the model as it was. Its second argument: the edges of each query that a layer keeps
             which computes its own graph
    """

    layers: Callable[[nn.Module], Mapping[str, nn.Module]]
    calls: Callable[[nn.Module, Keep, Receivers], AbstractContextManager[object]]


def _sources() -> Iterator[Source]:
    """Every source of this folder, in the order of their names."""
    for file in pkgutil.iter_modules(sources.__path__):
        module = importlib.import_module(f"{sources.__name__}.{file.name}")
        source = getattr(module, "SOURCE", None)
        if isinstance(source, Source):
            yield source


def attention_layers(model: nn.Module) -> dict[str, nn.Module]:
    """The modules of a model that some source knows, by their paths."""
    return {path: layer for source in _sources() for path, layer in source.layers(model).items()}


@contextmanager
def recorded(model: nn.Module, keep: Keep, receivers: Receivers) -> Iterator[None]:
    """Send every attention call of a model, from all of its sources, while the block runs."""
    with ExitStack() as stack:
        for source in _sources():
            if source.layers(model):
                stack.enter_context(source.calls(model, keep, receivers))
        yield
