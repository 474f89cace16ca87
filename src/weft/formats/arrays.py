"""Arrays of numbers by their names, from a .npz file; nothing is unpickled."""

from __future__ import annotations

import zipfile
import zlib
from pathlib import Path
from typing import Any

import numpy as np
from numpy.typing import NDArray

from weft.errors import DataError
from weft.formats.files import in_brief, open_file

__all__ = ["Arrays", "read_npz"]

Arrays = dict[str, NDArray[Any]]

#: What NumPy, and what it reads archives with, raise for a damaged one.
_UNREADABLE = (
    OSError, ValueError, KeyError, EOFError, NotImplementedError, MemoryError, zipfile.BadZipFile,
    zlib.error,
)  # fmt: skip


def read_npz(path: Path, what: str = "file of arrays") -> Arrays:
    """The arrays of a .npz file, by their names.

    Args: what: what errors call the file.
    Raises: DataError: no such file, damaged, or an array of objects, which would be unpickled.
    """
    # Opened here: NumPy leaves a file open whose archive is damaged.
    try:
        with open_file(path, what) as file:
            archive = np.load(file, allow_pickle=False)
            if isinstance(archive, np.ndarray):
                raise ValueError("it holds one array without a name, not an archive")
            with archive:
                return {name: archive[name] for name in archive.files}
    except DataError:
        raise
    except _UNREADABLE as error:
        reason = in_brief(error)
        if "pickle" in reason:  # NumPy's own advice is to unpickle it.
            reason = "it is no archive of arrays, or holds Python objects, which are not unpickled"
        raise DataError(
            f"{path}: this file cannot be read as arrays of numbers: {reason}. Write it with "
            "numpy.savez."
        ) from error
