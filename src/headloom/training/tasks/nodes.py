"""Classes of a graph's nodes, from their features and their neighbours.

Transductive: training sees the whole graph, but the labels of some nodes only. Inductive: training
sees the graph of the training nodes alone; validation and test see all nodes.
"""

from __future__ import annotations

from collections.abc import Callable
from dataclasses import dataclass, replace
from pathlib import Path

import numpy as np
import scipy.sparse
import torch
from numpy.typing import NDArray
from torch import Tensor
from torch.nn.functional import cross_entropy

from headloom.errors import InputError, ShapeError
from headloom.formats.stored_arrays import read_npz
from headloom.models.predictor import Predictor
from headloom.training.batches import Batch
from headloom.training.data import DataDescription
from headloom.training.measures import Results, digest, label_measures, mean_measure
from headloom.training.sections import NodesConfig
from headloom.training.tasks.task import Plan, Probe, Task

#: The label of a node whose class is not known.
UNKNOWN = -1

#: The names of a split in files: of numbers of nodes, and of a mask.
_NAMES = {"train": ("train", "train_mask"), "valid": ("val", "val_mask"),
          "test": ("test", "test_mask")}  # fmt: skip
#: The names of the parts of features that are mostly 0.
_SPARSE = ("x_data", "x_indices", "x_indptr", "x_shape")


@dataclass(frozen=True, eq=False)
class NodeData:
    """Graph whose nodes have features and classes.

    features     float32, (nodes, features)
    edge_index   int64, (2, edges), sources over targets; duplicate edges count twice
    labels       int64, (nodes,): the number of the class, UNKNOWN where there is none
    classes      the names of the classes
    names        the names of the nodes
    splits       the nodes of "train", "valid" and "test", int64; "test" may be missing
    """

    features: Tensor
    edge_index: Tensor
    labels: Tensor
    classes: list[str]
    names: list[str]
    splits: dict[str, Tensor]

    @property
    def nodes(self) -> int:
        """Number of nodes."""
        return len(self.features)

    def row_normalised(self) -> NodeData:
        """Divide each node's features by the sum of their absolute values."""
        sums = self.features.abs().sum(1, keepdim=True)
        return replace(self, features=self.features / sums.masked_fill(sums == 0, 1))

    def undirected(self) -> NodeData:
        """Add every edge's reverse, and keep each edge once."""
        both = torch.cat((self.edge_index, self.edge_index.flip(0)), 1)
        return replace(self, edge_index=torch.unique(both, dim=1))

    def checked(self, source: str) -> NodeData:
        """Return the data; raise an error where parts do not fit, or a test node is trained on."""
        if len(self.labels) != self.nodes or len(self.names) != self.nodes:
            raise ShapeError(
                f"{source}: {len(self.labels)} labels for {self.nodes} rows of features. Give one "
                "row and one label for each node."
            )
        if self.edge_index.ndim != 2 or len(self.edge_index) != 2:
            raise ShapeError(
                f"{source}: edge_index is {tuple(self.edge_index.shape)}; expected (2, edges)."
            )
        for what, nodes in {"edge_index": self.edge_index.flatten(), **self.splits}.items():
            wrong = nodes[(nodes < 0) | (nodes >= self.nodes)]
            if len(wrong):
                raise InputError(
                    f"{source}: {what!r} names node {int(wrong[0])}; there are {self.nodes} nodes, "
                    f"0 to {self.nodes - 1}."
                )
        missing = [name for name in ("train", "valid") if name not in self.splits]
        if missing:
            raise InputError(f"{source}: no node is in {missing[0]!r}. Add some.")
        test = self.splits.get("test", torch.empty(0, dtype=torch.long))
        for name, chosen in self.splits.items():
            unknown = chosen[self.labels[chosen] == UNKNOWN]
            both = chosen[torch.isin(chosen, test)] if name != "test" else chosen[:0]
            if len(unknown):
                raise InputError(
                    f"{source}: node {self.names[unknown[0]]} is in {name!r}, and its label is "
                    "unknown. Give its class, or remove it from the split."
                )
            if len(both):
                raise InputError(
                    f"{source}: node {self.names[both.min()]} is in {name!r} and in 'test': the "
                    "test would measure training data. Remove it from one of them."
                )
        return self


def read_nodes(path: Path) -> NodeData:
    """Read a graph from an .npz file, as `numpy.savez` writes a PyTorch Geometric `Data`.

    It holds ``edge_index`` (2, edges), ``x`` (nodes, features), ``y`` (nodes,), and the splits as
    numbers of nodes, ``train``, ``val`` and ``test``, or as masks, ``train_mask``, ``val_mask``
    and ``test_mask``. Optional: ``classes`` and ``names``, texts. ``x`` may be given as the parts
    of a SciPy sparse array: ``x_data``, ``x_indices``, ``x_indptr``, ``x_shape``.

    Raises: DataError: no such file, or damaged. InputError: its parts do not fit together.
    """
    arrays = read_npz(path, "graph")
    if all(name in arrays for name in _SPARSE):
        indices, indptr, shape = (_integers(arrays[name], name, path) for name in _SPARSE[1:])
        try:
            data: NDArray[np.float32] = np.asarray(arrays["x_data"], np.float32)
            rows = scipy.sparse.csr_array((data, indices, indptr), shape=tuple(shape.tolist()))
            rows.check_format()
        except (TypeError, ValueError) as error:
            raise InputError(f"{path}: x_data, x_indices, x_indptr, x_shape: {error}.") from error
        arrays["x"] = rows.toarray()
    missing = [name for name in ("edge_index", "x", "y") if name not in arrays]
    if missing:
        there = ", ".join(sorted(arrays)) or "nothing"
        raise InputError(
            f"{path}: {missing[0]!r} is missing; it holds {there}. "
            "Save edge_index, y and the features: numpy.savez(path, edge_index=..., y=..., x=...)."
        )
    x = arrays["x"]
    if x.ndim != 2 or x.dtype.kind not in "fiub":
        raise ShapeError(
            f"{path}: the features are {x.dtype} of shape {x.shape}; expected numbers (nodes, "
            "features)."
        )
    labels = _integers(arrays["y"], "y", path).flatten()
    count = max(int(labels.max(initial=-1)) + 1, 0)
    classes = [str(name) for name in arrays.get("classes", np.arange(count))]
    if count > len(classes):
        raise InputError(f"{path}: a label is {count - 1}; classes has {len(classes)} names.")
    splits = {}
    for split, names in _NAMES.items():
        name = next((name for name in names if name in arrays), "")
        if name and len(chosen := _nodes(arrays[name], name, len(x), path)):
            splits[split] = torch.from_numpy(chosen)
    return NodeData(
        torch.from_numpy(np.ascontiguousarray(x, dtype=np.float32)),
        torch.from_numpy(_integers(arrays["edge_index"], "edge_index", path)),
        torch.from_numpy(np.maximum(labels, UNKNOWN)),
        classes,
        [str(name) for name in arrays.get("names", np.arange(len(x)))],
        splits,
    ).checked(str(path))


def _integers(array: np.ndarray, name: str, path: Path) -> np.ndarray:
    if array.dtype.kind not in "iu":
        raise InputError(f"{path}: {name!r} is {array.dtype}; expected whole numbers.")
    return array.astype(np.int64)


def _nodes(array: np.ndarray, name: str, count: int, path: Path) -> np.ndarray:
    """Return the nodes of a split, from their numbers or a mask."""
    if array.dtype.kind == "b":
        if array.shape != (count,):
            raise ShapeError(
                f"{path}: {name!r} is a mask of shape {array.shape}; there are {count} nodes."
            )
        array = array.nonzero()[0]
    return _integers(array, name, path).flatten()


class NodesTask(Task):
    """Task on one graph, whole in every batch; targets are the classes of a split's nodes."""

    def __init__(self, data: NodeData, inductive: bool) -> None:
        self.data, self.inductive = data, inductive
        self.description = DataDescription(
            facts={"features": data.features.shape[1], "classes": data.classes}
        )

    def sizes(self) -> dict[str, int]:
        parts = {name: len(chosen) for name, chosen in self.data.splits.items()}
        return {"nodes": self.data.nodes, "edges": self.data.edge_index.shape[1], **parts}

    def plan_epoch(self, epoch: int, batch_tokens: int) -> list[Plan]:
        """Plan one batch: the graph."""
        return [[0]]

    def batch(self, plan: Plan) -> Batch:
        return self._batch("train", self._training_graph() if self.inductive else self.inputs())

    def validation(self, batch_tokens: int) -> list[Batch]:
        return [self._batch("valid", self.inputs())]

    @property
    def names(self) -> list[str]:
        """Nodes with their classes where known, as "35:theory"."""
        labels = zip(self.data.names, self.data.labels.tolist(), strict=True)
        return [
            name if label == UNKNOWN else f"{name}:{self.data.classes[label]}"
            for name, label in labels
        ]

    def inputs(self) -> dict[str, Tensor]:
        """Return the whole graph as model inputs."""
        return {"features": self.data.features, "edge_index": self.data.edge_index}

    def _training_graph(self) -> dict[str, Tensor]:
        """Return the graph of the training nodes alone, as model inputs."""
        known = torch.zeros(self.data.nodes, dtype=torch.bool)
        known[self.data.splits["train"]] = True
        sources, targets = self.data.edge_index
        edges = self.data.edge_index[:, known[sources] & known[targets]]
        return {"features": self.data.features, "edge_index": edges}

    def _batch(self, split: str, inputs: dict[str, Tensor]) -> Batch:
        chosen = self.data.splits[split]
        targets = torch.full((self.data.nodes,), self.ignored)
        targets[chosen] = self.data.labels[chosen]
        return Batch(inputs, targets, len(chosen))

    def probe(self) -> Probe:
        """Return the whole graph."""
        return Probe(self.inputs(), {"tokens": self.data.names})

    @property
    def has_test(self) -> bool:
        return "test" in self.data.splits

    def check_split(self, split: str) -> None:
        """Raise an InputError where the graph has no nodes of the split."""
        if split not in self.data.splits:
            raise InputError(
                f"this run's graph has no {split!r} nodes: use --split "
                f"{' or '.join(self.data.splits)}."
            )

    def digest(self, split: str) -> str:
        self.check_split(split)
        chosen = self.data.splits[split]
        return digest([self.data.nodes, chosen.tolist(), self.data.labels[chosen].tolist()])

    def results(
        self, model: Predictor, *, split: str, beam: int, progress: Callable[[int, int], None]
    ) -> Results:
        """Measure accuracy, macro-F1 and loss on the nodes of a split."""
        self.check_split(split)
        chosen = self.data.splits[split]
        with torch.no_grad():
            logits = model.logits(model.outputs(**self.inputs())[chosen])
        progress(len(chosen), len(chosen))
        labels = self.data.labels[chosen]
        nats = cross_entropy(logits, labels, reduction="none").double().numpy()
        measures = label_measures(labels.numpy(), logits.argmax(-1).numpy(), len(self.data.classes))
        loss = mean_measure("loss", "loss, nats", nats, np.ones(len(chosen)), higher=False)
        return Results(split, "nodes", [*measures, loss], {"nodes": len(chosen)})


def nodes_task(config: NodesConfig, seed: int, data: DataDescription | None = None) -> NodesTask:
    """Make the task: read and check its graph.

    Raises: InputError: a resumed run's graph has other classes or features now.
    """
    graph = read_nodes(Path(config.graph))
    if config.normalise:
        graph = graph.row_normalised()
    if config.undirected:
        graph = graph.undirected()
    task = NodesTask(graph, config.setting == "inductive")
    if data is not None and data.facts != task.description.facts:
        raise InputError(
            f"{config.graph}: its classes or features differ from those of this run. Restore the "
            "graph, or train in another folder."
        )
    return task
