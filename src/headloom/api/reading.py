"""Arguments of public functions: traces in memory or on disk."""

from __future__ import annotations

from collections.abc import Sequence
from pathlib import Path
from typing import TypeAlias

from headloom.analysis.arguments import OneTrace, trace_of
from headloom.analysis.heads.formation import trace_of_snapshot
from headloom.errors import DataError
from headloom.formats.history import History
from headloom.formats.run import RunFolder, is_run
from headloom.formats.trace import TraceData

#: Traces, their paths, or a folder of them; or a training run, by its path.
Traces: TypeAlias = OneTrace | Sequence[OneTrace]


def traces_of(asker: str, x: Traces) -> list[TraceData]:
    """Return traces given as objects or paths; of a run, its last probe."""
    traces: list[TraceData] = []
    for item in [x] if isinstance(x, TraceData | Path | str) or hasattr(x, "path") else x:
        place = getattr(item, "path", item)  # of a run
        path = Path(place) if isinstance(place, str | Path) else None
        inside = sorted(path.glob("*/trace.json")) if path is not None and path.is_dir() else []
        if path is not None and is_run(path):
            past = history_of(path)
            traces.append(trace_of_snapshot(past[past.steps[-1]]))
        elif path is not None and inside and not (path / "trace.json").exists():
            traces += [TraceData.open(manifest.parent) for manifest in inside]
        else:
            traces.append(trace_of(asker, item))
    if not traces:
        raise DataError("no traces. Make one: headloom trace MODEL --text ... -o t.loom")
    return traces


def history_of(path: Path) -> History:
    """Open the history of a run. Raises: DataError: not a run, or one without snapshots."""
    past = History(RunFolder.open(path).history)
    if not past.steps:
        raise DataError(f"{path}: this run has no snapshots. Train with training.history = true.")
    return past


def labels(trace: TraceData) -> list[str]:
    """Return the names of a trace's layers in tables: 5, or 5 (cross 1)."""
    return [trace.label(number) for number in range(len(trace.layers))]
