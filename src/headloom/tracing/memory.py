"""The memory that is free: whether weights fit into it, and giving it back to the system."""

from __future__ import annotations

import ctypes
import sys
from pathlib import Path

from headloom.errors import InputError

__all__ = ["check_memory", "give_back"]


def check_memory(model: Path, weights: int) -> None:
    """Raise where weights are larger than the memory that is free, as far as the system says.

    Args: model: its folder or file, for the error. weights: bytes.
    Raises: InputError.
    """
    try:
        lines = Path("/proc/meminfo").read_text("ascii").splitlines()
        free = next(int(line.split()[1]) * 1024 for line in lines if line.startswith("MemAvail"))
    except (OSError, StopIteration, ValueError, IndexError):
        return
    if weights > free:
        raise InputError(
            f"{model}: the weights take {weights / 2**30:,.1f} GiB, and {free / 2**30:,.1f} GiB "
            "of memory are free. Trace it on a larger machine, or a smaller model."
        )


def give_back() -> None:
    """Hand free memory back to the system, where the C library (glibc) can.

    By itself it keeps the holes between tensors that stay, too small for the next. Of the inputs of
    12 blocks at 8,192 tokens these were one or two gigabytes; of the caches of 200 steps after
    2,000 tokens of SmolLM2 up to half a gigabyte, in some runs.
    """
    if sys.platform == "linux":
        trim = getattr(ctypes.CDLL(None), "malloc_trim", None)
        if trim is not None:
            trim(0)
