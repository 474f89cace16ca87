"""Files: written whole or not at all, by a temporary name and a rename; read by one door."""

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

#: An object of JSON, to be written or as it was read; and one that is only read.
JsonObject = dict[str, Any]
JsonMapping = Mapping[str, Any]

#: In every temporary name, after a dot and the name of the file to be.
MARK = ".headloom-part-"
#: What to do where nothing can be made.
NOT_WRITABLE = "Choose a folder that exists and is writable."
#: Where the shell hands over what it has opened, as in ``headloom train <(echo ...)``.
_HANDED_OVER = ("/dev/fd/", "/dev/stdin", "/proc/self/fd/")


def reason_of(error: OSError) -> str:
    """What the system says of an error, to stand within a sentence.

    >>> reason_of(PermissionError(13, "Permission denied"))
    'permission denied'
    """
    reason = error.strerror or str(error)
    return reason[:1].lower() + reason[1:]


def in_brief(error: Exception) -> str:
    r"""What a library says of what it cannot read, on one line; at least the name of its error.

    >>> in_brief(ValueError("no magic\nbytes.")), in_brief(MemoryError())
    ('no magic bytes', 'MemoryError')
    """
    return " ".join(str(error).split())[:160].rstrip(".") or type(error).__name__


def sync(path: Path) -> None:
    """Wait until a file or a folder is on the disk."""
    windows = os.name == "nt"  # which waits only for files, and those that are open for writing
    if windows and path.is_dir():
        return
    descriptor = os.open(path, os.O_RDWR if windows else os.O_RDONLY)
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
    except DataError:
        raise
    except OSError as error:
        remedy = remedy or (
            "Nothing was changed; free some space or choose another place, and try again."
        )
        raise DataError(f"cannot write {path}: {reason_of(error)}. {remedy}") from error


def temporary_path(path: Path) -> Path:
    """A new name beside a path to write under; it tells which process writes."""
    owner = f"{platform.node()[:40]}-{os.getpid()}"
    return path.with_name(f".{path.name[:40]}{MARK}{owner}-{secrets.token_hex(4)}")


def leftovers(path: Path) -> list[Path]:
    """What writers of a path that were killed left beside it: files and folders."""
    try:
        beside = sorted(path.parent.iterdir())
    except OSError:  # a folder may be written to, and not listed
        return []
    start = f".{path.name[:40]}{MARK}"
    return [each for each in beside if each.name.startswith(start) and not _is_written(each.name)]


def _is_written(name: str) -> bool:
    """Whether the process that chose a temporary name may live; those of other machines may."""
    host, _, rest = name.partition(MARK)[2].rpartition("-")[0].rpartition("-")
    if os.name == "nt" or host != platform.node()[:40] or not rest.isdecimal():
        return host != ""
    try:
        os.kill(int(rest), 0)
    except ProcessLookupError:
        return False
    except OSError:  # it lives, and is somebody else's
        pass
    return True


def remove_leftovers(folder: Path) -> None:
    """Remove the temporary files of a folder that nobody else writes (not those below it)."""
    for leftover in folder.glob(f".*{MARK}*"):
        if leftover.is_file():
            leftover.unlink(missing_ok=True)


@contextmanager
def atomic_file(path: Path | str, remedy: str = "") -> Iterator[Path]:
    """A temporary path to write to; becomes `path` when the block ends well, else is removed.

    A link stays a link: the file that it leads to is written. Its rights stay, too.

    remedy: see `disk_errors`.

    Raises: DataError: the disk is full, the folder is missing or not writable, or `path` is no
    regular file (a folder, a pipe, a device). What was at `path` before is then untouched.
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
    """Give what is to stand at a path the rights of what stands there, if anything does."""
    with suppress(FileNotFoundError):
        new.chmod(stat.S_IMODE(path.stat().st_mode))


def write_json(path: Path | str, content: object) -> None:
    """Write a JSON file, whole or not at all."""
    with atomic_file(path) as temporary:
        temporary.write_text(json.dumps(content, indent=1, ensure_ascii=False) + "\n", "utf-8")


def finite(value: Any) -> Any:
    """A value for JSON: null instead of NaN and infinity, at any depth.

    >>> finite([{"a": 1.5, "b": float("nan")}])
    [{'a': 1.5, 'b': None}]
    """
    if isinstance(value, float):
        return value if math.isfinite(value) else None
    if isinstance(value, dict):
        return {name: finite(part) for name, part in value.items()}
    return [finite(part) for part in value] if isinstance(value, list | tuple) else value


def open_file(path: Path | str, what: str = "file") -> BinaryIO:
    """Open a regular file for reading; never waits, as opening a pipe would.

    Args:
        path: where it is; a link is followed.
        what: what the error calls it.

    Raises: DataError: it is missing, no file, or not readable; each by its name.
    """
    if not is_there(path, what):
        raise DataError(f"{path}: no such {what}. Check the path.")
    mode = Path(path).stat().st_mode
    if not stat.S_ISREG(mode) and not str(path).startswith(_HANDED_OVER):
        kind = "a folder" if stat.S_ISDIR(mode) else "a pipe, a socket or a device"
        article = "" if what.endswith("file") else ", which is a file"
        raise DataError(f"{path}: {kind}; expected a {what}{article}.")
    try:
        return Path(path).open("rb")
    except OSError as error:
        raise cannot_read(path, what, error) from error


def cannot_read(path: Path | str, what: str, error: OSError) -> DataError:
    """The error for a file or folder that is there, and that the system does not let us read."""
    return DataError(
        f"{path}: cannot read this {what}: {reason_of(error)}. Make it readable, or give another."
    )


@contextmanager
def reading(path: Path | str, what: str, damage: str, remedy: str) -> Iterator[None]:
    """Turn what a library says of a file that it cannot read into one DataError.

    The system's own word comes first; else damage, what the library says, and the remedy.
    """
    try:
        yield
    except (DataError, UnicodeEncodeError):  # the latter of its path, not of what it holds
        raise
    except Exception as error:
        if isinstance(error, OSError) and error.errno is not None:
            raise cannot_read(path, what, error) from error
        raise DataError(f"{damage}: {in_brief(error)}. {remedy}") from error


def check_file(path: Path | str, what: str = "file") -> None:
    """Raise what `open_file` raises, before a library opens a file by its name."""
    open_file(path, what).close()


def is_there(path: Path | str, what: str = "file") -> bool:
    """Whether anything is at a path; a link that leads nowhere is nothing.

    Raises: DataError: the system does not say.
    """
    try:
        Path(path).stat()
    except (FileNotFoundError, NotADirectoryError, ValueError):  # of a name with a zero in it
        return False
    except OSError as error:
        raise cannot_read(path, what, error) from error
    return True


@contextmanager
def unpacked(path: Path | str, what: str) -> Iterator[BinaryIO]:
    """A file to be read in the block; one whose name ends in .gz is decompressed."""
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
    """SHA-256 of a file, in hexadecimal."""
    with path.open("rb") as file:
        return hashlib.file_digest(file, "sha256").hexdigest()


def read_json(path: Path | str, what: str = "file") -> Any:
    """Read a JSON file; `what` is what the error calls it.

    Raises: DataError: it is missing, not readable or not JSON.
    """
    return parse_json(read_text(path, what), path, what)


def parse_json(text: str, path: Path | str, what: str) -> Any:
    """What a JSON text says. Raises: DataError: it is not JSON, or nothing that can be taken in."""
    try:
        return json.loads(text)
    except json.JSONDecodeError as error:
        reason = f"line {error.lineno} is not JSON ({error.msg})"
    except (RecursionError, ValueError) as error:
        reason = in_brief(error)
    raise DataError(f"{path}: this {what} is damaged: {reason}. Correct it, or put a copy back.")


def read_text(path: Path | str, what: str = "file") -> str:
    """Read a UTF-8 text file; one whose name ends in .gz is decompressed.

    Raises: DataError: it is missing, not readable or not UTF-8 (says at which line).
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
    """What is said of content that is not UTF-8 text, and the remedy."""
    encoding = "utf-16" if content.startswith((b"\xff\xfe", b"\xfe\xff")) else "latin1"
    return f"line {line} is not UTF-8 text. Convert it, as in: iconv -f {encoding} -t utf-8."


def text_lines(text: str) -> list[str]:
    r"""The lines of a text, as `decoded_lines` counts them; not by splitlines, which counts more.

    >>> text_lines("a\u2028b\x0cc\r\nd\n"), text_lines("")
    (['a\u2028b\x0cc', 'd'], [])
    """
    lines = text.removesuffix("\n").split("\n") if text else []
    return [line.removesuffix("\r") for line in lines]


def decoded_lines(file: BinaryIO, name: str) -> Iterator[str]:
    """Lines as other programs count them: they end in a line feed, and in nothing else.

    A carriage return before it, and the byte order mark with which some editors begin a file, are
    no part of a line. No more is read than is asked for, but for the buffer of the file.

    Raises: InputError: a line is not UTF-8; those before it were given.
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
    """The lines of a text file; one whose name ends in .gz is decompressed.

    Raises: DataError: it is missing, not readable or damaged; InputError: not UTF-8.
    """
    with unpacked(path, "text file") as file:
        yield from decoded_lines(file, str(path))
