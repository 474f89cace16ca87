"""The mask of attention on a graph, from its adjacency matrix or from its edges."""

from __future__ import annotations

from dataclasses import dataclass
from typing import Any

import numpy as np
import torch
from torch import Tensor

from headloom.errors import InputError, ShapeError
from headloom.mechanism.mask import Mask
from headloom.mechanism.shapes import in_words, whole_number

__all__ = ["Neighbours", "neighbours"]

#: Nodes of a graph at most: a row pointer for each is held in memory.
_MOST_NODES = 2**31 - 1


@dataclass(frozen=True, eq=False)
class Neighbours(Mask):
    """Query i looks at the keys that row i of a sparse adjacency matrix (CSR) names."""

    row_starts: Tensor
    columns: Tensor
    keys: int
    by_head = False

    def block(self, rows: range, keys: int, device: torch.device) -> Tensor:
        """See Mask.block."""
        if rows.stop >= len(self.row_starts) or keys != self.keys:
            self._refuse(rows.stop, keys)
        starts, columns = self.row_starts, self.columns
        if len(rows) + 1 < len(starts):  # (a program that is exported knows the edges of all)
            starts = starts[rows.start : rows.stop + 1]
            columns = columns[int(starts[0]) : int(starts[-1])]
        row = torch.repeat_interleave(
            torch.arange(len(rows)), starts.diff(), output_size=len(columns)
        )
        allowed = torch.zeros(len(rows), keys, dtype=torch.bool)
        allowed[row, columns] = True
        return allowed.to(device)[None, None]

    def transposed(self, queries: int, keys: int) -> Mask:
        """See Mask.transposed."""
        rows = torch.repeat_interleave(torch.arange(queries), self.row_starts.diff())
        order = torch.argsort(self.columns, stable=True)
        counts = torch.bincount(self.columns, minlength=keys)
        starts = torch.nn.functional.pad(counts.cumsum(0), (1, 0))
        return Neighbours(starts, rows[order], queries)

    def check(self, batch: int, heads: int, queries: int, keys: int) -> None:
        """See Mask.check."""
        if len(self.row_starts) - 1 != queries or self.keys != keys:
            self._refuse(queries, keys)

    def _refuse(self, queries: int, keys: int) -> None:
        raise ShapeError(
            f"neighbours: the adjacency matrix is ({len(self.row_starts) - 1}, {self.keys}), the "
            f"call has {queries} queries and {keys} keys. Give a row for each query and a column "
            "for each key."
        )


def neighbours(adjacency: Any, nodes: int | None = None) -> Mask:
    """Query i looks at the keys j with ``adjacency[i, j] != 0``: attention on a graph.

    Args:
        adjacency: a SciPy sparse array or matrix, a dense or sparse torch tensor, or a NumPy array,
            (queries, keys). Kept as compressed rows; no dense copy is made. Or the `edge_index` of
            PyTorch Geometric, integers (2, edges): row 0 holds sources j, row 1 targets i, and
            messages flow from j to i, so that query i looks at key j.
        nodes: of the graph, where ``adjacency`` is an edge_index; needed where the last nodes have
            no edge. Without it, a dense tensor or array of 32 or 64 bit integers with two rows is
            an edge_index if it names a node above 1, and refused if it might be either.

    >>> import scipy.sparse
    >>> ring = scipy.sparse.csr_array([[0, 1, 0], [0, 0, 1], [1, 0, 0]])
    >>> neighbours(ring).dense(3, 3)[0, 0].int()
    tensor([[0, 1, 0],
            [0, 0, 1],
            [1, 0, 0]], dtype=torch.int32)
    >>> edge_index = torch.tensor([[1, 2], [0, 1]])            # 1 -> 0 and 2 -> 1
    >>> neighbours(edge_index, nodes=3).dense(3, 3)[0, 0].int()
    tensor([[0, 1, 0],
            [0, 0, 1],
            [0, 0, 0]], dtype=torch.int32)
    """
    import scipy.sparse

    shape = getattr(adjacency, "shape", ())
    dtype = getattr(adjacency, "dtype", None)
    numbers = isinstance(adjacency, Tensor) or getattr(dtype, "kind", "") in (
        "b",
        "i",
        "u",
        "f",
        "c",
    )
    if len(shape) != 2 or not numbers:
        kind = f"{dtype} of shape {tuple(shape)}" if dtype else type(adjacency).__name__
        raise InputError(
            f"neighbours: got {kind}; expected an adjacency matrix (queries, keys) of numbers: "
            "SciPy sparse, torch or NumPy."
        )
    if isinstance(adjacency, Tensor) and adjacency.layout != torch.strided:
        edges = None
        coo = adjacency.to_sparse().coalesce().cpu()
        rows, columns = _numbers(coo.indices())
        compressed = scipy.sparse.csr_array(
            (_numbers(coo.values() != 0), (rows, columns)), shape=(coo.shape[0], coo.shape[1])
        )
    else:
        if isinstance(adjacency, Tensor):
            adjacency = adjacency.detach().cpu()
            there = adjacency != 0 if adjacency.is_floating_point() else adjacency
            adjacency = _numbers(there)
        edges = None if scipy.sparse.issparse(adjacency) else _edge_index(adjacency, nodes)
        if edges is not None:
            sources, targets, number = edges
            adjacency = scipy.sparse.coo_array(
                (np.ones(len(sources), dtype=bool), (targets, sources)), shape=(number, number)
            )
        # A copy: what follows changes the matrix, which is the caller's.
        compressed = scipy.sparse.csr_array(adjacency, copy=True)
        compressed.sum_duplicates()
    if nodes is not None and edges is None:
        raise InputError(
            f"neighbours: nodes={in_words(nodes)} goes with an edge_index, integers (2, "
            f"edges); got {dtype} of shape {tuple(shape)}. Leave nodes out for an adjacency matrix."
        )
    compressed.eliminate_zeros()
    return Neighbours(
        torch.as_tensor(compressed.indptr, dtype=torch.int64),
        torch.as_tensor(compressed.indices, dtype=torch.int64),
        int(compressed.shape[1]),
    )


def _numbers(tensor: Tensor) -> np.ndarray:
    """The numbers of a tensor on the CPU, also inside a transform of torch.func, which wraps it."""
    with torch._C._DisableFuncTorch():
        return tensor.numpy()


def _edge_index(array: np.ndarray, nodes: int | None) -> tuple[np.ndarray, np.ndarray, int] | None:
    """Sources, targets and the number of nodes of an edge_index; None for an adjacency matrix."""
    if array.shape[0] != 2 or array.dtype.kind not in "iu":
        return None
    least, most = (int(array.min()), int(array.max())) if array.size else (0, -1)
    if nodes is None:
        if array.dtype.itemsize < 4:
            return None
        if least < 0 or most < 2:
            raise InputError(
                f"neighbours: integers of shape {tuple(array.shape)} may be an edge_index or the "
                "adjacency matrix of two queries. Say nodes=N for the first, or give "
                "adjacency != 0 for the second."
            )
        nodes = most + 1
    nodes = whole_number("neighbours", "nodes", nodes, 0)
    if least < 0 or most >= nodes:
        raise InputError(
            f"neighbours: the edge_index names node {least if least < 0 else most}; expected 0 to "
            f"{nodes - 1}, as nodes={nodes}."
        )
    if nodes > _MOST_NODES:
        raise InputError(
            f"neighbours: nodes={nodes:,}; expected {_MOST_NODES:,} or fewer. Give the number of "
            "nodes of the graph."
        )
    sources, targets = array
    return sources, targets, nodes
