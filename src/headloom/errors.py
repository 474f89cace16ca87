"""Exceptions of headloom: each names the input, the expected value, and the remedy."""

from __future__ import annotations

from collections.abc import Iterable, Iterator, Mapping
from contextlib import contextmanager
from difflib import get_close_matches
from typing import TYPE_CHECKING, ClassVar

#: Messages of torch's allocators, C++ libraries and drivers, which raise no specific type.
_NO_MEMORY = ("can't allocate memory", "out of memory", "std::bad_alloc")


class HeadloomError(Exception):
    """Error that the caller can fix. The command line prints one line, exit code 2."""


class InputError(HeadloomError, ValueError):
    """Argument, option or configuration value that cannot be used."""


class ShapeError(InputError):
    """Tensors whose shapes do not fit together."""


class BackendError(InputError):
    """Backend, requested by name, that cannot serve the request. No silent fallback."""


class DataError(HeadloomError, OSError):
    """File or folder that is missing, damaged, incomplete or of another format."""


class VerificationError(HeadloomError, RuntimeError):
    """Model whose output changes while it is traced."""


class Hints:
    """Mixin that suggests headloom's name for the name of another library."""

    #: Names of other libraries, and the names to use here.
    _elsewhere: ClassVar[Mapping[str, str]] = {}

    if not TYPE_CHECKING:  # else a type checker would accept any attribute

        def __getattr__(self, name: str) -> object:
            for owner in type(self).__mro__:
                if hint := vars(owner).get("_elsewhere", {}).get(name):
                    raise AttributeError(f"{type(self).__name__} has no {name}; use {hint}")
            # Python's own error, or that of a failing property.
            return object.__getattribute__(self, name)


def no_keyword(
    operation: str, name: str, known: Iterable[str], elsewhere: Mapping[str, str]
) -> TypeError:
    """Return the error of an unknown keyword, which suggests the correct one.

    known: its keywords; elsewhere: names of other libraries, and the names to use here.
    """
    near = elsewhere.get(name) or "".join(f"{key}=" for key in get_close_matches(name, known, 1))
    return TypeError(f"{operation}() takes no {name}=; use {near or ', '.join(known)}")


def installing(extra: str) -> str:
    """Return the command that installs an extra, from the clone: headloom is not on PyPI yet.

    >>> installing("hf")
    'pip install ".[hf]" in the clone of headloom'
    """
    return f'pip install ".[{extra}]" in the clone of headloom'


@contextmanager
def optional_package(asker: str, remedy: str = installing("exchange")) -> Iterator[None]:
    """Raise an InputError with the package's name where an import inside the block fails.

    Args:
        asker: name of the operation, the start of the error.
        remedy: installation command.
    """
    try:
        yield
    except ImportError as error:
        raise InputError(f"{asker}: {error.name} is not installed. {remedy}") from None


def is_out_of_memory(error: BaseException) -> bool:
    """Return whether an error means that memory ran out.

    >>> is_out_of_memory(MemoryError()), is_out_of_memory(RuntimeError("CUDA out of memory."))
    (True, True)
    """
    return isinstance(error, MemoryError) or (
        isinstance(error, RuntimeError) and any(part in str(error) for part in _NO_MEMORY)
    )
