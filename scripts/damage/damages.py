"""Ways to damage a folder: as a disk does, as a careless copy does, and as a forger does."""

from __future__ import annotations

import os
import random
import shutil
import socket
from collections.abc import Callable
from dataclasses import dataclass
from pathlib import Path

from damage.forgeries import FORGERS, reseal

__all__ = ["DAMAGES", "Damage", "damage"]

Chance = random.Random


@dataclass(frozen=True)
class Damage:
    """What was done to a file.

    sealed: other data can be told from what was written: the file had a digest, and it was not
        made to fit what the file says now.
    """

    way: str
    file: str
    detail: str
    sealed: bool

    def __str__(self) -> str:
        seal = "" if self.sealed else ", which no digest tells"
        return f"{self.way} of {self.file}{seal}{self.detail and ': '}{self.detail}"


def damage(folder: Path, chance: Chance) -> Damage:
    """Damage a folder in one way."""
    files = sorted(path for path in folder.rglob("*.*") if path.is_file())
    file = chance.choice(files)
    way = chance.choice(WAYS)
    in_trace = (folder / "trace.json").exists()
    name, sealed, detail = str(file.relative_to(folder)), _sealed(file), ""
    if way == "forge":
        detail, fits = FORGERS[file.suffix](file, chance)
        sealed = sealed and not fits
        if chance.random() < 0.7 and reseal(folder, file):
            sealed = False
    else:
        detail = DAMAGES[way](file, chance) or ""
        if way in _OF_BYTES and sealed and chance.random() < 0.3 and reseal(folder, file):
            sealed = False
        if way in ("remove", "whole folder") and not in_trace:
            sealed = False  # nothing says how many snapshots and metrics a run has
    return Damage(way, name, detail, sealed)


def _sealed(file: Path) -> bool:
    """Whether a file has a digest, so that other content must be refused."""
    folder = file.parent
    if (folder / "trace.json").exists():
        return True
    in_run = (folder / "run.json").exists() or folder.name == "history"
    return in_run and file.suffix == ".safetensors"


# As a disk, or a copy.


def _truncate(file: Path, chance: Chance) -> None:
    content = file.read_bytes()
    file.write_bytes(content[: chance.randrange(max(len(content), 1))])


def _flip(file: Path, chance: Chance) -> None:
    content = bytearray(file.read_bytes())
    for _ in range(chance.choice((1, 1, 1, 2, 8))):
        if content:
            content[chance.randrange(len(content))] ^= 1 << chance.randrange(8)
    file.write_bytes(content)


def _flip_head(file: Path, chance: Chance) -> None:
    """Where headers and their lengths are: at the beginning, and of Parquet at the end."""
    content = bytearray(file.read_bytes())
    for _ in range(3):
        if content:
            place = chance.randrange(min(64, len(content)))
            content[place if chance.random() < 0.5 else -1 - place] = chance.randrange(256)
    file.write_bytes(content)


def _zeros(file: Path, chance: Chance) -> None:
    content = bytearray(file.read_bytes())
    start = chance.randrange(max(len(content), 1))
    end = min(len(content), start + chance.choice((1, 8, 512)))
    content[start:end] = bytes(end - start)
    file.write_bytes(content)


def _append(file: Path, chance: Chance) -> None:
    with file.open("ab") as opened:
        opened.write(chance.choice((b"\n{}", b"\0" * 9, b"x" * 100)))


def _random_content(file: Path, chance: Chance) -> None:
    file.write_bytes(
        chance.choice((b"", b"null", b"[]", b"{}", chance.randbytes(300), b"\xff\xfe"))
    )


def _sparse(file: Path, chance: Chance) -> None:
    os.truncate(file, chance.choice((2**34, 2**40)))


def _swap(file: Path, chance: Chance) -> None:
    other = chance.choice([path for path in file.parent.iterdir() if path.is_file()])
    file.write_bytes(other.read_bytes())


def _remove(file: Path, chance: Chance) -> None:
    file.unlink()


# Other things in the place of a file.


def _pipe(file: Path, chance: Chance) -> None:
    file.unlink()
    os.mkfifo(file)


def _socket(file: Path, chance: Chance) -> None:
    file.unlink()
    here = Path.cwd()
    os.chdir(file.parent)  # the name of a socket has a limit
    try:
        with socket.socket(socket.AF_UNIX) as made:
            made.bind(file.name)
    finally:
        os.chdir(here)


def _folder(file: Path, chance: Chance) -> None:
    file.unlink()
    file.mkdir()


def _link(file: Path, chance: Chance) -> str:
    targets = (file.name, "/dev/zero", "/dev/full", "/dev/tty", "/etc/hostname", "/nowhere", "..",
               "/proc/self/mem", "/proc/kmsg")  # fmt: skip
    target = chance.choice(targets)
    file.unlink()
    file.symlink_to(target)
    return f"to {target}"


def _link_loop(file: Path, chance: Chance) -> None:
    file.unlink()
    file.symlink_to(f"{file.name}.other")
    file.with_name(f"{file.name}.other").symlink_to(file.name)


def _unreadable(file: Path, chance: Chance) -> None:
    (file if chance.random() < 0.7 else file.parent).chmod(0)


def _whole_folder(file: Path, chance: Chance) -> None:
    """The folder itself is something else."""
    folder = file.parent
    shutil.rmtree(folder)
    match chance.randrange(5):
        case 0:
            os.mkfifo(folder)
        case 1:
            folder.symlink_to(folder.name)
        case 2:
            folder.symlink_to("/etc")
        case 3:
            folder.write_text("{}")
        case _:
            folder.mkdir()


_OF_BYTES = ("truncate", "flip", "flip head", "zeros", "append", "random content", "swap", "sparse")
DAMAGES: dict[str, Callable[[Path, Chance], str | None]] = {
    "truncate": _truncate, "flip": _flip, "flip head": _flip_head, "zeros": _zeros,
    "append": _append, "random content": _random_content, "sparse": _sparse, "swap": _swap,
    "remove": _remove, "pipe": _pipe, "socket": _socket, "folder": _folder, "link": _link,
    "link loop": _link_loop, "unreadable": _unreadable, "whole folder": _whole_folder,
}  # fmt: skip
#: A forgery as often as all others.
WAYS = (*DAMAGES, *("truncate", "flip", "flip head", "zeros"), *["forge"] * 20)
