"""Run folder of a monitored training: created, resumed, written to.

It has the format of `headloom.formats.run`, which `headloom view` and `headloom heads` read:
metrics, measures and snapshots. It does not contain the model or its data.
"""

from __future__ import annotations

import shutil
from collections.abc import Iterator, Mapping, Sequence
from contextlib import contextmanager
from dataclasses import dataclass
from itertools import zip_longest
from pathlib import Path
from typing import cast

import torch

from headloom.analysis.monitor.measures import MeasuredLayer, Numbers
from headloom.errors import InputError
from headloom.formats.files import JsonMapping, JsonObject, finite
from headloom.formats.history import PRODUCT_SIZE, History, LayerSnapshot, Snapshot, write_snapshot
from headloom.formats.run import RunFolder, is_run
from headloom.mechanism.spectra import matrix_measures, product_cells

#: Bytes of a snapshot's matrices above which only their pictures are kept.
LARGE = 64 * 2**20


@contextmanager
def opened(path: Path, step: int | None, overwrite: bool) -> Iterator[Record]:
    """Open the record of a training that begins, or resumes after a step.

    Args:
        path: the folder; created if missing.
        step: number of steps done; None: the training begins.
        overwrite: whether a new training replaces a monitored training in the folder; other
            folders are never replaced.

    Raises: InputError: the folder holds something else, or another training; DataError: it cannot
    be created or is damaged.
    """
    with RunFolder.training_lock(path):
        folder = RunFolder(path)
        replaces = overwrite and step is None
        if is_run(path):
            if RunFolder.open(path).monitored() is None:
                raise InputError(
                    f"{path}: this is the folder of a headloom training run. Choose another folder."
                )
            reports = [] if replaces or step is not None else folder.measures.read()
            if reports and reports[-1]["step"]:
                raise InputError(
                    f"{path}: holds a training of {reports[-1]['step']:,} steps already. Choose "
                    "another folder, give step= to go on from a step, or overwrite=True."
                )
        yield Record(folder, step or 0, is_run(path) and not replaces)


@dataclass(frozen=True)
class Record:
    """Writer of a monitored training's folder.

    goes_on: whether the training resumes, and its records up to the step stay.
    """

    folder: RunFolder
    step: int
    goes_on: bool

    def begin(self, about: JsonMapping, layers: Sequence[MeasuredLayer]) -> list[JsonObject]:
        """Begin, or resume: records after the step are deleted.

        Args: about: description of the model and the monitor. layers: at the first measure.
        Returns: earlier measures.
        Raises: InputError: the folder holds a training of another model.
        """
        folder = self.folder
        described = [_described(layer) for layer in layers]
        if self.goes_on:
            _check_same(folder.path, (folder.monitored() or {})["layers"], described)
            folder.reports.rewind(self.step)
            folder.measures.rewind(self.step)
            History(folder.history).rewind(self.step)
            folder.set_state("training")
            return folder.measures.read()
        content: JsonObject = {"monitor": {**about, "layers": described}}
        if is_run(folder.path):
            # Replace the other training; unrelated files stay.
            shutil.rmtree(folder.history, ignore_errors=True)
            for file in (folder.reports.path, folder.measures.path, folder.probe):
                file.unlink(missing_ok=True)
            folder.history.mkdir(exist_ok=True)
            folder.set_config(content)
            folder.set_state("training")
        else:
            RunFolder.create(folder.path, content)
        return []

    def add(
        self, step: int, layers: Sequence[MeasuredLayer], alarms: Sequence[JsonMapping],
        seconds: float,
    ) -> None:  # fmt: skip
        """Add the measures of a step."""
        report: JsonObject = {
            "step": step,
            "seconds": round(seconds, 3),
            "layers": {layer.name: _short(layer.measures) for layer in layers},
        }
        if alarms:
            report["warnings"] = [dict(alarm) for alarm in alarms]
        self.folder.measures.append(report)

    def add_snapshot(
        self, step: int, loss: float | None, layers: Sequence[MeasuredLayer], keeps: bool
    ) -> None:
        """Add a snapshot; keeps: whether to store the matrices, not only their pictures."""
        entries = [_snapshot(layer, keeps) for layer in layers]
        write_snapshot(self.folder.history, Snapshot(step, loss, entries))

    @property
    def last_snapshot(self) -> int | None:
        """Step of the last snapshot; None: no snapshot."""
        return next(reversed(History(self.folder.history).steps), None)


def _check_same(path: Path, before: Sequence[JsonMapping], now: Sequence[JsonMapping]) -> None:
    """Raise an InputError unless the layers equal those of the resumed training."""
    for was, layer in zip_longest(before, now, fillvalue=cast(JsonMapping, {})):
        if (was.get("name"), was.get("heads")) != (layer.get("name"), layer.get("heads")):
            raise InputError(
                f"{path}: a training of another model: layer {was.get('name')} with "
                f"{was.get('heads')} heads there, {layer.get('name')} with {layer.get('heads')} "
                "now. Choose another folder."
            )


def _described(layer: MeasuredLayer) -> JsonObject:
    matrices = layer.matrices
    missing = ["W_Q", "W_K", "W_V", "W_O"] if matrices is None else ["W_O"] * (matrices.W_O is None)
    return {
        "name": layer.name, "kind": layer.layer.kind, "heads": layer.layer.heads,
        "unknown_matrices": missing, "deviation": finite(layer.layer.deviation),
    }  # fmt: skip


def _short(measures: Mapping[str, Numbers]) -> JsonObject:
    """Round measures to 6 significant digits."""
    return {
        name: [None if value is None else float(f"{value:.6g}") for value in values]
        for name, values in measures.items()
    }


def bytes_of(layers: Sequence[MeasuredLayer]) -> int:
    """Return the size of a snapshot's matrices in bytes."""
    return sum(m.nbytes for x in layers if x.matrices for _, m in x.matrices.known())


@torch.no_grad()
def _snapshot(measured: MeasuredLayer, keeps: bool) -> LayerSnapshot:
    layer, known = measured.layer, measured.matrices
    matrices = {} if known is None else dict(known.known())
    finite = {name: m for name, m in matrices.items() if bool(m.isfinite().all())}
    measures = matrix_measures(finite, None, layer.heads)
    product = None
    if not keeps and "W_Q" in finite and "W_K" in finite:
        queries, keys = finite["W_Q"], finite["W_K"]
        if queries.shape[1] == keys.shape[1]:
            product = product_cells(queries, keys, PRODUCT_SIZE)
    extra = _short(
        {name: measured.measures[name] for name in measured.measures if name not in measures}
    )
    return LayerSnapshot(
        name=measured.name, kind=layer.kind, matrices=matrices if keeps else {},
        measures=measures | extra, graph=layer.graph, query_tokens=layer.query_tokens,
        key_tokens=layer.key_tokens, scale=layer.scale, product=product,
    )  # fmt: skip
