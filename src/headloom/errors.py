"""The errors headloom raises on purpose: each names the input, what was expected, and the
remedy.
"""

from __future__ import annotations

from collections.abc import Iterable, Iterator, Mapping
from contextlib import contextmanager
from difflib import get_close_matches
from typing import TYPE_CHECKING, ClassVar

#: What torch's allocators, other libraries of C++ and drivers say; none has a type of its own.
_NO_MEMORY = ("can't allocate memory", "out of memory", "std::bad_alloc")


class HeadloomError(Exception):
    """Something the caller can mend. The command line prints it as one line, exit code 2."""


class InputError(HeadloomError, ValueError):
    """An argument, option or configuration value that cannot be used."""


class ShapeError(InputError):
    """Tensors whose shapes do not fit together."""


class BackendError(InputError):
    """A backend asked for by name that cannot serve the request. There is no silent fallback."""


class DataError(HeadloomError, OSError):
    """A file or folder that is missing, damaged, half-written or of another format."""


class VerificationError(HeadloomError, RuntimeError):
    """A model that computes something else while it is traced than it does without."""


class Hints:
    """Mixin of classes that know what other libraries call what they have."""

    #: Names of other libraries, and what to write here.
    _elsewhere: ClassVar[Mapping[str, str]] = {}

    if not TYPE_CHECKING:  # a checker would take every name for an attribute

        def __getattr__(self, name: str) -> object:
            for owner in type(self).__mro__:
                if hint := vars(owner).get("_elsewhere", {}).get(name):
                    raise AttributeError(f"{type(self).__name__} has no {name}; use {hint}")
            # Python's own error, or that of the property which failed.
            return object.__getattribute__(self, name)


def no_keyword(
    operation: str, name: str, known: Iterable[str], elsewhere: Mapping[str, str]
) -> TypeError:
    """The error of a keyword that a function does not take, which names the one to take.

    known: its keywords; elsewhere: what other libraries have, and what to write here.
    """
    near = elsewhere.get(name) or "".join(f"{key}=" for key in get_close_matches(name, known, 1))
    return TypeError(f"{operation}() takes no {name}=; use {near or ', '.join(known)}")


def installing(extra: str) -> str:
    """The command that installs an extra of headloom, from the clone: headloom is not on PyPI yet.

    >>> installing("hf")
    'pip install ".[hf]" in the clone of headloom'
    """
    return f'pip install ".[{extra}]" in the clone of headloom'


@contextmanager
def optional_package(asker: str, remedy: str = installing("exchange")) -> Iterator[None]:
    """Raise an InputError where an import inside the block fails: it names the package.

    Args:
        asker: what needs the package, as the error begins.
        remedy: what installs it.
    """
    try:
        yield
    except ImportError as error:
        raise InputError(f"{asker}: {error.name} is not installed. {remedy}") from None


def is_out_of_memory(error: BaseException) -> bool:
    """Whether an error says that there is not enough memory.

    >>> is_out_of_memory(MemoryError()), is_out_of_memory(RuntimeError("CUDA out of memory."))
    (True, True)
    """
    return isinstance(error, MemoryError) or (
        isinstance(error, RuntimeError) and any(part in str(error) for part in _NO_MEMORY)
    )
