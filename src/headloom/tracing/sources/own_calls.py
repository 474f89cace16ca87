"""Modules of Transformers that call torch's attention functions by themselves, past its interface.

As the vision encoder of SAM, which adds its positions to the scores, and poolings of images, which
are an `nn.MultiheadAttention`.
"""

from __future__ import annotations

import importlib
import inspect
import threading
from collections.abc import Callable, Iterator
from contextlib import ExitStack, contextmanager
from typing import Any

import torch
from torch import nn

from headloom.mechanism.graph import Top
from headloom.mechanism.module_paths import named_modules
from headloom.tracing.sources.provenance import Provenance
from headloom.tracing.sources.source import Receive, Receivers
from headloom.tracing.sources.torch_functions import AttentionCalls

__all__ = ["ATTENTION_FUNCTIONS", "calling_modules", "own_calls"]

#: Functions of torch that take attention, as the code of a module names them.
ATTENTION_FUNCTIONS = (
    "scaled_dot_product_attention",
    "multi_head_attention_forward",
    "flex_attention",
)


def calling_modules(
    model: nn.Module, names: tuple[str, ...] = ATTENTION_FUNCTIONS
) -> dict[str, nn.Module]:
    """The modules of a model of Transformers, by paths, whose own code names one of some functions.

    Not that of its base class, which looks implementations up for every model.
    """
    common = set(importlib.import_module("transformers.modeling_utils").PreTrainedModel.__mro__)
    known: dict[type, bool] = {}
    modules = {}
    for path, module in named_modules(model):
        kind = type(module)
        if kind not in known:
            own = (one for one in kind.__mro__ if one not in common)
            known[kind] = any(_names_one_of(one, names) for one in own)
        if known[kind]:
            modules[path] = module
    return modules


def _names_one_of(kind: type, names: tuple[str, ...]) -> bool:
    """Whether a method of a class, itself or under its decorators, names one of some functions."""
    methods = [inspect.unwrap(value) for value in vars(kind).values() if inspect.isfunction(value)]
    return any(name in method.__code__.co_names for method in methods for name in names)


class _Running(threading.local):
    """Which of the modules runs in a thread: what `AttentionCalls` asks."""

    def __init__(self) -> None:
        self.paths: list[str] = []
        self.provenance = Provenance()

    def where(self) -> str | None:
        """The path of the innermost one."""
        return self.paths[-1] if self.paths else None

    def note(self, func: Any, args: tuple[Any, ...], kwargs: dict[str, Any], result: Any) -> None:
        """Nothing: an `AttentionNotice` sees other functions by itself."""


class _RefusedError(Exception):
    """A call cannot be recorded."""


class _OwnCalls(AttentionCalls):
    """Calls of attention that no other mode sees; one that cannot be recorded is as without."""

    def __torch_function__(
        self, func: Any, types: Any, args: tuple[Any, ...] = (), kwargs: Any = None
    ) -> Any:
        """See AttentionCalls."""
        if getattr(func, "__name__", "") not in ATTENTION_FUNCTIONS:
            return super().__torch_function__(func, types, args, kwargs)
        try:
            with torch._C.DisableTorchFunction():
                return super().__torch_function__(func, types, args, kwargs)
        except _RefusedError:
            return func(*args, **(kwargs or {}))

    def _refuse(self, path: str, reason: str) -> None:
        raise _RefusedError(reason)


@contextmanager
def own_calls(model: nn.Module, receive: Receive, active: Callable[[], bool]) -> Iterator[None]:
    """Send the calls of torch's attention functions in a model to `receive`, in the block.

    Only while a module runs whose code names such a function: a step of a generation in which none
    does is as fast as without.

    Args: receive: from a call to its output. active: whether calls are to be sent now.
    """
    running = _Running()
    calls: Any = _OwnCalls(running, Receivers(receive, lambda call, graph: None), Top(0))

    def begin(path: str) -> None:
        if active():
            if not running.paths:
                calls.__enter__()
            running.paths.append(path)

    def end(path: str) -> None:
        if running.paths[-1:] == [path]:
            running.paths.pop()
            if not running.paths:
                calls.__exit__(None, None, None)

    with ExitStack() as stack:
        for path, module in calling_modules(model).items():
            hooks = (
                module.register_forward_pre_hook(lambda *_, path=path: begin(path)),
                module.register_forward_hook(lambda *_, path=path: end(path), always_call=True),
            )
            for hook in hooks:
                stack.callback(hook.remove)
        yield
