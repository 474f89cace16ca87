"""Models in wrappers: what torch.compile and DataParallel put around a model."""

from __future__ import annotations

from typing import Any

from torch import nn
from torch.nn.parallel import DataParallel, DistributedDataParallel

from weft.errors import InputError

__all__ = ["unwrapped"]


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
