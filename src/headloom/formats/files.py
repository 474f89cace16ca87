"""Atomic writing of files (a temporary name, then a rename), and reading with clear errors."""

from __future__ import annotations

import gzip
import hashlib
import json
import math
import os
import platform
import secrets
import stat
import zlib
from collections.abc import Iterator, Mapping
from contextlib import contextmanager, suppress
from pathlib import Path
from typing import Any, BinaryIO, cast

from headloom.errors import DataError, InputError

#: A JSON object; and a read-only one.
JsonObject = dict[str, Any]
JsonMapping = Mapping[str, Any]

#: Part of every temporary name, after a dot and the name of the target file.
MARK = ".headloom-part-"
#: Remedy where a folder is missing or not writable.
NOT_WRITABLE = "Choose a folder that exists and is writable."
#: File descriptors opened by the shell, as in ``headloom train <(echo ...)``.
_SHELL_FILES = ("/dev/fd/", "/dev/stdin", "/proc/self/fd/")


def reason_of(error: OSError) -> str:
    """Return the system's reason for an error, worded to stand within a sentence.

    >>> reason_of(PermissionError(13, "Permission denied"))
    'permission denied'
    """
    reason = error.strerror or str(error)
    return reason[:1].lower() + reason[1:]


def in_brief(error: Exception) -> str:
    r"""Return a library's error message on one line, or the name of the error where it is empty.

    >>> in_brief(ValueError("no magic\nbytes.")), in_brief(MemoryError())
    ('no magic bytes', 'MemoryError')
    """
    return " ".join(str(error).split())[:160].rstrip(".") or type(error).__name__


def sync(path: Path) -> None:
    """Wait until a file or a folder is on the disk."""
    windows = os.name == "nt"  # fsync works there only for files open for writing
    if windows and path.is_dir():
        return
    descriptor = os.open(path, os.O_RDWR if windows else os.O_RDONLY)
    try:
        os.fsync(descriptor)
    finally:
        os.close(descriptor)


@contextmanager
def disk_errors(path: Path | str, remedy: str = "") -> Iterator[None]:
    """Turn the system's errors while `path` is written into one DataError.

    remedy: the last sentence of the message; empty: nothing was changed, try again.
    """
    try:
        yield
    except DataError:
        raise
    except OSError as error:
        remedy = remedy or (
            "Nothing was changed; free some space or choose another place, and try again."
        )
        raise DataError(f"cannot write {path}: {reason_of(error)}. {remedy}") from error


def temporary_path(path: Path) -> Path:
    """Return a new temporary path beside `path`; its name holds the host and the process id."""
    owner = f"{platform.node()[:40]}-{os.getpid()}"
    return path.with_name(f".{path.name[:40]}{MARK}{owner}-{secrets.token_hex(4)}")


def leftovers(path: Path) -> list[Path]:
    """Return the temporary files and folders that killed writers of `path` left beside it."""
    start = f".{path.name[:40]}{MARK}"
    try:
        beside = sorted(p for p in path.parent.iterdir() if p.name.startswith(start))
    except OSError:  # a folder may be writable, but not readable
        return []
    return [p for p in beside if not _has_live_writer(p.name)]


def _has_live_writer(name: str) -> bool:
    """Whether the process in a temporary name may still run; on another machine: assumed so."""
    host, _, rest = name.partition(MARK)[2].rpartition("-")[0].rpartition("-")
    if os.name == "nt" or host != platform.node()[:40] or not rest.isdecimal():
        return host != ""
    try:
        os.kill(int(rest), 0)
    except ProcessLookupError:
        return False
    except OSError:  # it runs, as another user
        pass
    return True


def remove_leftovers(folder: Path) -> None:
    """Remove the temporary files directly in a folder that no other process writes."""
    for leftover in folder.glob(f".*{MARK}*"):
        if leftover.is_file():
            leftover.unlink(missing_ok=True)


@contextmanager
def atomic_file(path: Path | str, remedy: str = "") -> Iterator[Path]:
    """Yield a temporary path to write to; it replaces `path` unless the block raises an error.

    A symbolic link is followed: its target is written. Permissions are kept.

    remedy: see `disk_errors`.

    Raises: DataError: the disk is full, the folder is missing or not writable, or `path` is no
    regular file (a folder, a pipe, a device). An existing file at `path` is then unchanged.
    """
    path = Path(os.path.realpath(path))
    temporary = temporary_path(path)
    with disk_errors(path, NOT_WRITABLE):
        if path.exists() and not path.is_file():
            what = "a folder" if path.is_dir() else "a pipe or a device"
            raise DataError(f"cannot write {path}: it is {what}. Give the name of a file.")
        for leftover in leftovers(path):
            leftover.unlink(missing_ok=True)
        temporary.touch(exist_ok=False)
    try:
        with disk_errors(path, remedy):
            yield temporary
            keep_mode(path, temporary)
            sync(temporary)
            temporary.replace(path)
            sync(path.parent)
    finally:
        temporary.unlink(missing_ok=True)


def keep_mode(path: Path, new: Path) -> None:
    """Copy the permissions of `path`, if it exists, to the file that will replace it."""
    with suppress(FileNotFoundError):
        new.chmod(stat.S_IMODE(path.stat().st_mode))


def write_json(path: Path | str, content: object) -> None:
    """Write a JSON file atomically."""
    with atomic_file(path) as temporary:
        temporary.write_text(json.dumps(content, indent=1, ensure_ascii=False) + "\n", "utf-8")


def finite(value: Any) -> Any:
    """Replace NaN and infinity by None, at any depth, for JSON.

    >>> finite([{"a": 1.5, "b": float("nan")}])
    [{'a': 1.5, 'b': None}]
    """
    if isinstance(value, float):
        return value if math.isfinite(value) else None
    if isinstance(value, dict):
        return {name: finite(part) for name, part in value.items()}
    return [finite(part) for part in value] if isinstance(value, list | tuple) else value


def open_file(path: Path | str, what: str = "file") -> BinaryIO:
    """Open a regular file for reading; a pipe, which could block, is refused.

    Args:
        path: of the file; a link is followed.
        what: name of such a file in errors.

    Raises: DataError: it is missing, not a regular file, or not readable.
    """
    if not is_there(path, what):
        raise DataError(f"{path}: no such {what}. Check the path.")
    mode = Path(path).stat().st_mode
    if not stat.S_ISREG(mode) and not str(path).startswith(_SHELL_FILES):
        kind = "a folder" if stat.S_ISDIR(mode) else "a pipe, a socket or a device"
        article = "" if what.endswith("file") else ", which is a file"
        raise DataError(f"{path}: {kind}; expected a {what}{article}.")
    try:
        return Path(path).open("rb")
    except OSError as error:
        raise cannot_read(path, what, error) from error


def cannot_read(path: Path | str, what: str, error: OSError) -> DataError:
    """Return the error for an existing file or folder that cannot be read."""
    return DataError(
        f"{path}: cannot read this {what}: {reason_of(error)}. Make it readable, or give another."
    )


@contextmanager
def reading(path: Path | str, what: str, damage: str, remedy: str) -> Iterator[None]:
    """Turn a library's errors on reading a file into one DataError.

    A system error gives its reason; others give `damage`, the library's message and `remedy`.
    """
    try:
        yield
    except (DataError, UnicodeEncodeError):  # the latter from its path, not from its content
        raise
    except Exception as error:
        if isinstance(error, OSError) and error.errno is not None:
            raise cannot_read(path, what, error) from error
        raise DataError(f"{damage}: {in_brief(error)}. {remedy}") from error


def check_file(path: Path | str, what: str = "file") -> None:
    """Raise the errors of `open_file`, before a library opens the file by its name."""
    open_file(path, what).close()


def is_there(path: Path | str, what: str = "file") -> bool:
    """Whether a path exists; False for a broken link.

    Raises: DataError: the path cannot be examined.
    """
    try:
        Path(path).stat()
    except (FileNotFoundError, NotADirectoryError, ValueError):  # ValueError: a null character
        return False
    except OSError as error:
        raise cannot_read(path, what, error) from error
    return True


@contextmanager
def unpacked(path: Path | str, what: str) -> Iterator[BinaryIO]:
    """Open a file for reading in the block; a name ending in .gz is decompressed."""
    with open_file(path, what) as file:
        packed = str(path).endswith(".gz")
        try:
            yield cast(BinaryIO, gzip.GzipFile(fileobj=file)) if packed else file
        except (gzip.BadGzipFile, EOFError, zlib.error) as error:
            raise DataError(
                f"{path}: damaged, or not compressed by gzip: {error}. Compress it again."
            ) from None
        except DataError:
            raise
        except OSError as error:
            raise cannot_read(path, what, error) from error


def file_digest(path: Path) -> str:
    """Return the SHA-256 of a file, in hexadecimal."""
    with path.open("rb") as file:
        return hashlib.file_digest(file, "sha256").hexdigest()


def read_json(path: Path | str, what: str = "file") -> Any:
    """Read a JSON file; `what` names it in errors.

    Raises: DataError: it is missing, not readable or not JSON.
    """
    return parse_json(read_text(path, what), path, what)


def parse_json(text: str, path: Path | str, what: str) -> Any:
    """Parse a JSON text. Raises: DataError: it is not JSON, or nested too deeply."""
    try:
        return json.loads(text)
    except json.JSONDecodeError as error:
        reason = f"line {error.lineno} is not JSON ({error.msg})"
    except (RecursionError, ValueError) as error:
        reason = in_brief(error)
    raise DataError(f"{path}: this {what} is damaged: {reason}. Correct it, or put a copy back.")


def read_text(path: Path | str, what: str = "file") -> str:
    """Read a UTF-8 text file; a name ending in .gz is decompressed.

    Raises: DataError: it is missing, not readable or not UTF-8 (with the line number).
    """
    try:
        with unpacked(path, what) as file:
            content = file.read()
    except MemoryError:
        raise DataError(f"{path}: this {what} is larger than the memory that is free.") from None
    try:
        return content.decode("utf-8").removeprefix("\ufeff")
    except UnicodeDecodeError as error:
        line = content[: error.start].count(b"\n") + 1
        raise DataError(f"{path}: {not_utf8(content, line)}") from None


def not_utf8(content: bytes, line: int) -> str:
    """Return the error message for content that is not UTF-8 text, with the remedy."""
    encoding = "utf-16" if content.startswith((b"\xff\xfe", b"\xfe\xff")) else "latin1"
    return f"line {line} is not UTF-8 text. Convert it, as in: iconv -f {encoding} -t utf-8."


def text_lines(text: str) -> list[str]:
    r"""Split a text into lines as `decoded_lines` does; str.splitlines splits at more characters.

    >>> text_lines("a\u2028b\x0cc\r\nd\n"), text_lines("")
    (['a\u2028b\x0cc', 'd'], [])
    """
    lines = text.removesuffix("\n").split("\n") if text else []
    return [line.removesuffix("\r") for line in lines]


def decoded_lines(file: BinaryIO, name: str) -> Iterator[str]:
    """Decode a file's lines, split at line feeds only, as other programs count them.

    A carriage return before the line feed and a leading byte order mark are removed. The file is
    read lazily.

    Raises: InputError: a line is not UTF-8; the lines before it are yielded first.
    """
    for number, content in enumerate(file, 1):
        try:
            line = content.decode("utf-8")
        except UnicodeDecodeError:
            raise InputError(f"{name}: {not_utf8(content, number)}") from None
        if number == 1:
            line = line.removeprefix("\ufeff")
        yield line.removesuffix("\n").removesuffix("\r")


def file_lines(path: Path) -> Iterator[str]:
    """Yield the lines of a text file; a name ending in .gz is decompressed.

    Raises: DataError: it is missing, not readable or damaged; InputError: not UTF-8.
    """
    with unpacked(path, "text file") as file:
        yield from decoded_lines(file, str(path))
