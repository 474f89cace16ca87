"""Whether weights fit into the memory that is free."""

from __future__ import annotations

from pathlib import Path

from weft.errors import InputError

__all__ = ["check_memory"]


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
