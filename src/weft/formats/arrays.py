"""Arrays of numbers by their names, from a .npz file; nothing is unpickled."""

from __future__ import annotations

from pathlib import Path
from typing import Any

import numpy as np
from numpy.typing import NDArray

from weft.formats.stored_arrays import archived_arrays

__all__ = ["Arrays", "read_npz"]

Arrays = dict[str, NDArray[Any]]


def read_npz(path: Path, what: str = "file of arrays") -> Arrays:
    """The arrays of a .npz file, by their names.

    Args: what: what errors call the file.
    Raises: DataError: no such file, damaged, or an array of objects, which would be unpickled.
    """
    return {array.name: np.asarray(array.read()) for array in archived_arrays(path, what)}
