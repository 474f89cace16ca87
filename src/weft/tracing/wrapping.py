"""Models in wrappers, as of torch.compile and DataParallel; and one recording at a time."""

from __future__ import annotations

import weakref
from collections.abc import Iterator
from contextlib import contextmanager
from typing import Any

from torch import nn
from torch.nn.parallel import DataParallel, DistributedDataParallel

from weft.errors import InputError

__all__ = ["recording_alone", "unwrapped"]

#: An attribute of each module of a model that is being recorded.
_MARK = "_weft_recording"


def unwrapped(model: Any, what: str) -> nn.Module:
    """The model inside of wrappers, whose weights are the same.

    Args:
        model: any object.
        what: who asks, for the message.

    Raises: InputError: it is no model at all.
    """
    while True:
        if isinstance(model, (DataParallel, DistributedDataParallel)):
            model = model.module
        # What torch.compile returns; its class would load the compiler.
        elif type(model).__name__ == "OptimizedModule" and hasattr(model, "_orig_mod"):
            model = model._orig_mod
        else:
            break
    if isinstance(model, nn.Module):
        return model
    kind = type(model).__name__
    shown = f" {model!r:.60}" if isinstance(model, str) else ""
    raise InputError(
        f"{what}: the model is a {kind}{shown}; expected a torch module. Open it first: "
        "AutoModel.from_pretrained(...) of Transformers, or give its name to `weft trace`."
    )


class _Recording:
    """Stands for one recording of a model, as long as it goes on."""


@contextmanager
def recording_alone(model: nn.Module, operation: str) -> Iterator[None]:
    """Let no other trace or watch of a model, or of a part of it, begin while the block runs.

    Raises: InputError: one goes on, around this one or in another thread.
    """
    recording = _Recording()
    # A copy of the model that is made meanwhile must not be marked for good.
    mark = weakref.ref(recording)
    marked = []
    try:
        for module in model.modules():
            attributes = vars(module)
            there = attributes.setdefault(_MARK, mark)
            if there is not mark and there() is None:
                attributes[_MARK] = there = mark
            if there is not mark:
                raise InputError(
                    f"{operation}: this {type(model).__name__} is being traced or watched already, "
                    "by a block around this call or in another thread. End that first; what the "
                    "model did in a block of weft.watch is in its traces."
                )
            marked.append(module)
        yield
    finally:
        for module in marked:
            vars(module).pop(_MARK, None)
