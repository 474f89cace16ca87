"""What reads an input by the verbs of the command, in this process or in one of its own."""

from __future__ import annotations

import os
import subprocess
import sys
from collections.abc import Iterator
from contextlib import contextmanager
from dataclasses import dataclass
from pathlib import Path
from typing import Any, BinaryIO, TextIO
from unittest import mock

import typer.main

import headloom.cli
from damage.readings import FaultError

__all__ = ["Said", "by_process", "by_verb", "quick_commands", "verbs_of"]

Words = tuple[object, ...]


def verbs_of(kind: str, folder: Path, whole: Path, new: Path) -> list[Words]:
    """Commands that read an input of a kind.

    folder: the damaged one; whole: the folder of the originals; new: where nothing is yet.
    """
    if kind in ("trace", "terms"):
        return [
            ("heads", folder), ("heads", folder, "--csv"), ("measures", folder, "--json"),
            ("rollout", folder), ("flow", folder, "--from", 0),
            ("query", folder, "select * from edges order by all limit 3"),
            ("query", folder, "select * from heads, rows order by all limit 3"),
            ("query", folder, "select * from keys, tokens, layers order by all limit 3"),
            ("compare", folder, whole / kind), ("compare", whole / kind, folder),
            ("export", folder, "--html", new), ("export", folder, "--picture", f"{new}.png"),
            ("export", folder, "--parquet", new), ("export", folder, "--graphml", new),
        ]  # fmt: skip
    if kind == "run":
        return [
            ("evaluate", folder), ("translate", folder), ("heads", folder),
            ("projections", folder), ("projections", folder, "--history"),
            ("heads", folder, "--measure", "previous"), ("relevance", folder, "--text", "de: 1"),
            ("trace", folder, "--text", "de: 1", "-o", new),
            ("train", whole / "config" / "config.toml", "--run", folder),
        ]  # fmt: skip
    if kind == "model":
        return [
            ("trace", folder, "--text", "a b c", "-o", new), ("projections", folder),
            ("relevance", folder, "--text", "a b"), ("ablate", folder, "--text", "a b"),
            ("trace", folder, "--text", "a b c d e", "--window", 3, "-o", new),
        ]  # fmt: skip
    return [("train", folder / "config.toml", "--run", new)]


@dataclass(frozen=True)
class Said:
    """What a command said: its exit code, and its output without the names of folders."""

    words: str
    code: int
    output: str
    error: str


#: Verbs whose output is the same whenever they read the same.
_COMPARED = ("heads", "measures", "rollout", "flow", "query", "compare", "projections", "translate")


def comparable(said: Said) -> bool:
    """Whether a command that reads the same says the same."""
    return said.words.startswith(_COMPARED)


@contextmanager
def quick_commands() -> Iterator[None]:
    """The commands of the app are made once, not once a call: that is most of a call's time."""
    command = typer.main.get_command(headloom.cli.app)
    with mock.patch.object(typer.main, "get_command", lambda _: command):
        yield


def by_verb(words: Words, names: dict[Path, str]) -> Said:
    """Run a command in this process, whose output is caught where the system writes it.

    names: what stands in the output for each folder.
    Raises: FaultError: it ended in a way that it must not.
    """
    code: Any = 0
    with _caught() as (out, err):
        try:
            headloom.cli.main([str(word) for word in words])
        except SystemExit as stop:
            code = stop.code or 0
        texts = _content(sys.stdout, out), _content(sys.stderr, err)
    return _judged(words, code, *texts, names)


def by_process(words: Words, names: dict[Path, str]) -> Said:
    """Run a command as a shell does."""
    result = subprocess.run(
        [sys.executable, "-m", "headloom", *(str(word) for word in words)],
        input=b"de: 1\n", capture_output=True, timeout=300, check=False,
    )  # fmt: skip
    texts = (part.decode("utf-8", "replace") for part in (result.stdout, result.stderr))
    return _judged(words, result.returncode, *texts, names)


def _judged(words: Words, code: Any, out: str, err: str, names: dict[Path, str]) -> Said:
    command = " ".join(map(str, words))
    for path, name in names.items():
        command, out = command.replace(str(path), name), out.replace(str(path), name)
    if code not in (0, 2):
        raise FaultError(f"{command}: exit code {code!r}: {err[-300:]}")
    lines = err.splitlines()
    if code == 2 and (not lines or not lines[-1].startswith("headloom: ")):
        raise FaultError(f"{command}: no line of headloom's: {err[-300:]!r}")
    if code == 2 and len(lines) > 1:
        raise FaultError(f"{command}: several lines: {err[-300:]!r}")
    if "Traceback" in err:
        raise FaultError(f"{command}: a traceback: {err[-300:]}")
    unsafe = set("\x1b\x07\u202e") & set(out + err)
    if unsafe:
        raise FaultError(f"{command}: {unsafe} reach the terminal")
    return Said(command, code, out, err)


@contextmanager
def _caught() -> Iterator[tuple[BinaryIO, BinaryIO]]:
    """Standard output and error go to files, standard input is one line."""
    sys.stdout.flush()
    sys.stderr.flush()
    # In memory: another user may be the reader, who can make no file here.
    names = ("stdin", "stdout", "stderr")
    given, out, err = (os.fdopen(os.memfd_create(name), "w+b") for name in names)
    with given, out, err:
        given.write(b"de: 1\n")
        given.seek(0)
        before = [os.dup(number) for number in range(3)]
        try:
            for number, file in enumerate((given, out, err)):
                os.dup2(file.fileno(), number)
            with (
                open(0, encoding="utf-8", closefd=False) as stdin,
                open(1, "w", encoding="utf-8", closefd=False) as stdout,
                open(2, "w", encoding="utf-8", closefd=False, buffering=1) as stderr,
                mock.patch.multiple(sys, stdin=stdin, stdout=stdout, stderr=stderr),
            ):
                yield out, err
        finally:
            for number, descriptor in enumerate(before):
                os.dup2(descriptor, number)
                os.close(descriptor)


def _content(stream: TextIO, file: BinaryIO) -> str:
    """What was written to a stream, and so to its file."""
    stream.flush()
    file.seek(0)
    return file.read().decode("utf-8", "replace")
