"""Collections that `headloom view` opens: a trace, a run, or a folder of traces."""

from __future__ import annotations

from collections.abc import Sequence
from pathlib import Path

from headloom.errors import DataError
from headloom.formats.folders import check_there
from headloom.formats.manifest import MANIFEST
from headloom.formats.run import RunFolder, is_run
from headloom.formats.trace import TraceData
from headloom.studio.collection import Collection
from headloom.studio.page import collect
from headloom.studio.training import run_history


def open_collection(path: Path) -> Collection:
    """Open the collection at a path.

    A trace of several that cannot be read is skipped, and named in `damaged`.

    Raises: DataError: nothing to open, or it is damaged or newer.
    """
    check_there(path, "trace or run")
    if is_run(path):
        return _open_run(RunFolder.open(path))
    if path.is_dir() and not (path / MANIFEST).exists():
        names, traces, damaged = _readable(path)
        if traces:
            collection = collect(traces, path.resolve().name, names=names)
            collection.damaged = damaged
            return collection
        if damaged:
            others = f" The other {len(damaged) - 1} cannot be read either." * (len(damaged) > 1)
            raise DataError(damaged[0] + others)
        if not any(path.iterdir()):
            raise DataError(
                f"{path}: not a trace, a run, or a folder of traces: it is empty. Check the path."
            )
    return open_traces([path])


def open_traces(paths: Sequence[Path]) -> Collection:
    """Open one trace, or several to compare.

    Raises: DataError: one is not a trace, is damaged or newer.
    """
    traces = [_read(path) for path in paths]
    names = [_name(path) for path in paths]
    if len({*names}) < len(names):  # add the parent folders
        names = [
            f"{path.resolve().parent.name}/{name}" for path, name in zip(paths, names, strict=True)
        ]
    return collect(traces, ", ".join(names), names=names)


def _read(path: Path) -> TraceData:
    trace = TraceData.open(path)
    if not trace.layers:
        raise DataError(f"{path}: this trace has no layer. Trace the model again.")
    return trace


def _name(folder: Path) -> str:
    """Return the name of a trace: its folder's, without .loom."""
    return folder.resolve().name.removesuffix(".loom")


def _readable(folder: Path) -> tuple[list[str], list[TraceData], list[str]]:
    """Return names and traces of a folder, and the problems of those that cannot be read."""
    names, traces, damaged = [], [], []
    for path in sorted(manifest.parent for manifest in folder.glob(f"*/{MANIFEST}")):
        try:
            traces.append(_read(path))
            names.append(_name(path))
        except DataError as error:
            damaged.append(str(error))
    return names, traces, damaged


def _open_run(run: RunFolder) -> Collection:
    history = run_history(run)
    names, traces, damaged = _readable(run.path / "traces")
    summary = {}
    model = (run.monitored() or {}).get("model")
    if isinstance(model, dict):
        summary["model"] = str(model.get("name", "unknown"))
        if isinstance(model.get("parameters"), int):
            summary["parameters"] = f"{model['parameters']:,}"
    collection = collect(
        [history.probe, *traces], run.path.resolve().name, names=["the probe", *names],
        history=history, summary=summary,
    )  # fmt: skip
    collection.damaged = damaged
    return collection
