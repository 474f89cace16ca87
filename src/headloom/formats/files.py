"""Files: written whole or not at all, by a temporary name and a rename; read by one door."""

from __future__ import annotations

import errno
import gzip
import hashlib
import json
import math
import os
import secrets
import stat
import zlib
from collections.abc import Callable, Iterator, Mapping
from contextlib import contextmanager, suppress
from pathlib import Path
from typing import Any, BinaryIO, TypeVar, cast

from headloom.errors import DataError
from headloom.formats.locks import FOLDERS, lock

__all__ = [
    "MARK",
    "NOT_WRITABLE",
    "JsonMapping",
    "JsonObject",
    "atomic_file",
    "cannot_read",
    "check_file",
    "disk_errors",
    "file_digest",
    "finite",
    "in_brief",
    "is_there",
    "keep_mode",
    "not_utf8",
    "open_file",
    "parse_json",
    "read_json",
    "read_text",
    "reason_of",
    "remove_leftovers",
    "sync",
    "unpacked",
    "unused",
    "write_json",
]

#: An object of JSON, to be written or as it was read; and one that is only read.
JsonObject = dict[str, Any]
JsonMapping = Mapping[str, Any]

#: How files begin that are given by mistake where a text is expected.
_NO_TEXT = {
    b"\x89PNG": "a PNG picture",
    b"\xff\xd8\xff": "a JPEG picture",
    b"GIF8": "a GIF picture",
    b"%PDF": "a PDF document",
    b"PK\x03\x04": "a ZIP archive",
    b"\x1f\x8b": "a gzip archive",
    b"GGUF": "a GGUF model",
}
#: Bytes of a file in which a zero says that it is no text.
_LOOKED_AT = 8192

#: What a temporary name begins with, after a dot and the name of the file to be.
MARK = ".headloom-part-"
#: What to do where nothing can be made.
NOT_WRITABLE = "Choose a folder that exists and is writable."
#: How a file is opened that only a regular file is to be read from; what a system knows of that.
_CAREFULLY = os.O_RDONLY
for _flag in ("O_NONBLOCK", "O_CLOEXEC", "O_BINARY"):
    _CAREFULLY |= getattr(os, _flag, 0)
#: Where the shell hands over what it has opened.
_HANDED_OVER = ("/dev/fd/", "/dev/stdin", "/proc/self/fd/")


def reason_of(error: OSError) -> str:
    """What the system says of an error, to stand within a sentence.

    >>> reason_of(PermissionError(13, "Permission denied"))
    'permission denied'
    >>> reason_of(OSError("Set MPLCONFIGDIR to a folder"))
    'set MPLCONFIGDIR to a folder'
    """
    said = error.strerror or str(error)
    return said[:1].lower() + said[1:]


def in_brief(error: Exception) -> str:
    r"""What a library says of what it cannot read, on one line; at least the name of its error.

    >>> in_brief(ValueError("no magic\nbytes.")), in_brief(MemoryError())
    ('no magic bytes', 'MemoryError')
    """
    return " ".join(str(error).split())[:160].rstrip(".") or type(error).__name__


def sync(path: Path) -> None:
    """Wait until a file or a folder is on the disk."""
    if not FOLDERS and path.is_dir():
        return
    # Windows waits only for files that are open for writing.
    descriptor = os.open(path, os.O_RDONLY if FOLDERS else os.O_RDWR)
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
        if error.errno == errno.ENAMETOOLONG:
            said = "Give a shorter name."
        raise DataError(f"cannot write {path}: {reason_of(error)}. {said}") from error


@contextmanager
def atomic_file(path: Path | str, remedy: str = "") -> Iterator[Path]:
    """A temporary path to write to; becomes `path` when the block ends well, else is removed.

    A link stays a link: the file that it leads to is written. Its rights stay, too; a new file has
    those that the user's mask leaves.

    remedy: see `disk_errors`.

    Raises: DataError: the disk is full, the folder is missing or not writable, or `path` is no
    regular file (a folder, a pipe, a device). What was at `path` before is then untouched.
    """
    given, path = path, Path(os.path.realpath(path))
    with disk_errors(path, NOT_WRITABLE):
        if path.exists() and not path.is_file():
            what = "a folder" if path.is_dir() else "a pipe or a device"
            raise DataError(f"cannot write {given}: it is {what}. Give the name of a file.")
        _remove_begun(path)
        descriptor, temporary = unused(path.parent / _start(path), _new_file)
    open_descriptor: int | None = descriptor
    if not _lock(descriptor) and not FOLDERS:
        # Windows renames no file that is open.
        os.close(descriptor)
        open_descriptor = None
    try:
        with disk_errors(path, remedy):
            yield temporary
            keep_mode(path, temporary)
            sync(temporary)
            temporary.replace(path)
            sync(path.parent)
    finally:
        temporary.unlink(missing_ok=True)
        if open_descriptor is not None:
            os.close(open_descriptor)


Made = TypeVar("Made")


def unused(start: Path, make: Callable[[Path], Made]) -> tuple[Made, Path]:
    """What `make` makes at a path that begins so and that nothing has, and the path."""
    while True:
        path = start.with_name(f"{start.name}{secrets.token_hex(4)}")
        try:
            return make(path), path
        except FileExistsError:
            continue


def _new_file(path: Path) -> int:
    """A descriptor of a new file, with the rights that the user's mask leaves."""
    return os.open(path, os.O_RDWR | os.O_CREAT | os.O_EXCL | getattr(os, "O_BINARY", 0), 0o666)


def keep_mode(path: Path, new: Path) -> None:
    """Give what is to stand at a path the rights of what stands there, if anything does."""
    with suppress(FileNotFoundError):
        new.chmod(stat.S_IMODE(path.stat().st_mode))


def _lock(descriptor: int) -> bool:
    """Lock a file while it is written; the system takes the lock back when the process ends."""
    if not FOLDERS:  # a lock of Windows would keep the writer itself out
        return False
    try:
        lock(descriptor)
    except OSError:  # another process has it, or the file system has no locks
        return False
    return True


def _start(path: Path) -> str:
    """What the names of a file's temporary files begin with; short, as a name has a limit."""
    return f".{path.name[:40]}{MARK}"


def _remove_begun(path: Path) -> None:
    """Remove temporary files of a file that killed writers left: nobody has their locks."""
    try:
        leftovers = list(path.parent.iterdir())
    except OSError:  # a folder may be written to, and not listed
        return
    for leftover in leftovers:
        if not leftover.name.startswith(_start(path)):
            continue
        try:
            descriptor = os.open(leftover, _CAREFULLY | getattr(os, "O_NOFOLLOW", 0))
        except OSError:
            continue
        try:
            if stat.S_ISREG(os.fstat(descriptor).st_mode) and _lock(descriptor):
                leftover.unlink(missing_ok=True)
        finally:
            os.close(descriptor)


def remove_leftovers(folder: Path) -> None:
    """Remove the temporary files that a killed writer left in a folder (not those below it)."""
    for leftover in folder.glob(f".*{MARK}*"):
        if leftover.is_file():
            leftover.unlink(missing_ok=True)


def write_json(path: Path | str, content: Any) -> None:
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

    What the shell itself hands over, as in ``headloom train <(echo ...)``, may be a pipe.

    Args:
        path: where it is; a link is followed.
        what: what the error calls it.

    Raises: DataError: it is missing, no file, or not readable; each by its name.
    """
    try:
        descriptor = os.open(path, _CAREFULLY)
    except (FileNotFoundError, NotADirectoryError):
        raise DataError(f"{path}: no such {what}. Check the path.") from None
    except OSError as error:
        if error.errno == errno.ENXIO:  # a socket
            raise DataError(f"{path}: {_no_file(what)}") from None
        raise cannot_read(path, what, error) from error
    except ValueError:  # a name with a zero in it
        raise DataError(f"{path}: no such {what}. Check the path.") from None
    try:
        status = os.fstat(descriptor)
        if stat.S_ISDIR(status.st_mode):
            raise DataError(f"{path}: a folder; {_a_file(what)}")
        is_file = stat.S_ISREG(status.st_mode) and status.st_dev != _system_device()
        if not is_file and not str(path).startswith(_HANDED_OVER):
            raise DataError(f"{path}: {_no_file(what)}")
        if hasattr(os, "O_NONBLOCK"):
            os.set_blocking(descriptor, True)
        return os.fdopen(descriptor, "rb")
    except BaseException:
        os.close(descriptor)
        raise


def _system_device() -> int | None:
    """Where the system's own files are: they say they are files, and reading one may wait."""
    try:
        return Path("/proc").stat().st_dev
    except OSError:
        return None


def _no_file(what: str) -> str:
    return f"a pipe, a socket or a device; {_a_file(what)}"


def _a_file(what: str) -> str:
    return f"expected a {what}" + ("." if what.endswith("file") else ", which is a file.")


def cannot_read(path: Path | str, what: str, error: OSError) -> DataError:
    """The error for a file or folder that is there, and that the system does not let us read."""
    return DataError(
        f"{path}: cannot read this {what}: {reason_of(error)}. Make it readable, or give another."
    )


def check_file(path: Path | str, what: str = "file") -> None:
    """Raise what `open_file` raises, before a library opens a file by its name."""
    open_file(path, what).close()


def is_there(path: Path | str, what: str = "file") -> bool:
    """Whether anything is at a path; a link that leads nowhere is nothing.

    Raises: DataError: the system does not say.
    """
    try:
        Path(path).stat()
    except (FileNotFoundError, NotADirectoryError, ValueError):
        return False
    except OSError as error:
        raise cannot_read(path, what, error) from error
    return True


@contextmanager
def unpacked(path: Path | str, what: str = "file") -> Iterator[BinaryIO]:
    """A file to be read in the block; one whose name ends in .gz is decompressed.

    Raises: DataError: it is missing, not readable or damaged.
    """
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
    """Read a JSON file.

    Args:
        path: where it is.
        what: what the error calls it.

    Raises: DataError: it is missing, not readable or not JSON.
    """
    return parse_json(read_text(path, what), path, what)


def parse_json(text: str, path: Path | str, what: str) -> Any:
    """What a JSON text says. Raises: DataError: it is not JSON, or nothing that can be taken in."""
    try:
        return json.loads(text)
    except json.JSONDecodeError as error:
        reason = f"line {error.lineno} is not JSON ({error.msg})"
    except RecursionError:
        reason = "its JSON is nested too deeply"
    except ValueError:
        reason = "its JSON holds a number of too many digits"
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
        # Some editors begin a file with a byte order mark, which is no part of the text.
        return content.decode("utf-8").removeprefix("\ufeff")
    except UnicodeDecodeError as error:
        line = content[: error.start].count(b"\n") + 1
        byte = f" (byte {error.start} is 0x{content[error.start]:02x})"
        raise DataError(f"{path}: {not_utf8(content, line, byte)}") from None


def not_utf8(content: bytes, line: int, byte: str = "") -> str:
    """What is said of content that is not UTF-8 text: what it is instead, and the remedy.

    content: from its beginning, or from that of the line where it is no text.
    """
    kind = next((name for start, name in _NO_TEXT.items() if content.startswith(start)), None)
    if kind is not None:
        picture = " headloom trace takes a picture by --image." if kind.endswith("picture") else ""
        return f"{kind}; expected text, as UTF-8. Give a file of text.{picture}"
    encoding = "utf-16" if content.startswith((b"\xff\xfe", b"\xfe\xff")) else "latin1"
    if encoding == "latin1" and b"\0" in content[:_LOOKED_AT]:
        return "no text: it has zeros in it; expected text, as UTF-8. Give a file of text."
    return f"line {line} is not UTF-8 text{byte}. Convert it, as in: iconv -f {encoding} -t utf-8."
