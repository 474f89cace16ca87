"""Sources of attention calls.

A source is a file of this folder with a `SOURCE`. It selects the modules of a model that it can
record, and sends their calls; `headloom.trace` uses all sources, in turn.
"""

from __future__ import annotations

import importlib
import pkgutil
from collections.abc import Callable, Iterator, Mapping
from contextlib import AbstractContextManager, contextmanager, nullcontext
from dataclasses import dataclass

from torch import Tensor, nn

from headloom.mechanism.graph import AttentionGraph, Keep
from headloom.tracing import sources
from headloom.tracing.recording.layer_call import LayerCall

#: Returns the output of a call, (batch, heads, queries, value_depth); None: the layer computes it.
Receive = Callable[[LayerCall], Tensor | None]
#: Modules of a model by their paths.
Modules = Mapping[str, nn.Module]
#: Returns whether to ignore the error of a call that could not be recorded.
Excuse = Callable[[Exception], bool]


def never(error: Exception) -> bool:
    """Excuse nothing."""
    return False


@dataclass(frozen=True)
class Receivers:
    """Functions to which a source sends the calls of a model's layers.

    compute   computes a call; returns the output for its layer to use
    take      records a call computed by its layer, with its graph
    excuse    whether the model uses its own attention after an error
    aside     a block in which no function is intercepted, as for the model's own attention
    """

    compute: Receive
    take: Callable[[LayerCall, AttentionGraph], None]
    excuse: Excuse = never
    aside: Callable[[], AbstractContextManager[object]] = nullcontext


@contextmanager
def excused(excuse: Excuse) -> Iterator[None]:
    """Ignore an error in the block if it is excused."""
    try:
        yield
    except Exception as error:
        if not excuse(error):
            raise


@dataclass(frozen=True)
class Source:
    """Kind of attention layers whose calls can be recorded.

    layers   selects such layers from the modules of a model, by their paths (the model's is empty)
    calls    sends every call of a model's layers to `Receivers` while its block runs, and leaves
             the model unchanged. Its second argument: the edges of each query, for layers that
             compute their own graph
    """

    layers: Callable[[Modules], Modules]
    calls: Callable[[Modules, Keep, Receivers], AbstractContextManager[object]]


def all_sources() -> Iterator[Source]:
    """Yield every source of this folder, in the order of their names."""
    for file in pkgutil.iter_modules(sources.__path__):
        module = importlib.import_module(f"{sources.__name__}.{file.name}")
        source = getattr(module, "SOURCE", None)
        if isinstance(source, Source):
            yield source


def takes_attention(name: str) -> bool:
    """Return whether the name of a class contains attention."""
    return "attention" in name.lower() or "attn" in name.lower()
