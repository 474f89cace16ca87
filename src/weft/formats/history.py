"""The history of a run: W_Q, W_K, W_V, W_O of every attention layer while they are learned.

One safetensors file a snapshot, ``step-00000128.safetensors``, with

    LAYER/W_Q, LAYER/W_K, LAYER/W_V    (heads, width, depth)
    LAYER/W_O                          (heads, depth, width)
    LAYER/probe/keys, ...              the attention graph of the probe, a fixed input

and in its notes the step, the loss, the measures of each head and the probe's tokens. Snapshots
follow a geometric schedule: much happens early.
"""

from __future__ import annotations

from collections.abc import Iterator
from dataclasses import dataclass
from pathlib import Path
from typing import Any

from torch import Tensor

from weft.errors import DataError
from weft.formats.tensors import load_tensors, read_notes, save_tensors
from weft.mechanism.graph import AttentionGraph

__all__ = ["MATRICES", "MEASURES", "History", "LayerSnapshot", "Snapshot", "write_snapshot"]

#: The learned matrices of a head.
MATRICES = ("W_Q", "W_K", "W_V", "W_O")

#: The measures of a head: Frobenius norms of its matrices and of their gradients, and of
#: W_Q W_K^T the effective rank, the symmetry and the directionality (weft.mechanism.spectra).
MEASURES = (
    *(f"norm_{name}" for name in MATRICES),
    *(f"gradient_norm_{name}" for name in MATRICES),
    "effective_rank",
    "symmetry",
    "directionality",
)

_GRAPH = ("keys", "scores", "weights", "lse", "entropy", "rest", "count")


@dataclass(frozen=True, eq=False)
class LayerSnapshot:
    """One attention layer at one step.

    matrices: "W_Q", "W_K", "W_V" (heads, width, depth), "W_O" (heads, depth, width).
    measures: of MEASURES, each one number a head; a gradient's norm is None where none was there.
    graph: the probe's attention graph, without a batch.
    query_tokens, key_tokens: of the probe.
    """

    name: str
    kind: str
    matrices: dict[str, Tensor]
    measures: dict[str, list[float | None]]
    graph: AttentionGraph
    query_tokens: list[str]
    key_tokens: list[str]


@dataclass(frozen=True, eq=False)
class Snapshot:
    """All attention layers at one step; step 0 is the random birth."""

    step: int
    loss: float | None
    layers: list[LayerSnapshot]

    def layer(self, name: str) -> LayerSnapshot:
        """A layer by its name."""
        for layer in self.layers:
            if layer.name == name:
                return layer
        raise DataError(
            f"the history has no layer {name!r}; it has {', '.join(x.name for x in self.layers)}."
        )


def write_snapshot(folder: Path, snapshot: Snapshot) -> None:
    """Add a snapshot to a history's folder, whole or not at all."""
    tensors: dict[str, Tensor] = {}
    layers = []
    for layer in snapshot.layers:
        tensors |= {f"{layer.name}/{name}": layer.matrices[name] for name in MATRICES}
        tensors |= {f"{layer.name}/probe/{name}": getattr(layer.graph, name) for name in _GRAPH}
        layers.append(
            {
                "name": layer.name,
                "kind": layer.kind,
                "measures": layer.measures,
                "length": layer.graph.length,
                "query_tokens": layer.query_tokens,
                "key_tokens": layer.key_tokens,
            }
        )
    notes = {"step": snapshot.step, "loss": snapshot.loss, "layers": layers}
    save_tensors(folder / f"step-{snapshot.step:08d}.safetensors", tensors, notes)


@dataclass(frozen=True)
class History:
    """A run's snapshots, read one at a time."""

    folder: Path

    @property
    def steps(self) -> list[int]:
        """The steps at which there is a snapshot, ascending."""
        return sorted(
            int(path.stem.removeprefix("step-")) for path in self.folder.glob("step-*.safetensors")
        )

    def _path(self, step: int) -> Path:
        return self.folder / f"step-{step:08d}.safetensors"

    def notes(self, step: int) -> dict[str, Any]:
        """Step, loss, layers and measures of a snapshot, without its tensors."""
        return read_notes(self._path(step), "snapshot")

    def __getitem__(self, step: int) -> Snapshot:
        tensors, notes = load_tensors(self._path(step), "snapshot")
        layers = []
        for layer in notes["layers"]:
            name = layer["name"]
            keys, scores, weights, lse, entropy, rest, count = (
                tensors[f"{name}/probe/{field}"] for field in _GRAPH
            )
            graph = AttentionGraph(
                keys, scores, weights, lse, entropy, rest, count, int(layer["length"])
            )
            layers.append(
                LayerSnapshot(
                    name,
                    layer["kind"],
                    {matrix: tensors[f"{name}/{matrix}"] for matrix in MATRICES},
                    layer["measures"],
                    graph,
                    layer["query_tokens"],
                    layer["key_tokens"],
                )
            )
        return Snapshot(notes["step"], notes["loss"], layers)

    def __len__(self) -> int:
        return len(self.steps)

    def __iter__(self) -> Iterator[Snapshot]:
        for step in self.steps:
            yield self[step]

    def measures(self) -> list[dict[str, Any]]:
        """One row a step, layer and head: `step`, `layer`, `kind`, `head` and MEASURES."""
        rows = []
        for step in self.steps:
            for layer in self.notes(step)["layers"]:
                heads = len(layer["measures"]["symmetry"])
                rows += [
                    {
                        "step": step,
                        "layer": layer["name"],
                        "kind": layer["kind"],
                        "head": head,
                        **{name: layer["measures"][name][head] for name in MEASURES},
                    }
                    for head in range(heads)
                ]
        return rows

    def rewind(self, step: int) -> None:
        """Forget snapshots of later steps, before the run goes on from this one."""
        for later in self.steps:
            if later > step:
                self._path(later).unlink()
