"""The run folder of a watched training: begun, taken up again, written to.

It is the folder of a training as `headloom.formats.run` has it, which `headloom view` and `headloom
heads` read: metrics, measures and snapshots. The model and its data are their owner's and are not
in it.
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
from torch import Tensor

from headloom.analysis.monitor.measures import LayerSeen, Numbers
from headloom.errors import InputError
from headloom.formats.files import JsonMapping, JsonObject, finite
from headloom.formats.history import (
    PRODUCT_SIZE,
    History,
    LayerSnapshot,
    Snapshot,
    write_snapshot,
)
from headloom.formats.run import RunFolder, is_run
from headloom.mechanism.spectra import matrix_measures, product_cells

#: Bytes of the matrices of a snapshot above which only their pictures are kept.
LARGE = 64 * 2**20


@contextmanager
def opened(path: Path, step: int | None, overwrite: bool) -> Iterator[Record]:
    """The record of a training that begins, or goes on after a step.

    Args:
        path: the folder; made if it is not there.
        step: steps that are done; None: the training begins.
        overwrite: where it begins, remove a watched training that is there, and nothing else.

    Raises: InputError: the folder holds something else, or a training that would be mixed with
    this one; DataError: it cannot be made or is damaged.
    """
    with RunFolder.training_lock(path):
        folder = RunFolder(path)
        replaces = overwrite and step is None
        if is_run(path):
            if RunFolder.open(path).monitored() is None:
                raise InputError(
                    f"{path}: this is the folder of a training of headloom's own. Choose another "
                    "folder."
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
    """Writes what is known of a watched training to its folder.

    goes_on: whether it is there already, and what was written up to the step stays.
    """

    folder: RunFolder
    step: int
    goes_on: bool

    def begin(self, about: JsonMapping, layers: Sequence[LayerSeen]) -> list[JsonObject]:
        """Begin, or go on: what was written after the step is forgotten.

        Args: about: what is known of the model and the watch. layers: as they are measured first.
        Returns: the measures that are there already.
        Raises: InputError: a training of another model is there.
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
            # In the place of another; what is not of it stays.
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
        self, step: int, layers: Sequence[LayerSeen], alarms: Sequence[JsonMapping], seconds: float
    ) -> None:
        """Add what was measured at a step."""
        report: JsonObject = {
            "step": step,
            "seconds": round(seconds, 3),
            "layers": {layer.name: _short(layer.measures) for layer in layers},
        }
        if alarms:
            report["warnings"] = [dict(alarm) for alarm in alarms]
        self.folder.measures.append(report)

    def add_snapshot(
        self, step: int, loss: float | None, layers: Sequence[LayerSeen], keeps: bool
    ) -> None:
        """Add a snapshot; keeps: the matrices themselves, not their pictures alone."""
        entries = [_snapshot(layer, keeps) for layer in layers]
        write_snapshot(self.folder.history, Snapshot(step, loss, entries))

    @property
    def last_snapshot(self) -> int | None:
        """The step of the last snapshot."""
        return next(reversed(History(self.folder.history).steps), None)


def _check_same(path: Path, before: Sequence[JsonMapping], now: Sequence[JsonMapping]) -> None:
    """Raise an InputError unless the layers are those of the training that is taken up again."""
    for was, layer in zip_longest(before, now, fillvalue=cast(JsonMapping, {})):
        if (was.get("name"), was.get("heads")) != (layer.get("name"), layer.get("heads")):
            raise InputError(
                f"{path}: a training of another model: layer {was.get('name')} with "
                f"{was.get('heads')} heads there, {layer.get('name')} with {layer.get('heads')} "
                "now. Choose another folder."
            )


def _described(layer: LayerSeen) -> JsonObject:
    own = layer.matrices
    missing = ["W_Q", "W_K", "W_V", "W_O"] if own is None else ["W_O"] * (own.W_O is None)
    return {
        "name": layer.name,
        "kind": layer.layer.kind,
        "heads": layer.layer.heads,
        "unknown_matrices": missing,
        "deviation": finite(layer.layer.deviation),
    }


def _short(measures: Mapping[str, Numbers]) -> JsonObject:
    """Measures with 6 significant digits."""
    return {
        name: [None if value is None else float(f"{value:.6g}") for value in values]
        for name, values in measures.items()
    }


def bytes_of(layers: Sequence[LayerSeen]) -> int:
    """How much room the matrices of a snapshot take."""
    return sum(matrix.nbytes for layer in layers for matrix in _matrices(layer).values())


def _matrices(layer: LayerSeen) -> dict[str, Tensor]:
    own = layer.matrices
    if own is None:
        return {}
    named = {"W_Q": own.W_Q, "W_K": own.W_K, "W_V": own.W_V, "W_O": own.W_O}
    return {name: matrix for name, matrix in named.items() if matrix is not None}


@torch.no_grad()
def _snapshot(seen: LayerSeen, keeps: bool) -> LayerSnapshot:
    layer, matrices = seen.layer, _matrices(seen)
    finite = {name: m for name, m in matrices.items() if bool(m.isfinite().all())}
    measures = matrix_measures(finite, None, layer.heads)
    product = None
    if not keeps and "W_Q" in finite and "W_K" in finite:
        queries, keys = finite["W_Q"], finite["W_K"]
        if queries.shape[1] == keys.shape[1]:
            product = product_cells(queries, keys, PRODUCT_SIZE)
    extra = _short({name: seen.measures[name] for name in seen.measures if name not in measures})
    return LayerSnapshot(
        name=seen.name,
        kind=layer.kind,
        matrices=matrices if keeps else {},
        measures=measures | extra,
        graph=layer.graph,
        query_tokens=layer.query_tokens,
        key_tokens=layer.key_tokens,
        scale=layer.scale,
        product=product,
    )
