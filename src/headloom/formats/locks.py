"""Locks that the system takes back when a process ends, and folders that can be opened to have one.

Windows has such locks for files alone, and nobody else can read or rename a file that has one: what
is written there (`headloom.formats.files`, `folders`) has no lock, as on a file system without
locks, and only a run that is being trained has its own.
"""

from __future__ import annotations

import os
import sys
from pathlib import Path

__all__ = ["FOLDERS", "lock", "open_folder"]

#: Whether a folder can be opened, so as to lock it or to wait until it is on the disk.
FOLDERS = hasattr(os, "O_DIRECTORY")

if sys.platform == "win32":
    import msvcrt
else:
    import fcntl


def lock(descriptor: int) -> None:
    """Lock an open file or folder. Raises: BlockingIOError: somebody has its lock; OSError."""
    if sys.platform == "win32":
        try:
            msvcrt.locking(descriptor, msvcrt.LK_NBLCK, 1)
        except PermissionError as error:
            raise BlockingIOError(error.errno, "somebody has its lock") from None
    else:
        fcntl.flock(descriptor, fcntl.LOCK_EX | fcntl.LOCK_NB)


def open_folder(path: Path) -> int | None:
    """The descriptor of a folder; None where folders cannot be opened. Raises: OSError."""
    if not FOLDERS:
        return None
    return os.open(path, os.O_RDONLY | os.O_DIRECTORY)
