"""Faults planted in headloom, one at a time: whoever looks for faults must see them."""

from __future__ import annotations

import contextlib
import os
from collections.abc import Callable, Iterator
from pathlib import Path
from typing import Any, BinaryIO
from unittest import mock

from headloom.formats import files, reports, tensors, trace_reader

__all__ = ["PLANTED"]

Plant = Callable[[], contextlib.AbstractContextManager[Any]]


class _Anything(str):
    """A digest that is equal to every other."""

    __hash__ = str.__hash__

    def __eq__(self, other: object) -> bool:
        return True

    def __ne__(self, other: object) -> bool:
        return False


def _no_digests_of_traces() -> contextlib.AbstractContextManager[Any]:
    return mock.patch.object(trace_reader.Digests, "verify", lambda self, name: None)


@contextlib.contextmanager
def _no_digests_of_runs() -> Iterator[None]:
    with mock.patch.object(tensors, "_digest", lambda content: _Anything()):
        yield


def _no_look_at_columns() -> contextlib.AbstractContextManager[Any]:
    return mock.patch.object(trace_reader, "_check_columns", lambda schema, columns: None)


def _no_look_at_manifests() -> contextlib.AbstractContextManager[Any]:
    return mock.patch.object(trace_reader, "manifest_problem", lambda folder, content: None)


def _errors_of_libraries() -> contextlib.AbstractContextManager[Any]:
    return mock.patch.object(trace_reader, "_UNREADABLE", ())


@contextlib.contextmanager
def _waits_for_pipes() -> Iterator[None]:
    def opened(path: Path | str, what: str = "file") -> BinaryIO:
        return Path(path).open("rb")

    with mock.patch.object(files, "open_file", opened):
        yield


@contextlib.contextmanager
def _dies_of_bad_json() -> Iterator[None]:
    def parsed(text: str, path: Path | str, what: str) -> Any:
        try:
            return files.json.loads(text)
        except ValueError:
            os.abort()

    with (
        mock.patch.object(files, "parse_json", parsed),
        mock.patch.object(tensors, "parse_json", parsed),
        mock.patch.object(reports, "parse_json", parsed),
    ):
        yield


@contextlib.contextmanager
def _takes_memory() -> Iterator[None]:
    """Room for as many numbers as the first shape says, before anything is checked."""
    real = trace_reader.manifest_problem

    def problem(folder: Path, content: dict[str, Any]) -> str | None:
        for layer in content.get("layers") or []:
            with contextlib.suppress(KeyError, TypeError, ValueError, IndexError, OverflowError):
                bytearray(8 * abs(int(layer["shape"][1])) * abs(int(layer["shape"][2])))
        return real(folder, content)

    with mock.patch.object(trace_reader, "manifest_problem", problem):
        yield


#: What each is, the kind of input that shows it, what is said of it, and how it is planted.
PLANTED: dict[str, tuple[str, str, Plant]] = {
    "the digests of a trace's files are not looked at": (
        "trace", "wrong data", _no_digests_of_traces,
    ),
    "the digests of a run's tensors are not looked at": ("run", "wrong data", _no_digests_of_runs),
    "the columns of a table are not looked at": (
        "trace", "wrong data|Key|Type|Index|Attr", _no_look_at_columns,
    ),
    "the manifest of a trace is not looked at": ("terms", "Error", _no_look_at_manifests),
    "errors of the libraries are not made lines": (
        "trace", "ValueError|ArrowInvalid|SafetensorError", _errors_of_libraries,
    ),
    "opening a pipe waits": ("trace", "TooLong", _waits_for_pipes),
    "the process dies of what is not JSON": ("run", "ended with -6", _dies_of_bad_json),
    "memory is taken before a shape is checked": ("terms", "MemoryError", _takes_memory),
}  # fmt: skip
