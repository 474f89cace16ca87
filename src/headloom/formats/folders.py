"""Atomic writing of folders, with recovery after a killed writer.

A folder is written under a temporary name that holds the process id; if that process is gone, the
next writer of the same folder removes the remains. An existing folder is swapped with the new one
in one step; where the file system cannot swap, by two renames, and if the process is killed
between them, the next writer restores the old folder.
"""

from __future__ import annotations

import ctypes
import errno
import os
import shutil
import sys
from collections.abc import Callable, Iterator
from contextlib import contextmanager, suppress
from pathlib import Path

from filelock import FileLock, Timeout

from headloom.errors import DataError
from headloom.formats.files import (
    NOT_WRITABLE,
    disk_errors,
    is_there,
    keep_mode,
    leftovers,
    sync,
    temporary_path,
)

#: Remedy for a folder whose writing was interrupted.
AGAIN = "Run the command that writes it again: it removes the remains and starts over."

#: Flags of Linux's renameat2: relative to the current folder, and RENAME_EXCHANGE (swap).
_AT_FDCWD, _EXCHANGE = -100, 2


@contextmanager
def atomic_folder(
    path: Path | str, replaceable: Callable[[Path], str | None] | None = None
) -> Iterator[Path]:
    """Yield a temporary folder to fill; it becomes `path` unless the block raises an error.

    Args:
        path: of the new folder; a link to a folder is followed.
        replaceable: returns why the existing `path` must be kept, or None if it may be replaced.
            Without it nothing is replaced.

    Raises: DataError: as for atomic_file, or `path` exists and must be kept.
    """
    path = Path(os.path.realpath(path))
    temporary = temporary_path(path)
    with disk_errors(path, NOT_WRITABLE):
        _recover(path)
        _check_replaceable(path, replaceable)
        temporary.mkdir()
    try:
        with disk_errors(path):
            yield temporary
            keep_mode(path, temporary)
            for file in temporary.rglob("*"):
                sync(file)
            if path.exists():
                # It may have changed while the block ran.
                _check_replaceable(path, replaceable)
                _swap(temporary, path)
            else:
                temporary.rename(path)
            sync(path.parent)
    finally:
        shutil.rmtree(temporary, ignore_errors=True)


@contextmanager
def locked_folder(path: Path | str, purpose: str) -> Iterator[Path]:
    """Lock a folder of results against other processes for the block; create it if it is missing.

    purpose: completes the error "another process ...", as in "traces this corpus".

    Raises: DataError: it cannot be created, or another process holds the lock.
    """
    path = Path(path)
    with disk_errors(path, "Choose another folder."):
        path.mkdir(parents=True, exist_ok=True)
        lock_path = path.absolute().with_name(f".{path.absolute().name}.lock")
        lock = FileLock(lock_path, blocking=False)
        try:
            lock.acquire()
        except Timeout:
            raise DataError(
                f"{path}: another process {purpose}. Wait for it, or choose another folder."
            ) from None
    try:
        yield path
    finally:
        with suppress(OSError):  # of Windows, where it is open
            lock_path.unlink()
        lock.release()


def was_interrupted(path: Path) -> bool:
    """Whether a killed writer of a folder left temporary files beside it."""
    return bool(leftovers(path)) or _old(path).exists()


def check_there(path: Path, what: str) -> None:
    """Raise a DataError if a folder is missing; it says whether its writing was interrupted."""
    if is_there(path, what):
        return
    if was_interrupted(path):
        raise DataError(f"{path}: no such {what}: its writing was interrupted. {AGAIN}")
    raise DataError(f"{path}: no such {what}. Check the path.")


def _old(path: Path) -> Path:
    """Return the temporary place of the old folder while it is replaced."""
    return path.with_name(f".{path.name}.old")


def _recover(path: Path) -> None:
    """Remove the remains of killed writers, and restore a folder that they had moved away."""
    old = _old(path)
    if old.exists() and not path.exists():
        old.rename(path)
    for folder in (old, *leftovers(path)):
        shutil.rmtree(folder, ignore_errors=True)


def _check_replaceable(path: Path, replaceable: Callable[[Path], str | None] | None) -> None:
    if not path.exists():
        return
    if replaceable is None:
        raise DataError(f"{path} exists already. Choose another name, or remove it first.")
    if problem := replaceable(path):
        raise DataError(f"{path} is not overwritten: {problem}. Choose another name.")


def _swap(new: Path, path: Path) -> None:
    """Replace the folder `path` by the folder `new`."""
    if _exchange(new, path):
        return
    old = _old(path)
    path.rename(old)
    try:
        new.rename(path)
    except BaseException:
        old.rename(path)
        raise
    shutil.rmtree(old, ignore_errors=True)


def _exchange(first: Path, second: Path) -> bool:
    """Swap two folders in one step; False: the system or file system does not support it."""
    if sys.platform != "linux":
        return False
    rename = getattr(ctypes.CDLL(None, use_errno=True), "renameat2", None)
    if rename is None:
        return False
    places = (_AT_FDCWD, os.fsencode(first), _AT_FDCWD, os.fsencode(second))
    if rename(*places, _EXCHANGE) == 0:
        return True
    number = ctypes.get_errno()
    if number in (errno.ENOSYS, errno.EINVAL, errno.ENOTSUP):
        return False
    raise OSError(number, os.strerror(number))
