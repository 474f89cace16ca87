"""A training run's history, and what `headloom view` opens: a trace, a run, or a folder of
traces.
"""

from __future__ import annotations

from collections.abc import Sequence
from pathlib import Path

from headloom.analysis.heads.formation import trace_of_snapshot
from headloom.analysis.weights import mean_left_out
from headloom.errors import DataError
from headloom.formats.files import JsonObject
from headloom.formats.folders import check_there
from headloom.formats.history import PRODUCT_SIZE, History, LayerSnapshot
from headloom.formats.run import RunFolder, is_run
from headloom.formats.trace import TraceData
from headloom.formats.trace_writer import MANIFEST
from headloom.mechanism.spectra import product_cells, query_key_measures
from headloom.studio.collection import Collection
from headloom.studio.page import collect
from headloom.studio.training import watched_summary, watched_training

__all__ = ["loss_curves", "open_collection", "open_traces", "probe_trace", "run_snapshots"]


def open_collection(path: Path) -> Collection:
    """What there is to see at a path.

    A trace of several that cannot be read is left out, and named in `damaged`.

    Raises: DataError: nothing, or something damaged or newer.
    """
    check_there(path, "trace or run")
    if is_run(path):
        return _open_run(RunFolder.open(path))
    if path.is_dir() and not (path / MANIFEST).exists():
        found = sorted(manifest.parent for manifest in path.glob(f"*/{MANIFEST}"))
        if found:
            names, traces, damaged = _readable(found)
            if not traces:
                others = f" Nor can the other {len(found) - 1}." if len(found) > 1 else ""
                raise DataError(damaged[0] + others)
            collection = collect(traces, path.resolve().name, names=names)
            collection.damaged = damaged
            return collection
        if not any(path.iterdir()):
            raise DataError(
                f"{path}: not a trace, a run, or a folder of traces: it is empty. Check the path."
            )
    name = _name(path)
    return collect([TraceData.open(path)], name, names=[name])


def open_traces(paths: Sequence[Path]) -> Collection:
    """Several traces, to compare. Raises: DataError: one is no trace, damaged or newer."""
    traces = [TraceData.open(path) for path in paths]
    for path, trace in zip(paths, traces, strict=True):
        if not trace.layers:
            raise DataError(f"{path}: this trace has no layer. Trace the model again.")
    names = [_name(path) for path in paths]
    if len({*names}) < len(names):  # the folders that they lie in tell them apart
        names = [
            f"{path.resolve().parent.name}/{name}" for path, name in zip(paths, names, strict=True)
        ]
    return collect(traces, ", ".join(names), names=names)


def _name(folder: Path) -> str:
    """What a trace is called: its folder without the ending of one."""
    return folder.resolve().name.removesuffix(".loom")


def _readable(folders: Sequence[Path]) -> tuple[list[str], list[TraceData], list[str]]:
    """Names and traces of the folders that can be read; of each other one which and why not."""
    names, traces, damaged = [], [], []
    for folder in folders:
        try:
            trace = TraceData.open(folder)
        except DataError as error:
            damaged.append(str(error))
            continue
        if not trace.layers:
            damaged.append(f"{folder}: this trace has no layer. Trace the model again.")
            continue
        names.append(_name(folder))
        traces.append(trace)
    return names, traces, damaged


def _open_run(run: RunFolder) -> Collection:
    history = History(run.history)
    if not history.steps:
        raise DataError(
            f"{run.path}: this run has no history yet. Train on, with training.history = true."
            if run.monitored() is None
            else f"{run.path}: this training has not been measured yet. Try again once it runs."
        )
    probe = probe_trace(history)
    monitored = run.monitored()
    folders = sorted(manifest.parent for manifest in (run.path / "traces").glob(f"*/{MANIFEST}"))
    names, traces, damaged = _readable(folders)
    collection = collect(
        [probe, *traces],
        run.path.resolve().name,
        names=["the probe", *names],
        history=run_snapshots(history),
        curves=loss_curves(run, history),
        probe=probe,
        summary=None if monitored is None else watched_summary(monitored),
        watched=watched_training(run, [layer.name for layer in probe.layers]),
        state=run.state,
    )
    collection.damaged = damaged
    return collection


def loss_curves(run: RunFolder, history: History) -> dict[str, list[tuple[float, float]]]:
    """The losses of a run: {"training loss": [(step, loss), ...], ...}.

    They are those of its metrics, after the first snapshot's: that of the matrices at the start.
    """
    curves = {}
    for title, name in (("training loss", "loss"), ("validation loss", "validation_loss")):
        points = [(report["step"], report[name]) for report in run.read_metrics() if name in report]
        if points:
            curves[title] = points
    training, start = curves.get("training loss"), history.notes(history.steps[0])
    if training and start["loss"] is not None and start["step"] < training[0][0]:
        training.insert(0, (start["step"], start["loss"]))
    return curves


def probe_trace(history: History) -> TraceData:
    """The last snapshot of a history as a trace: its probe, read by the learned matrices."""
    return trace_of_snapshot(history[history.steps[-1]])


def run_snapshots(history: History) -> list[JsonObject]:
    """A run's snapshots as `headloom.studio.page.export_page` takes them."""

    def of_layer(layer: LayerSnapshot) -> JsonObject:
        matrices, product = layer.matrices, layer.product
        measures: JsonObject = dict(layer.measures)
        if "W_Q" in matrices and "W_K" in matrices:
            queries, keys = matrices["W_Q"], matrices["W_K"]
            measures["norm"] = query_key_measures(queries, keys)["norm"].tolist()
            if queries.shape[1] == keys.shape[1]:
                product = product_cells(queries, keys, PRODUCT_SIZE)
        content: JsonObject = {
            "weights": layer.graph.dense(),
            "left_out": mean_left_out(layer.graph),
        }
        if product is not None:
            content["product"] = product
        return content | {
            name: measures[name]
            for name in ("norm", "effective_rank", "symmetry")
            if any(number is not None for number in measures.get(name, []))
        }

    return [
        {
            "step": snapshot.step,
            "loss": snapshot.loss,
            "layers": {layer.name: of_layer(layer) for layer in snapshot.layers},
        }
        for snapshot in history
    ]
