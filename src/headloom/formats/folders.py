"""Writing a folder so that it is there whole or not at all, and what a kill leaves is put right.

While it is written, a folder has a temporary name, which tells the process that writes it: where
that is gone, the next writer of the same folder removes what it left. A folder that is replaced
changes places with the new one in one step; where the file system cannot do that, by two renames,
and what a kill between them leaves is put back by the next writer.
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

#: The remedy for a folder whose writing was stopped.
AGAIN = "Give the command that writes it again: it removes what is left, and begins anew."

#: Of Linux: to rename within the current folder, and to let two names change places.
_AT_FDCWD, _EXCHANGE = -100, 2


@contextmanager
def atomic_folder(
    path: Path | str, replaceable: Callable[[Path], str | None] | None = None
) -> Iterator[Path]:
    """A temporary folder to fill; becomes `path` when the block ends well, else is removed.

    Args:
        path: the folder to be; a link to a folder stands for that folder.
        replaceable: says of what is at `path` why it must stay, or None where it may be replaced.
            Without it nothing is replaced.

    Raises: DataError: as for atomic_file, or `path` exists and must stay.
    """
    path = Path(os.path.realpath(path))
    temporary = temporary_path(path)
    with disk_errors(path, NOT_WRITABLE):
        _put_right(path)
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
def own_folder(path: Path | str, purpose: str) -> Iterator[Path]:
    """A folder of many results, made where there is none, and no other process's meanwhile.

    purpose: what the error says another process does there, as "traces this corpus".

    Raises: DataError: it cannot be made, or another process has it.
    """
    path = Path(path)
    with disk_errors(path, "Choose another folder."):
        path.mkdir(parents=True, exist_ok=True)
        beside = path.absolute().with_name(f".{path.absolute().name}.lock")
        lock = FileLock(beside, blocking=False)
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
            beside.unlink()
        lock.release()


def was_interrupted(path: Path) -> bool:
    """Whether a writer of a folder was killed and left something beside it."""
    return bool(leftovers(path)) or _old(path).exists()


def check_there(path: Path, what: str) -> None:
    """Raise a DataError where a folder is missing; it says so where its writing was stopped."""
    if is_there(path, what):
        return
    if was_interrupted(path):
        raise DataError(f"{path}: no such {what}: its writing was interrupted. {AGAIN}")
    raise DataError(f"{path}: no such {what}. Check the path.")


def _old(path: Path) -> Path:
    """Where a folder is for the moment in which another takes its place."""
    return path.with_name(f".{path.name}.old")


def _put_right(path: Path) -> None:
    """Remove what killed writers of a folder left, and put back what they had moved away."""
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
    """Put a folder in the place of another; the other then has the name of the new one."""
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


def _exchange(one: Path, other: Path) -> bool:
    """Let two folders change places in one step; False: this system or file system cannot."""
    if sys.platform != "linux":
        return False
    rename = getattr(ctypes.CDLL(None, use_errno=True), "renameat2", None)
    if rename is None:
        return False
    places = (_AT_FDCWD, os.fsencode(one), _AT_FDCWD, os.fsencode(other))
    if rename(*places, _EXCHANGE) == 0:
        return True
    number = ctypes.get_errno()
    if number in (errno.ENOSYS, errno.EINVAL, errno.ENOTSUP):
        return False
    raise OSError(number, os.strerror(number))
