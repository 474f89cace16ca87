"""A model in evaluation mode for a while."""

from __future__ import annotations

from collections.abc import Iterator
from contextlib import contextmanager

from torch import nn

__all__ = ["at_rest"]


@contextmanager
def at_rest(model: nn.Module) -> Iterator[None]:
    """The model in evaluation mode; afterwards each of its modules as it was."""
    before = [(module, module.training) for module in model.modules()]
    try:
        # Not model.eval(): a model may have its own.
        nn.Module.eval(model)
        yield
    finally:
        for module, training in before:
            module.training = training
