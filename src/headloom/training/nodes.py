"""A graph whose nodes have features and classes: read from one file or a folder, and checked."""

from __future__ import annotations

import csv
from dataclasses import dataclass, replace
from pathlib import Path

import numpy as np
import torch
from torch import Tensor

from headloom.errors import InputError, ShapeError
from headloom.formats.files import read_text
from headloom.formats.lines import check_line_ends, text_lines
from headloom.formats.stored_arrays import Arrays, read_npz

__all__ = ["SPLITS", "UNKNOWN", "NodeData", "read_nodes"]

#: The label of a node whose class is not known.
UNKNOWN = -1
SPLITS = ("train", "valid", "test")

#: The names of a split in files that other tools write.
_NAMES = {"train": ("train", "train_mask"), "valid": ("valid", "val", "val_mask", "valid_mask"),
          "test": ("test", "test_mask")}  # fmt: skip


@dataclass(frozen=True, eq=False)
class NodeData:
    """A graph, checked.

    features     float32, (nodes, features)
    edge_index   int64, (2, edges), sources over targets; one that is there twice counts twice
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
        """How many nodes there are."""
        return len(self.features)

    def row_normalised(self) -> NodeData:
        """Each node's features divided by their sum (of sizes), so that nodes weigh alike."""
        sums = self.features.abs().sum(1, keepdim=True)
        return replace(self, features=self.features / sums.masked_fill(sums == 0, 1))

    def undirected(self) -> NodeData:
        """Every edge in both directions, each once."""
        both = torch.cat((self.edge_index, self.edge_index.flip(0)), 1)
        return replace(self, edge_index=torch.unique(both, dim=1))

    def checked(self, source: str) -> NodeData:
        """The same; an error in one line where the parts do not fit together."""
        nodes = self.nodes
        if len(self.labels) != nodes or len(self.names) != nodes:
            raise ShapeError(
                f"{source}: {len(self.labels)} labels for {nodes} rows of features. Give one row "
                "and one label for each node."
            )
        if self.edge_index.ndim != 2 or len(self.edge_index) != 2:
            raise ShapeError(
                f"{source}: edge_index is {tuple(self.edge_index.shape)}; expected (2, edges)."
            )
        if self.edge_index.numel():
            least, most = int(self.edge_index.min()), int(self.edge_index.max())
            if least < 0 or most >= nodes:
                raise InputError(
                    f"{source}: an edge leads to node {least if least < 0 else most}; there are "
                    f"{nodes} nodes, 0 to {nodes - 1}. Add its features, or leave the edge out."
                )
        if not bool(self.features.isfinite().all()):
            raise InputError(f"{source}: a feature is NaN or infinite. Give finite numbers.")
        self._check_splits(source)
        return self

    def _check_splits(self, source: str) -> None:
        for name in ("train", "valid"):
            if not len(self.splits.get(name, ())):
                raise InputError(f"{source}: no node is in {name!r}. Choose some to {name} on.")
        for name, chosen in self.splits.items():
            if int(chosen.min()) < 0 or int(chosen.max()) >= self.nodes:
                wrong = int(chosen[(chosen < 0) | (chosen >= self.nodes)][0])
                raise InputError(
                    f"{source}: {name!r} names node {wrong}; there are {self.nodes} "
                    "nodes. Give numbers from 0."
                )
            if bool((self.labels[chosen] == UNKNOWN).any()):
                node = int(chosen[self.labels[chosen] == UNKNOWN][0])
                raise InputError(
                    f"{source}: node {self.names[node]} is in {name!r}, and its label is unknown. "
                    "Give its class, or take it out."
                )
        tested = set(self.splits["test"].tolist()) if "test" in self.splits else set()
        for name in SPLITS[:-1]:
            both = tested.intersection(self.splits[name].tolist())
            if both:
                raise InputError(
                    f"{source}: node {self.names[min(both)]} is in {name!r} and in 'test', which "
                    "would measure what was learned. Take it out of one of them."
                )
        taught = torch.bincount(self.labels[self.splits["train"]], minlength=len(self.classes))
        for number, count in enumerate(taught.tolist()):
            if not count:
                raise InputError(
                    f"{source}: class {self.classes[number]!r} has no example in 'train', so that "
                    "it cannot be learned. Add one, or leave the class out."
                )


def read_nodes(path: Path) -> NodeData:
    """A graph from an .npz file, or from a folder with edges.tsv and nodes.tsv.

    An .npz file holds ``edge_index`` (2, edges), ``y`` (nodes,), the features as ``x`` (nodes,
    features) or as the parts of a sparse matrix, ``x_data``, ``x_indices``, ``x_indptr`` and
    ``x_shape``; and the splits as numbers of nodes, ``train``, ``val`` and ``test``, or as masks,
    ``train_mask``, ``val_mask`` and ``test_mask``. Perhaps ``classes`` and ``names``, texts.

    A folder's edges.tsv has a line for each edge, source TAB target; nodes.tsv one for each node:
    name TAB class TAB split TAB features, numbers with a TAB between. The class is empty where it
    is not known, the split is train, valid, test or empty.

    Raises: DataError: no such file, or damaged. InputError: its parts do not fit together.
    """
    data = _read_folder(path) if path.is_dir() else _read_npz(path)
    return data.checked(str(path))


def _read_npz(path: Path) -> NodeData:
    arrays = read_npz(path, "graph")
    for name in ("edge_index", "y"):
        if name not in arrays:
            raise InputError(
                f"{path}: {name!r} is missing; it holds {', '.join(sorted(arrays)) or 'nothing'}. "
                "Save edge_index, y and the features: numpy.savez(path, edge_index=..., y=..., "
                "x=...)."
            )
    features = _features(arrays, path)
    labels = _integers(arrays["y"], "y", path).flatten()
    count = max(int(labels.max(initial=-1)) + 1, 0)
    classes = [str(name) for name in arrays.get("classes", np.arange(count))]
    names = [str(name) for name in arrays.get("names", np.arange(len(features)))]
    if count > len(classes):
        raise InputError(f"{path}: a label is {count - 1}; classes has {len(classes)} names.")
    return NodeData(
        torch.from_numpy(features),
        torch.from_numpy(_integers(arrays["edge_index"], "edge_index", path)),
        torch.from_numpy(np.maximum(labels, UNKNOWN)),
        classes,
        names,
        _splits(arrays, len(features), path),
    )


def _integers(array: np.ndarray, name: str, path: Path) -> np.ndarray:
    if array.dtype.kind not in "iu":
        raise InputError(f"{path}: {name!r} is {array.dtype}; expected whole numbers.")
    return array.astype(np.int64)


def _features(arrays: Arrays, path: Path) -> np.ndarray:
    """Dense features, float32."""
    parts = [arrays.get(f"x_{part}") for part in ("data", "indices", "indptr", "shape")]
    if "x" in arrays:
        array = np.asarray(arrays["x"])
    elif all(part is not None for part in parts):
        import scipy.sparse

        values, indices, starts, shape = (np.asarray(part) for part in parts)
        try:
            sizes = (int(shape[0]), int(shape[1]))
            array = scipy.sparse.csr_array((values, indices, starts), shape=sizes).toarray()
        except (ValueError, TypeError, IndexError) as error:
            raise InputError(f"{path}: the x_ arrays are no sparse matrix: {error}.") from None
    else:
        raise InputError(
            f"{path}: no features; expected x, or x_data, x_indices, x_indptr, x_shape."
        )
    if array.ndim != 2 or array.dtype.kind not in "fiub":
        raise ShapeError(
            f"{path}: the features are {array.dtype} of shape {array.shape}; expected numbers "
            "(nodes, features)."
        )
    return np.ascontiguousarray(array, dtype=np.float32)


def _splits(arrays: Arrays, nodes: int, path: Path) -> dict[str, Tensor]:
    """The nodes of each split that there is."""
    splits = {}
    for split, names in _NAMES.items():
        for name in names:
            if name not in arrays:
                continue
            array = arrays[name]
            if array.dtype.kind == "b" and array.shape != (nodes,):
                raise ShapeError(
                    f"{path}: {name!r} is a mask of shape {array.shape}; there are {nodes} nodes."
                )
            chosen = array.nonzero()[0] if array.dtype.kind == "b" else array
            chosen = _integers(chosen, name, path).flatten()
            if len(chosen):
                splits[split] = torch.from_numpy(chosen)
            break
    return splits


def _read_folder(path: Path) -> NodeData:
    rows = _table(path / "nodes.tsv")
    widths = {len(row) for row in rows}
    if not rows or min(widths) < 4:
        raise InputError(
            f"{path / 'nodes.tsv'}: a line has fewer than 4 columns; expected name, class, split, "
            "and one feature or more."
        )
    if len(widths) > 1:
        raise ShapeError(
            f"{path / 'nodes.tsv'}: lines of {min(widths)} to {max(widths)} columns; expected as "
            "many features in each."
        )
    names = [row[0] for row in rows]
    numbers = {name: number for number, name in enumerate(names)}
    if len(numbers) < len(names):
        raise InputError(f"{path / 'nodes.tsv'}: two nodes have one name. Name each once.")
    classes = sorted({row[1] for row in rows if row[1]})
    unknown_splits = {row[2] for row in rows} - {*SPLITS, ""}
    if unknown_splits:
        raise InputError(
            f"{path / 'nodes.tsv'}: split {sorted(unknown_splits)[0]!r}; expected train, valid, "
            "test or nothing."
        )
    try:
        features = torch.tensor([[float(x) for x in row[3:]] for row in rows])
    except ValueError as error:
        raise InputError(
            f"{path / 'nodes.tsv'}: a feature is no number: {error}. Put a TAB between features."
        ) from None
    edges = []
    for line, row in enumerate(_table(path / "edges.tsv"), 1):
        if len(row) != 2 or row[0] not in numbers or row[1] not in numbers:
            raise InputError(
                f"{path / 'edges.tsv'}, line {line}: {' '.join(row)[:80]!r}; expected two names of "
                "nodes.tsv with a TAB between: source, target."
            )
        edges.append((numbers[row[0]], numbers[row[1]]))
    of = {split: [n for n, row in enumerate(rows) if row[2] == split] for split in SPLITS}
    return NodeData(
        features,
        torch.tensor(edges, dtype=torch.int64).reshape(-1, 2).T.contiguous(),
        torch.tensor([classes.index(row[1]) if row[1] else UNKNOWN for row in rows]),
        classes,
        names,
        {split: torch.tensor(chosen) for split, chosen in of.items() if chosen},
    )


def _table(path: Path) -> list[list[str]]:
    text = read_text(path, "table")
    check_line_ends(text, path)
    lines = text_lines(text)
    return [row for row in csv.reader(lines, delimiter="\t", quoting=csv.QUOTE_NONE) if row]
