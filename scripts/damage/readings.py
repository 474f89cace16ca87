"""Everything that reads an input: through the library, part by part, and by the command's verbs."""

from __future__ import annotations

import contextlib
import hashlib
import io
import random
import sys
from collections.abc import Callable, Iterator
from pathlib import Path
from typing import Any
from unittest import mock

import torch
from torch import Tensor

import weft
import weft.cli
from weft.errors import WeftError
from weft.formats.history import History
from weft.formats.run import RunFolder
from weft.tracing.pretrained import load_pretrained
from weft.training.config import load_config
from weft.training.inference import open_run

__all__ = ["READINGS", "FaultError", "by_verb", "every_verb", "run_verb"]

#: The parts that could be read, by name, and what came of each: its digest.
Parts = dict[str, str]


class FaultError(Exception):
    """What no damage may lead to."""


def _digest(value: Any) -> str:
    """What a value says, so that two can be compared."""
    if isinstance(value, Tensor):
        content = value.contiguous().reshape(-1).view(torch.uint8).numpy().tobytes()
        return f"{value.dtype} {tuple(value.shape)} {hashlib.sha256(content).hexdigest()}"
    return hashlib.sha256(repr(value).encode("utf-8", "backslashreplace")).hexdigest()


def _read(parts: Parts, name: str, read: Callable[[], Any]) -> Any:
    """Read a part; an error of weft, in one line, is one way for it to end."""
    try:
        value = read()
        parts[name] = _digest(value)
        return value
    except WeftError as error:
        line = str(error)
        if not line or "\n" in line:
            raise FaultError(f"{name}: not one line: {line!r:.200}") from error
        return None


def read_trace(folder: Path) -> Parts:
    """All of a trace."""
    parts: Parts = {}
    opened: list[weft.Trace] = []

    def head() -> Any:
        trace = weft.open(folder)
        opened.append(trace)
        layers = [(x.name, x.kind, x.index, x.shape, x.scale, x.mask, x.softcap, x.deviation)
                  for x in trace.layers]  # fmt: skip
        return trace.sequences, trace.model, trace.positions, layers

    _read(parts, "head", head)
    for trace in opened:
        for number, layer in enumerate(trace.layers[:50]):
            for name in ("keys", "scores", "weights", "lse", "entropy", "rest", "count"):
                _read(
                    parts, f"{number}.{name}", lambda n=name, x=layer: getattr(x.graph, n)
                )  # fmt: skip
            _read(parts, f"{number}.queries", lambda x=layer: x.queries)
            _read(parts, f"{number}.keys of scores", lambda x=layer: x.keys)
            _read(parts, f"{number}.norms", lambda x=layer: x.value_norms)
            _read(parts, f"{number}.matrix", lambda x=layer: _tile(x))
    return parts


def _tile(layer: Any) -> Tensor | None:
    matrix = layer.matrix
    return None if matrix is None else matrix[0, :3, :5]


def read_run(folder: Path) -> Parts:
    """All of a run; its texts have no digest, so that they are read and not compared."""
    parts: Parts = {}
    loose: Parts = {}
    _read(loose, "run", lambda: RunFolder.open(folder).config())
    _read(loose, "state", lambda: RunFolder(folder).state)
    _read(loose, "metrics", lambda: RunFolder(folder).read_metrics())
    history = History(folder / "history")
    _read(loose, "measures", history.measures)
    for step in _read(loose, "steps", lambda: history.steps) or []:
        _read(parts, f"{step}", lambda s=step: _snapshot(history, s))
    _read(parts, "weights", lambda: [_digest(p) for p in open_run(folder).model.parameters()])
    return parts


def _snapshot(history: History, step: int) -> Any:
    found = history[step]
    return [
        (
            x.name,
            x.kind,
            x.query_tokens,
            x.key_tokens,
            x.measures,
            _digest(x.graph.weights),
            [_digest(matrix) for matrix in x.matrices.values()],
        )
        for x in found.layers
    ]


def read_model(folder: Path) -> Parts:
    """A model of Hugging Face: it has no digests, so nothing is compared."""
    _read({}, "model", lambda: load_pretrained(folder)[0].num_parameters())
    return {}


def read_config(folder: Path) -> Parts:
    """A configuration, which has no digest."""
    _read({}, "config", lambda: load_config(folder / "config.toml"))
    return {}


READINGS: dict[str, Callable[[Path], Parts]] = {
    "trace": read_trace, "terms": read_trace, "run": read_run, "model": read_model,
    "config": read_config,
}  # fmt: skip


def _verbs(kind: str, folder: Path, whole: Path, new: Path) -> list[tuple[object, ...]]:
    """Commands that read an input of a kind.

    folder: the damaged one; whole: the folder of the originals; new: where nothing is yet.
    """
    if kind in ("trace", "terms"):
        return [
            ("heads", folder), ("heads", folder, "--csv"), ("measures", folder, "--json"),
            ("rollout", folder), ("flow", folder, "--to", 0),
            ("query", folder, "select * from edges limit 3"),
            ("query", folder, "select * from heads, rows limit 3"),
            ("query", folder, "select * from keys, tokens, layers limit 3"),
            ("compare", folder, whole / kind), ("compare", whole / kind, folder),
            ("export", folder, "--html", new), ("export", folder, "--picture", f"{new}.png"),
            ("export", folder, "--parquet", new), ("export", folder, "--graphml", new),
        ]  # fmt: skip
    if kind == "run":
        return [
            ("evaluate", folder), ("translate", folder), ("heads", folder),
            ("weights", folder), ("weights", folder, "--history"),
            ("heads", folder, "--history", "previous"), ("relevance", folder, "--text", "de: 1"),
            ("trace", folder, "--text", "de: 1", "-o", new),
            ("train", whole / "config" / "config.toml", "--run", folder),
        ]  # fmt: skip
    if kind == "model":
        return [
            ("trace", folder, "--text", "a b c", "-o", new), ("weights", folder),
            ("relevance", folder, "--text", "a b"), ("ablate", folder, "--text", "a b"),
            ("trace", folder, "--text", "a b c d e", "--window", 3, "-o", new),
        ]  # fmt: skip
    return [("train", folder / "config.toml", "--run", new)]


def by_verb(kind: str, folder: Path, whole: Path, new: Path, chance: random.Random) -> str:
    """Run one command on an input; returns it.

    Raises: FaultError: it ended in a way that it must not.
    """
    command = chance.choice(_verbs(kind, folder, whole, new))
    if kind == "config":
        try:
            load_config(folder / "config.toml")
        except WeftError:
            pass
        else:
            return "no command: the configuration can be trained, for how long nobody knows"
    return run_verb(command)


def every_verb(whole: Path, new: Path) -> Iterator[tuple[object, ...]]:
    """Every command on whole inputs but the configuration, which would be trained."""
    for kind in ("trace", "terms", "run", "model"):
        for number in range(len(_verbs(kind, whole / kind, whole, new))):
            yield _verbs(kind, whole / kind, whole, new / f"{kind}-{number}")[number]


def run_verb(words: tuple[object, ...]) -> str:
    """Run a command in this process; returns it. Raises: FaultError: as by_verb."""
    command = [str(word) for word in words]
    out, err = io.StringIO(), io.StringIO()
    code: object = 0
    with (
        contextlib.redirect_stdout(out),
        contextlib.redirect_stderr(err),
        mock.patch.object(sys, "stdin", io.TextIOWrapper(io.BytesIO(b"de: 1\n"))),
    ):
        try:
            weft.cli.main(command)
        except SystemExit as stop:
            code = stop.code or 0
    said = " ".join(command)
    if code not in (0, 2):
        raise FaultError(f"{said}: exit code {code!r}: {err.getvalue()[-300:]}")
    lines = err.getvalue().splitlines()
    if code == 2 and (not lines or not lines[-1].startswith("weft: ")):
        raise FaultError(f"{said}: no line of weft's: {err.getvalue()[-300:]!r}")
    if code == 2 and sum(line.startswith("weft: ") for line in lines) > 1:
        raise FaultError(f"{said}: several lines: {err.getvalue()[-300:]!r}")
    if "Traceback" in err.getvalue():
        raise FaultError(f"{said}: a traceback: {err.getvalue()[-300:]}")
    unsafe = set("\x1b\x07\u202e") & set(out.getvalue() + err.getvalue())
    if unsafe:
        raise FaultError(f"{said}: {unsafe} reach the terminal")
    return said
