"""What reads an input through the library, part by part, and says what each part holds."""

from __future__ import annotations

import hashlib
from collections.abc import Callable
from dataclasses import dataclass, field
from pathlib import Path
from typing import Any

import torch
from torch import Tensor

import headloom
from headloom.errors import HeadloomError
from headloom.formats.history import History
from headloom.formats.run import RunFolder
from headloom.formats.trace import TraceLayer
from headloom.tracing.pretrained import load_pretrained
from headloom.training.config import load_config
from headloom.training.inference import open_run

__all__ = ["READINGS", "FaultError", "Reading"]


class FaultError(Exception):
    """What no damage may lead to."""


@dataclass
class Reading:
    """What came of reading an input.

    sealed: the digest of each part that has one on disk, by its name.
    loose: the digest of each part that nothing on disk tells from another.
    refused: the line of every part that could not be read, by its name.
    """

    sealed: dict[str, str] = field(default_factory=dict)
    loose: dict[str, str] = field(default_factory=dict)
    refused: dict[str, str] = field(default_factory=dict)

    def read(self, name: str, read: Callable[[], Any], loose: bool = False) -> Any:
        """Read a part; returns it, or None where it is refused in one line of headloom's."""
        try:
            value = read()
        except HeadloomError as error:
            line = str(error)
            if not line or "\n" in line:
                raise FaultError(f"{name}: not one line: {line!r:.200}") from error
            self.refused[name] = line
            return None
        (self.loose if loose else self.sealed)[name] = _digest(value)
        return value

    def differs(self, expected: Reading, sealed: bool) -> dict[str, str]:
        """The parts that hold something else; sealed: loose parts are compared as well."""
        ours = self.sealed | (self.loose if sealed else {})
        theirs = expected.sealed | expected.loose
        return {name: value for name, value in ours.items() if theirs.get(name) != value}


def _digest(value: Any) -> str:
    """What a value says, so that two can be compared."""
    if isinstance(value, Tensor):
        content = value.detach().contiguous().reshape(-1).view(torch.uint8).numpy().tobytes()
        return f"{value.dtype} {tuple(value.shape)} {hashlib.sha256(content).hexdigest()}"
    if isinstance(value, (list, tuple)):
        value = [_digest(part) for part in value]
    return hashlib.sha256(repr(value).encode("utf-8", "backslashreplace")).hexdigest()


def read_trace(folder: Path) -> Reading:
    """All of a trace."""
    reading = Reading()
    opened: list[headloom.Trace] = []

    def head() -> Any:
        trace = headloom.open(folder)
        opened.append(trace)
        layers = [
            (x.name, x.kind, x.index, x.shape, x.scale, x.mask, x.softcap, x.deviation)
            for x in trace.layers
        ]
        return repr((trace.sequences, trace.model, trace.positions, layers))

    reading.read("head", head)
    for trace in opened:
        for number, layer in enumerate(trace.layers[:20]):
            for name, read in _PARTS.items():
                reading.read(f"{number}.{name}", lambda read=read, x=layer: read(x))
    return reading


def _graph(layer: TraceLayer) -> Any:
    graph = layer.graph
    return [getattr(graph, name) for name in _OF_GRAPH]


def _tile(layer: TraceLayer) -> Tensor | None:
    matrix = layer.matrix
    return None if matrix is None else matrix[0, :3, :5]


_OF_GRAPH = ("keys", "scores", "weights", "lse", "entropy", "rest", "count")
_PARTS: dict[str, Callable[[TraceLayer], Any]] = {
    "graph": _graph,
    "queries": lambda layer: layer.queries,
    "keys": lambda layer: layer.keys,
    "norms": lambda layer: layer.value_norms,
    "tile": _tile,
}


def read_run(folder: Path) -> Reading:
    """All of a run; its texts have no digest."""
    reading = Reading()
    reading.read("run", lambda: RunFolder.open(folder).config(), loose=True)
    reading.read("state", lambda: RunFolder(folder).state, loose=True)
    reading.read("metrics", lambda: RunFolder(folder).read_metrics(), loose=True)
    history = History(folder / "history")
    reading.read("measures", history.measures)
    steps = reading.read("steps", lambda: history.steps)
    for step in steps or []:
        reading.read(f"snapshot {step}", lambda step=step: _snapshot(history, step))
    reading.read("weights", lambda: _parameters(open_run(folder).model))
    return reading


def _parameters(model: torch.nn.Module) -> list[Tensor]:
    return list(model.parameters())


def _snapshot(history: History, step: int) -> Any:
    return [
        (
            repr((x.name, x.kind, x.query_tokens, x.key_tokens, x.measures)),
            [getattr(x.graph, name) for name in _OF_GRAPH],
            list(x.matrices.values()),
        )
        for x in history[step].layers
    ]


def read_model(folder: Path) -> Reading:
    """A model of Hugging Face: it has no digests."""
    reading = Reading()
    reading.read("model", lambda: _parameters(load_pretrained(folder)[0]), loose=True)
    return reading


def read_config(folder: Path) -> Reading:
    """A configuration, which has no digest."""
    reading = Reading()
    reading.read("config", lambda: load_config(folder / "config.toml"), loose=True)
    return reading


READINGS: dict[str, Callable[[Path], Reading]] = {
    "trace": read_trace, "terms": read_trace, "run": read_run, "model": read_model,
    "config": read_config,
}  # fmt: skip
