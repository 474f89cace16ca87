"""The public names of weft with their signatures, one a line: what a release promises to keep.

    python scripts/public_names.py            # print them
    python scripts/public_names.py --write    # write tests/public_names.txt, which a test compares

A change of that file in a review is a change of the library's face: docs/releases.md says which of
them need a version's warning.
"""

from __future__ import annotations

import argparse
import inspect
from collections.abc import Iterator
from pathlib import Path

import weft

FILE = Path(__file__).parents[1] / "tests" / "public_names.txt"


def public_names() -> list[str]:
    """Each name of ``weft.__all__``; of a class also its public methods and properties."""
    return [line for name in sorted(weft.__all__) for line in _lines(name, getattr(weft, name))]


def _lines(name: str, thing: object) -> Iterator[str]:
    if not inspect.isclass(thing):
        yield f"{name}{_signature(thing)}" if callable(thing) else name
        return
    bases = ", ".join(base.__name__ for base in thing.__bases__ if base is not object)
    kind = f"({bases})" if bases else ""
    yield f"class {name}{kind}{'' if issubclass(thing, Exception) else ': ' + _signature(thing)}"
    # What weft's own parents of it have, too; not what torch's modules have.
    ours = [parent for parent in thing.__mro__[::-1] if parent.__module__.startswith("weft.")]
    members = {key: value for parent in ours for key, value in vars(parent).items()}
    for inner, member in sorted(members.items()):
        if inner.startswith("_"):
            continue
        if isinstance(member, property):
            yield f"{name}.{inner}: property"
        elif isinstance(member, classmethod | staticmethod):
            yield f"{name}.{inner}{_signature(member.__func__)}: {type(member).__name__}"
        elif inspect.isfunction(member):
            yield f"{name}.{inner}{_signature(member)}"


def _signature(thing: object) -> str:
    """Names, kinds and defaults; types are mypy's matter, and their names move."""
    assert callable(thing)
    signature = inspect.signature(thing)
    bare = [
        parameter.replace(annotation=inspect.Parameter.empty)
        for parameter in signature.parameters.values()
    ]
    return str(signature.replace(parameters=bare, return_annotation=inspect.Signature.empty))


def main() -> None:
    """Print the names, or write the file."""
    parser = argparse.ArgumentParser(description="The public names of weft.")
    parser.add_argument("--write", action="store_true", help=f"Write {FILE.name}.")
    text = "\n".join(public_names()) + "\n"
    if parser.parse_args().write:
        FILE.write_text(text, encoding="utf-8")
    else:
        print(text, end="")


if __name__ == "__main__":
    main()
