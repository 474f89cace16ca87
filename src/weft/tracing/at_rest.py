"""A model in evaluation mode, and not compiled, for a while."""

from __future__ import annotations

from collections.abc import Iterator
from contextlib import contextmanager

from torch import nn

__all__ = ["at_rest"]


@contextmanager
def at_rest(model: nn.Module) -> Iterator[None]:
    """The model in evaluation mode; afterwards each of its modules as it was.

    What is compiled in place runs as it is written: compiled code calls no attention function that
    came after it.
    """
    before = [(module, module.training) for module in model.modules()]
    compiled = [
        (module, module._compiled_call_impl)
        for module in model.modules()
        if module._compiled_call_impl is not None
    ]
    try:
        # Not model.eval(): a model may have its own.
        nn.Module.eval(model)
        for module, _ in compiled:
            module._compiled_call_impl = None
        yield
    finally:
        for module, training in before:
            module.training = training
        for module, call in compiled:
            module._compiled_call_impl = call
