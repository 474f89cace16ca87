"""The processes and devices that a watched training is on."""

from __future__ import annotations

from collections.abc import Callable
from typing import Any

import torch
from torch import nn

from headloom.errors import InputError

__all__ = ["check_whole", "is_another_process", "wait"]


def wait(model: nn.Module) -> None:
    """Wait for the device of a model, so that time is whose it is."""
    device = next((parameter.device for parameter in model.parameters()), None)
    if device is not None and device.type == "cuda":
        torch.cuda.synchronize(device)


def is_another_process() -> bool:
    """Whether this process is one of several, and not the first."""
    distributed = torch.distributed
    return (
        distributed.is_available() and distributed.is_initialized() and distributed.get_rank() != 0
    )


def check_whole(model: nn.Module) -> None:
    """Raise an InputError where no process has all of a model's parameters."""
    spread: Callable[[Any], bool] = lambda part: (  # noqa: E731 - of both loops
        type(part).__name__ in ("DTensor", "FlatParameter") or hasattr(part, "ds_id")
    )
    names = [type(module).__name__ for module in model.modules()]
    if "FullyShardedDataParallel" in names or any(map(spread, model.parameters())):
        raise InputError(
            "monitor: the parameters of this model are spread over processes (FSDP, ZeRO 3, tensor "
            "parallel), so that none of them can read the model alone. Train with DDP or on one "
            "device."
        )
