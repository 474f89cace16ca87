"""What a wheel and a source distribution of headloom hold: an error where a part is missing.

    python scripts/wheel_contents.py dist/headloom-0.1.0-....whl dist/headloom-0.1.0.tar.gz

Prints the size of each, and the systems, processor and Pythons that the wheel's tags name.
"""

from __future__ import annotations

import argparse
import tarfile
import zipfile
from collections.abc import Iterable
from pathlib import Path

#: Parts of both, by the end of a file's name.
SHARED = (
    "headloom/__init__.pyi",
    "headloom/py.typed",
    "headloom/training/demo.toml",
    "headloom/studio/static/studio.js",
    "headloom/studio/static/studio.css",
    "LICENSE",
)
#: Parts of the source distribution alone.
SOURCES = ("CMakeLists.txt", "native/module.cpp", "pyproject.toml", "README.md")
#: Folders of neither: what is built, and what the front end is built with.
UNWANTED = ("node_modules/", "build/", "dist/", "runs/", ".venv/")


def main() -> None:
    """Look into each file that is named."""
    parser = argparse.ArgumentParser(description="What wheels and source distributions hold.")
    parser.add_argument("files", nargs="+", type=Path)
    parser.add_argument("--without-kernels", action="store_true", help="The wheel has none.")
    arguments = parser.parse_args()
    for file in arguments.files:
        if file.suffix == ".whl":
            with zipfile.ZipFile(file) as archive:
                names = archive.namelist()
            kernels = [name for name in names if name.startswith("headloom/_native.")]
            if bool(kernels) == arguments.without_kernels:
                raise SystemExit(f"{file}: its native kernels are {kernels or 'missing'}.")
            missing = _missing(names, SHARED)
            told = f", for {', '.join(tags(file))}"
        else:
            with tarfile.open(file) as archive:
                names = archive.getnames()
            missing, told = _missing(names, (*SHARED, *SOURCES)), ""
        # The first folder is the name of the distribution.
        unwanted = [n for n in names if n.partition("/")[2].startswith(UNWANTED)]
        if missing or unwanted:
            raise SystemExit(f"{file}: missing {missing}, not wanted {unwanted[:5]}.")
        print(f"{file}: {file.stat().st_size / 1e6:.2f} MB, {len(names)} files{told}")


def tags(wheel: Path) -> list[str]:
    """What a wheel's name says of where it runs.

    >>> tags(Path("headloom-0.1.0-cp312-abi3-manylinux_2_27_x86_64.manylinux_2_28_x86_64.whl"))
    ['cp312-abi3', 'manylinux_2_27_x86_64', 'manylinux_2_28_x86_64']
    """
    *_, python, abi, systems = wheel.name.removesuffix(".whl").split("-")
    return [f"{python}-{abi}", *systems.split(".")]


def _missing(names: Iterable[str], wanted: Iterable[str]) -> list[str]:
    held = list(names)
    return [end for end in wanted if not any(name.endswith(end) for name in held)]


if __name__ == "__main__":
    main()
