"""Writing a folder so that it is there whole or not at all, and what a kill leaves is put right.

While it is written, a folder has a temporary name and a lock, which the system takes back when the
process ends, however it ends: a folder of such a name without a lock was left by a kill, and the
next writer of the same folder removes it. A folder that is replaced changes places with the new one
in one step; where the file system cannot do that, by two renames, and what a kill between them
leaves is put back by the next writer.
"""

from __future__ import annotations

import ctypes
import errno
import os
import shutil
import sys
import tempfile
from collections.abc import Callable, Iterator
from contextlib import contextmanager
from pathlib import Path

from headloom.errors import DataError
from headloom.formats.files import (
    MARK,
    NOT_WRITABLE,
    disk_errors,
    is_there,
    keep_mode,
    reason_of,
    sync,
    unused,
)
from headloom.formats.locks import FOLDERS, lock, open_folder

__all__ = [
    "AGAIN",
    "Leftovers",
    "atomic_folder",
    "check_there",
    "own_folder",
]

#: The remedy for a folder whose writing was stopped.
AGAIN = "Give the command that writes it again: it removes what is left, and begins anew."

_OLD = ".old."
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
    with disk_errors(path, NOT_WRITABLE):
        _put_right(path)
        _check_replaceable(path, replaceable)
        temporary, locked = _locked_folder(path)
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
        if locked is not None:
            os.close(locked)


def _locked_folder(path: Path) -> tuple[Path, int | None]:
    """A new temporary folder for a path, and the descriptor that holds its lock, if it has one."""
    while True:
        _, temporary = unused(path.with_name(f".{path.name}{MARK}"), Path.mkdir)
        locked = _lock(temporary)
        # Another writer may have taken it for a leftover before it was locked.
        if temporary.exists():
            return temporary, locked
        if locked is not None:
            os.close(locked)


def _lock(folder: Path) -> int | None:
    """The descriptor of a folder with its lock; None: another process has it, or it is gone."""
    try:
        descriptor = open_folder(folder)
    except (FileNotFoundError, NotADirectoryError):
        return None
    if descriptor is None:
        return None
    try:
        lock(descriptor)
    except BlockingIOError:
        os.close(descriptor)
        return None
    except OSError:
        # A file system without locks: leftovers stay there, as if they were being written.
        os.close(descriptor)
        return None
    return descriptor


@contextmanager
def own_folder(path: Path | str, purpose: str) -> Iterator[Path]:
    """A folder of many results, made where there is none, and no other process's meanwhile.

    purpose: what the error says another process does there, as "traces this corpus".

    Raises: DataError: it cannot be made, or another process has it.
    """
    path = Path(path)
    with disk_errors(path, "Choose another folder."):
        path.mkdir(parents=True, exist_ok=True)
        descriptor = open_folder(path)
    if descriptor is None:
        yield path
        return
    try:
        lock(descriptor)
    except BlockingIOError:
        os.close(descriptor)
        raise DataError(
            f"{path}: another process {purpose}. Wait for it, or choose another folder."
        ) from None
    except OSError:
        pass  # a file system without locks
    try:
        yield path
    finally:
        os.close(descriptor)


class Leftovers:
    """What writers of a folder have left beside it.

    parts    folders that were begun
    old      what was there before, where a kill came between two renames
    written  whether a process is writing it now
    """

    def __init__(self, path: Path | str) -> None:
        path = Path(os.path.realpath(path))
        self.parts: list[Path] = []
        self.old: list[Path] = []
        self.written = False
        try:
            beside = sorted(path.parent.iterdir())
        except OSError:
            return
        for folder in beside:
            if folder.name.startswith(f".{path.name}{MARK}") and folder.is_dir():
                locked = _lock(folder)
                if locked is None:
                    self.written = True
                else:
                    os.close(locked)
                    self.parts.append(folder)
            elif folder.name.startswith(f".{path.name}{_OLD}") and folder.is_dir():
                self.old.append(folder)


def check_there(path: Path, what: str) -> None:
    """Raise a DataError where a folder is missing, with what a writer left beside it."""
    if is_there(path, what):
        return
    left = Leftovers(path)
    why = ". Check the path."
    if left.written:
        why = ": it is being written. Wait for that to end."
    elif left.old:
        why = (
            f": a kill came while it was replaced. What was there is {left.old[0].name}; give the "
            "same command again: it puts that back first."
        )
    elif left.parts:
        why = f": its writing was interrupted, and left {left.parts[0].name}. {AGAIN}"
    raise DataError(f"{path}: no such {what}{why}")


def _put_right(path: Path) -> None:
    """Remove what killed writers of a folder left, and put back what they had moved away."""
    found = Leftovers(path)
    if found.written:
        return
    for old in found.old:
        if not path.exists() and any(old.iterdir()):
            old.rename(path)
        else:
            shutil.rmtree(old, ignore_errors=True)
    for part in found.parts:
        shutil.rmtree(part, ignore_errors=True)


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


def _check_replaceable(path: Path, replaceable: Callable[[Path], str | None] | None) -> None:
    if not path.exists():
        return
    if replaceable is None:
        raise DataError(f"{path} exists already. Choose another name, or remove it first.")
    problem = replaceable(path)
    if problem:
        raise DataError(f"{path} is not overwritten: {problem}. Choose another name.")


def _swap(new: Path, path: Path) -> None:
    """Put a folder in the place of another, which is removed; on any error it is put back."""
    if _exchange(new, path):
        _remove_old(new, path)
        return
    old = Path(tempfile.mkdtemp(dir=path.parent, prefix=f".{path.name}{_OLD}"))
    if not FOLDERS:  # Windows renames onto nothing that is there
        old.rmdir()
    try:
        # A rename onto an empty folder replaces it.
        path.rename(old)
    except BaseException:
        if old.exists():
            old.rmdir()
        raise
    try:
        new.rename(path)
    except BaseException as error:
        try:
            old.rename(path)
        except OSError as second:
            raise DataError(
                f"cannot write {path}: {reason_of(second)}. What was there is now {old}; rename it."
            ) from error
        raise
    _remove_old(old, path)


def _remove_old(old: Path, path: Path) -> None:
    try:
        shutil.rmtree(old)
    except OSError as error:
        raise DataError(
            f"{path} is written, but what was there before could not be removed "
            f"({reason_of(error)}): remove {old}."
        ) from error
