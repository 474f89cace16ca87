"""What a source of attention calls is, and the sources that there are.

A source is a file of this folder with a `SOURCE`. It says which modules of a model it knows, and
hands on the calls of these; `headloom.trace` asks every source there is, in turn.
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

#: From a call to its output, (batch, heads, queries, value_depth); None: the layer computes it.
Receive = Callable[[LayerCall], Tensor | None]
#: The modules of a model by their paths.
Modules = Mapping[str, nn.Module]
#: Whether the model that runs goes on where a call of it could not be recorded.
Excuse = Callable[[Exception], bool]


def never(error: Exception) -> bool:
    """Excuse nothing."""
    return False


@dataclass(frozen=True)
class Receivers:
    """Where a source sends the calls of a model's layers.

    compute   from a call to its output for a layer to go on with: the session computes the call
    take      a call that its layer has computed itself, with its graph
    excuse    whether the model goes on with its own attention after an error
    aside     a block in which nothing that runs is looked at, as the model's own attention
    """

    compute: Receive
    take: Callable[[LayerCall, AttentionGraph], None]
    excuse: Excuse = never
    aside: Callable[[], AbstractContextManager[object]] = nullcontext


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

    layers   from the modules of a model, by their paths (its own is empty), to those that are such
             layers
    calls    sends every call of a model's layers to `Receivers`, while its block runs, and leaves
             the model as it was. Its second argument: the edges of each query that a layer keeps
             which computes its own graph
    """

    layers: Callable[[Modules], Modules]
    calls: Callable[[Modules, Keep, Receivers], AbstractContextManager[object]]


def all_sources() -> Iterator[Source]:
    """Every source of this folder, in the order of their names."""
    for file in pkgutil.iter_modules(sources.__path__):
        module = importlib.import_module(f"{sources.__name__}.{file.name}")
        source = getattr(module, "SOURCE", None)
        if isinstance(source, Source):
            yield source


def takes_attention(module: nn.Module) -> bool:
    """Whether the name of a module's class says that it takes attention."""
    name = type(module).__name__.lower()
    return "attention" in name or "attn" in name
