"""Writing so that nothing is lost or half-written: a temporary name first, then a rename."""

from __future__ import annotations

import json
import os
import tempfile
from collections.abc import Iterator
from contextlib import contextmanager
from pathlib import Path
from typing import Any

from weft.errors import DataError

__all__ = [
    "MARK",
    "NOT_WRITABLE",
    "atomic_file",
    "disk_errors",
    "read_json",
    "read_text",
    "reason_of",
    "remove_leftovers",
    "sync",
    "write_json",
]

#: What a temporary name begins with, after a dot and the name of the file to be.
MARK = ".weft-part-"
#: What to do where nothing can be made.
NOT_WRITABLE = "Choose a folder that exists and is writable."


def reason_of(error: OSError) -> str:
    """What the system says of an error, in small letters."""
    return (error.strerror or str(error)).lower()


def sync(path: Path) -> None:
    """Wait until a file or a folder is on the disk."""
    descriptor = os.open(path, os.O_RDONLY)
    try:
        os.fsync(descriptor)
    finally:
        os.close(descriptor)


@contextmanager
def disk_errors(path: Path | str, remedy: str = "") -> Iterator[None]:
    """Turn what the system says while `path` is written into one DataError.

    remedy: what can be done; empty: that nothing was changed, and to try again.
    """
    try:
        yield
    except OSError as error:
        if isinstance(error, DataError):
            raise
        said = remedy or (
            "Nothing was changed; free some space or choose another place, and try again."
        )
        raise DataError(f"cannot write {path}: {reason_of(error)}. {said}") from error


@contextmanager
def atomic_file(path: Path | str) -> Iterator[Path]:
    """A temporary path to write to; becomes `path` when the block ends well, else is removed.

    A link stays a link: the file that it leads to is written.

    Raises: DataError: the disk is full, the folder is missing or not writable, or `path` is no
    regular file (a folder, a pipe, a device). What was at `path` before is then untouched.
    """
    given, path = path, Path(os.path.realpath(path))
    if path.exists() and not path.is_file():
        what = "a folder" if path.is_dir() else "a pipe or a device"
        raise DataError(f"cannot write {given}: it is {what}. Give the name of a file.")
    with disk_errors(path, NOT_WRITABLE):
        descriptor, name = tempfile.mkstemp(dir=path.parent, prefix=f".{path.name}{MARK}")
    os.close(descriptor)
    temporary = Path(name)
    try:
        with disk_errors(path):
            yield temporary
            temporary.chmod(0o644)
            sync(temporary)
            temporary.replace(path)
            sync(path.parent)
    finally:
        temporary.unlink(missing_ok=True)


def remove_leftovers(folder: Path) -> None:
    """Remove the temporary files that a killed writer left in a folder (not those below it)."""
    for leftover in folder.glob(f".*{MARK}*"):
        if leftover.is_file():
            leftover.unlink(missing_ok=True)


def write_json(path: Path | str, content: Any) -> None:
    """Write a JSON file, whole or not at all."""
    with atomic_file(path) as temporary:
        temporary.write_text(json.dumps(content, indent=1, ensure_ascii=False) + "\n", "utf-8")


def read_json(path: Path | str, what: str = "file") -> Any:
    """Read a JSON file.

    Args:
        path: where it is.
        what: what the error calls it.

    Raises: DataError: it is missing, not readable or not JSON.
    """
    text = read_text(path, what)
    try:
        return json.loads(text)
    except json.JSONDecodeError as error:
        raise DataError(
            f"{path}: this {what} is damaged: line {error.lineno} is not JSON ({error.msg})."
        ) from error


def read_text(path: Path | str, what: str = "file") -> str:
    """Read a UTF-8 text file.

    Raises: DataError: it is missing, not readable or not UTF-8 (says at which line).
    """
    path = Path(path)
    try:
        content = path.read_bytes()
    except FileNotFoundError:
        raise DataError(f"{path}: no such {what}. Check the path.") from None
    except IsADirectoryError:
        raise DataError(f"{path}: a folder; expected a {what}, which is a file.") from None
    except OSError as error:
        raise DataError(
            f"{path}: cannot read this {what}: {reason_of(error)}. Make it readable, or give "
            "another."
        ) from error
    try:
        # Some editors begin a file with a byte order mark, which is no part of the text.
        return content.decode("utf-8").removeprefix("\ufeff")
    except UnicodeDecodeError as error:
        line = content[: error.start].count(b"\n") + 1
        raise DataError(
            f"{path}: line {line} is not UTF-8 text (byte {error.start} is "
            f"0x{content[error.start]:02x}). Convert the file, as in: iconv -f latin1 -t utf-8."
        ) from None
