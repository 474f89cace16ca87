"""History of a run: W_Q, W_K, W_V, W_O of every attention layer during training.

Each snapshot is a safetensors file, ``step-00000128.safetensors``, described in docs/formats.md.
Snapshots follow a geometric schedule: most changes happen early. In another library's model (see
`headloom.analysis.monitor`) a matrix that was not recognised is left out, with its measures.
"""

from __future__ import annotations

import math
from collections.abc import Iterable, Iterator
from dataclasses import dataclass
from os import PathLike
from pathlib import Path
from typing import TYPE_CHECKING, Any, ClassVar, overload

import numpy as np
from numpy.typing import NDArray
from torch import Tensor

from headloom.errors import DataError, Hints, InputError
from headloom.formats.files import JsonObject, cannot_read, is_there
from headloom.formats.manifest import is_count, misfit
from headloom.formats.tensors import load_tensors, read_notes, save_tensors
from headloom.mechanism.drawn import Drawn
from headloom.mechanism.graph import AttentionGraph
from headloom.mechanism.shapes import in_words
from headloom.mechanism.spectra import MATRICES, MEASURES

if TYPE_CHECKING:
    import pandas
    from matplotlib.axes import Axes
    from matplotlib.figure import Figure


#: Edges kept in each row of the probe. A probe is short: these are all or nearly all.
PROBE_EDGES = 64

#: Rows and columns of W_Q W_K^T in a picture; a larger one shows the strongest of each block.
PRODUCT_SIZE = 40

_GRAPH = ("keys", "scores", "weights", "lse", "entropy", "rest", "count")


def is_snapshot_step(step: int, growth: float, before: int | None = None) -> bool:
    """Whether a step belongs to the geometric schedule 0, 1, growth, growth^2, ... (rounded up).

    before: an earlier step; then whether any step after it, up to this one, belongs.

    >>> [step for step in range(40) if is_snapshot_step(step, 2.0)]
    [0, 1, 2, 4, 8, 16, 32]
    >>> [step for step in range(20) if is_snapshot_step(step, 1.5)]
    [0, 1, 2, 3, 4, 6, 8, 12, 18]
    >>> [step for step in range(5, 75, 10) if is_snapshot_step(step, 2.0, step - 10)]
    [5, 15, 25, 35, 65]
    """
    before = step - 1 if before is None else before
    # With growth <= step / before, a power of it lies between the two.
    if step < 2 or step >= growth * before:
        return True
    power = round(math.log(step) / math.log1p(growth - 1))
    return any(before < growth**near <= step for near in (power - 1, power, power + 1))


@dataclass(frozen=True, eq=False, repr=False)
class LayerSnapshot:
    """One attention layer at one step.

    matrices: "W_Q", "W_K" (heads, width, depth), "W_V" (heads, width, value_depth), "W_O" (heads,
        value_depth, width), as far as known. W_K and W_V may be (kv_heads, ...).
    measures: MEASURES, a number for each head, None without the matrix or gradient; in a monitored
        training also those of `headloom.analysis.monitor.measures`.
    graph: attention graph of the probe, without a batch.
    query_tokens, key_tokens: of the probe.
    """

    name: str
    kind: str
    matrices: dict[str, Tensor]
    measures: dict[str, list[float | None]]
    graph: AttentionGraph
    query_tokens: list[str]
    key_tokens: list[str]
    scale: float | None = None
    product: Tensor | None = None

    def __repr__(self) -> str:
        matrices = "".join(f", {name} {tuple(part.shape)}" for name, part in self.matrices.items())
        return f"LayerSnapshot({self.name}{matrices})"


@dataclass(frozen=True, eq=False, repr=False)
class Snapshot:
    """All attention layers at one step; at step 0 their matrices are random."""

    step: int
    loss: float | None
    layers: list[LayerSnapshot]

    def layer(self, name: str | int) -> LayerSnapshot:
        """Return a layer by its name or its number."""
        for number, layer in enumerate(self.layers):
            if name in (layer.name, number, number - len(self.layers)):
                return layer
        raise DataError(
            f"the history has no layer {name!r}; it has {', '.join(x.name for x in self.layers)}."
        )

    def __repr__(self) -> str:
        return f"Snapshot(step {self.step:,}: {', '.join(layer.name for layer in self.layers)})"


def write_snapshot(folder: Path, snapshot: Snapshot) -> None:
    """Add a snapshot to a history's folder, atomically."""
    tensors: dict[str, Tensor] = {}
    layers = []
    for layer in snapshot.layers:
        tensors |= {f"{layer.name}/{name}": matrix for name, matrix in layer.matrices.items()}
        if layer.product is not None:
            tensors[f"{layer.name}/product"] = layer.product
        tensors |= {f"{layer.name}/probe/{name}": getattr(layer.graph, name) for name in _GRAPH}
        layers.append(
            {
                "name": layer.name, "kind": layer.kind, "matrices": list(layer.matrices),
                "product": layer.product is not None, "measures": layer.measures,
                "length": layer.graph.length, "query_tokens": layer.query_tokens,
                "key_tokens": layer.key_tokens, "scale": layer.scale,
            }
        )  # fmt: skip
    notes = {"step": snapshot.step, "loss": snapshot.loss, "layers": layers}
    save_tensors(folder / f"step-{snapshot.step:08d}.safetensors", tensors, notes)


_LAYER: JsonObject = {
    "name": str,
    "kind": str,
    "length": is_count(),
    "product?": bool,
    "matrices": [lambda name: name in MATRICES],
    "scale?": (int, float),
    "query_tokens": [str],
    "key_tokens": [str],
    "measures": {name: [(int, float, type(None))] for name in MEASURES},
}
_NOTES: JsonObject = {"step": is_count(2**53), "loss?": (int, float), "layers": [_LAYER]}


def _layer(entry: JsonObject, tensors: dict[str, Tensor]) -> LayerSnapshot:
    """Return a layer from its notes and the tensors of its snapshot."""
    name, length, heads = entry["name"], entry["length"], len(entry["measures"]["symmetry"])
    matrices = {matrix: tensors[f"{name}/{matrix}"].float() for matrix in entry["matrices"]}
    product = tensors[f"{name}/product"].float() if entry.get("product") else None
    parts = [tensors[f"{name}/probe/{part}"] for part in _GRAPH]
    keys, scores, weights, lse, entropy, rest, count = parts
    rows = (heads, len(entry["query_tokens"]))
    fits = all(part.shape[:2] == rows for part in parts) and length == len(entry["key_tokens"])
    if not fits or not bool(((keys >= -1) & (keys < length)).all()):
        raise ValueError("a graph that fits its tokens")
    graph = AttentionGraph(keys, scores, weights, lse, entropy, rest, count, length)
    return LayerSnapshot(
        name, entry["kind"], matrices, entry["measures"], graph, entry["query_tokens"],
        entry["key_tokens"], entry.get("scale"), product,
    )  # fmt: skip


@dataclass(frozen=True)
class History(Drawn, Hints):
    """Snapshots of a run, read one at a time; folder: of the run, or its history.

    ``history[step]`` is the snapshot of a step, ``history[-1]`` the last one, ``history[-2]`` the
    one before it; ``history["W_Q", layer]`` one matrix at every step; ``history.measures()`` a
    table of measures of every head.

    Raises: DataError: no such history or snapshot, or a damaged one.
    """

    folder: Path

    _elsewhere: ClassVar[dict[str, str]] = {
        **dict.fromkeys(("matrices", "weights"), 'history["W_Q", layer]'),
        **dict.fromkeys(("to_pandas", "to_frame", "metrics"), "measures()"),
        **dict.fromkeys(("record", "log", "append"), "headloom.monitor(model)"),
    }

    def __post_init__(self) -> None:
        if not isinstance(self.folder, str | PathLike):
            raise InputError(
                f"History: {type(self.folder).__name__}; expected the folder of a run. "
                "headloom.monitor(model) keeps the history of a training of your own."
            )
        folder = Path(self.folder)
        folder = folder / "history" if is_there(folder / "run.json", "history") else folder
        object.__setattr__(self, "folder", folder)
        # A run can be without a history.
        if not is_there(folder, "history") and not is_there(folder.parent / "run.json"):
            raise DataError(f"{folder}: no such history. Give the folder of a run, as runs/demo.")

    def plot(
        self,
        name: str | None = None,
        layer: int | str | None = None,
        head: int | None = None,
        *,
        ax: Axes | Figure | None = None,
        width: float | None = None,
        **options: object,
    ) -> Any:
        """Draw the course of a training: losses and measures, or a matrix from random to trained.

        Args:
            name: "loss" or one of MEASURES: a line for every head; "W_Q", "W_K", "W_V", "W_O",
                "W_Q W_K^T" or "weights" (of the probe): the matrix of a head at its snapshots.
                None: the loss and the main measures.
            layer: its number or name; None: all for a measure, the first for a matrix.
            head: head index; None: as for `layer`.
            ax: see `headloom.TraceLayer.plot`.
            width: see `headloom.TraceLayer.plot`.
            options: of `Axes.plot` for lines, of `Axes.imshow` for matrices; for matrices also
                ``title``, and ``shown``, the maximal number of snapshots.

        Returns: axes, or an array of them, one for each curve or snapshot.
        Raises: InputError: no such name or head. DataError: no such layer, or no snapshot.
        """
        return self._plot("history", self, name, layer, head, ax=ax, width=width, **options)

    @property
    def steps(self) -> list[int]:
        """Steps that have a snapshot, ascending."""
        try:
            # Not by glob, which takes an unreadable folder for an empty one.
            files = list(self.folder.iterdir())
        except (FileNotFoundError, NotADirectoryError):
            return []
        except OSError as error:
            raise cannot_read(self.folder, "history", error) from error
        names = [path.stem[5:] for path in files if path.match("step-*.safetensors")]
        return sorted(int(name) for name in names if name.isascii() and name.isdigit())

    def _path(self, step: int) -> Path:
        return self.folder / f"step-{step:08d}.safetensors"

    def notes(self, step: int) -> JsonObject:
        """Read step, loss, layers and measures of a snapshot, without its tensors."""
        notes = read_notes(self._path(step), "snapshot")
        self._check(step, notes)
        return notes

    def _check(self, step: int, notes: JsonObject) -> None:
        """Raise a DataError unless the notes are of a snapshot of this step."""
        wrong = misfit(notes, _NOTES, "notes")
        if wrong is not None or notes["step"] != step:
            raise DataError(
                f"{self._path(step)}: this snapshot is damaged: {wrong or 'notes.step'} is missing "
                "or invalid."
            )

    @overload
    def __getitem__(self, step: int) -> Snapshot: ...
    @overload
    def __getitem__(self, step: str | tuple[str, int | str]) -> NDArray[np.float32]: ...
    def __getitem__(self, step: int | str | tuple[str, int | str]) -> object:
        """Return a snapshot, ``history[step]``, or a matrix at every step, ``history["W_Q", 0]``.

        Returns: for a matrix (steps, heads, width, depth), steps as in `steps`, the layer by its
            number or path; ``history["W_Q"]``: (steps, layers, heads, width, depth).
        Raises: InputError: no such matrix, or its shape differs between layers.
        """
        if isinstance(step, str | tuple):
            return self._matrices(*((step,) if isinstance(step, str) else step))
        if step < 0:
            steps = self.steps
            if step < -len(steps):
                raise DataError(
                    f"{self.folder}: no snapshot {step} from the end; there are {len(steps)}, "
                    "at the steps in history.steps."
                )
            step = steps[step]
        tensors, notes = load_tensors(self._path(step), "snapshot")
        self._check(step, notes)
        try:
            layers = [_layer(entry, tensors) for entry in notes["layers"]]
        except (KeyError, ValueError) as error:
            raise DataError(
                f"{self._path(step)}: this snapshot is damaged: a layer lacks {error}."
            ) from error
        return Snapshot(notes["step"], notes["loss"], layers)

    def get(
        self,
        name: str,
        layer: int | str | None = None,
        head: int | None = None,
        step: int | None = None,
    ) -> NDArray[np.float32]:
        """Return ``history[name, layer]``, of one head or at one step where these are given.

        Raises: as ``history[name, layer]``; DataError: there is no snapshot of this step.
        """
        if step is None:
            matrices = self._matrices(name, layer)
        else:
            matrices = self._matrices(name, layer, [self[step]])[0]
        return matrices if head is None else matrices[..., head, :, :]

    def _matrices(
        self, name: str, layer: int | str | None = None, snapshots: Iterable[Snapshot] | None = None
    ) -> NDArray[np.float32]:
        """Return a matrix at every step, of a layer or of all."""
        stacked = []
        for snapshot in snapshots or self._nonempty():
            layers = snapshot.layers if layer is None else [snapshot.layer(layer)]
            parts = [part.matrices[name] for part in layers if name in part.matrices]
            if len(parts) != len(layers) or len({part.shape for part in parts}) != 1:
                known = "; ".join(f"{n}: {entry}" for n, entry in enumerate(snapshot.layers))
                raise InputError(
                    f"history: no {in_words(name)} of one shape in every layer. Choose a matrix "
                    f'and a layer, as history["W_Q", 0]: {known}.'
                )
            stacked.append(np.stack([part.numpy() for part in parts]))
        return np.stack(stacked) if layer is None else np.stack(stacked)[:, 0]

    def _nonempty(self) -> History:
        """Return the history itself. Raises: DataError: it has no snapshot."""
        if self.steps:
            return self
        raise DataError(f"{self.folder}: no snapshots. Give the folder of a run, as runs/demo.")

    def __len__(self) -> int:
        return len(self.steps)

    def __iter__(self) -> Iterator[Snapshot]:
        for step in self.steps:
            yield self[step]

    def measures(self) -> pandas.DataFrame:
        """Return a row for each step, layer and head: `step`, `layer`, `kind`, `head`, MEASURES.

        NaN: no such matrix or gradient.

        Raises: DataError: there is no snapshot.
        """
        import pandas

        tables = []
        for step in self._nonempty().steps:
            for layer in self.notes(step)["layers"]:
                table = pandas.DataFrame({name: layer["measures"][name] for name in MEASURES})
                places = {"step": step, "layer": layer["name"], "kind": layer["kind"]}
                tables.append(table.astype("float64").assign(**places, head=table.index))
        table = pandas.concat(tables, ignore_index=True)
        return table[["step", "layer", "kind", "head", *MEASURES]]

    def rewind(self, step: int) -> None:
        """Delete the snapshots of later steps, before the run resumes from this one."""
        for later in self.steps:
            if later > step:
                self._path(later).unlink()

    def remove(self, step: int) -> None:
        """Delete the snapshot of a step, if there is one."""
        self._path(step).unlink(missing_ok=True)
