"""Mask of attention on a graph, from its adjacency matrix or from its edges."""

from __future__ import annotations

from dataclasses import dataclass
from typing import TYPE_CHECKING, Any

import numpy as np
import torch
from torch import Tensor

from headloom.errors import InputError, ShapeError
from headloom.mechanism.mask import Mask
from headloom.mechanism.shapes import in_words, whole_number

if TYPE_CHECKING:
    from scipy.sparse import coo_array, sparray, spmatrix


@dataclass(frozen=True, eq=False)
class Neighbours(Mask):
    """Mask from a sparse adjacency matrix (CSR): row i lists the visible keys of query i."""

    row_starts: Tensor
    columns: Tensor
    keys: int
    by_head = False

    def block(self, rows: range, keys: int, device: torch.device) -> Tensor:
        if rows.stop >= len(self.row_starts) or keys != self.keys:
            self._refuse(rows.stop, keys)
        starts, columns = self.row_starts, self.columns
        if len(rows) + 1 < len(starts):  # (never in an exported program, which takes all rows)
            starts = starts[rows.start : rows.stop + 1]
            columns = columns[int(starts[0]) : int(starts[-1])]
        row = torch.repeat_interleave(
            torch.arange(len(rows)), starts.diff(), output_size=len(columns)
        )
        allowed = torch.zeros(len(rows), keys, dtype=torch.bool)
        allowed[row, columns] = True
        return allowed.to(device)[None, None]

    def transposed(self, queries: int, keys: int) -> Mask:
        rows = torch.repeat_interleave(torch.arange(queries), self.row_starts.diff())
        order = torch.argsort(self.columns, stable=True)
        counts = torch.bincount(self.columns, minlength=keys)
        starts = torch.nn.functional.pad(counts.cumsum(0), (1, 0))
        return Neighbours(starts, rows[order], queries)

    def check(self, batch: int, heads: int, queries: int, keys: int) -> None:
        if len(self.row_starts) - 1 != queries or self.keys != keys:
            self._refuse(queries, keys)

    def _refuse(self, queries: int, keys: int) -> None:
        raise ShapeError(
            f"neighbours: the adjacency matrix is ({len(self.row_starts) - 1}, {self.keys}), the "
            f"call has {queries} queries and {keys} keys. Give a row for each query and a column "
            "for each key; with an edge_index, give nodes=."
        )


def neighbours(
    adjacency: Tensor | np.ndarray | sparray | spmatrix, nodes: int | None = None
) -> Neighbours:
    """Return a mask that shows query i the keys j with ``adjacency[i, j] != 0``.

    Args:
        adjacency: a SciPy sparse array or matrix, a dense or sparse torch tensor, or a NumPy array,
            (queries, keys). Stored as compressed rows; no dense copy is made. With nodes=, the
            `edge_index` of PyTorch Geometric, integers (2, edges): row 0 holds sources j, row 1
            targets i, and messages flow from j to i, so that query i attends to key j.
        nodes: number of nodes of the graph, if ``adjacency`` is an edge_index.

    Raises: InputError: another type; an edge with a node that does not exist.

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

    shape: tuple[int, ...] = getattr(adjacency, "shape", ())
    if len(shape) != 2:
        raise InputError(
            f"neighbours: got {in_words(adjacency)}; expected an adjacency matrix (queries, keys) "
            "of numbers: SciPy sparse, torch or NumPy; or an edge_index with nodes=."
        )
    cells: Any = adjacency
    integers = str(cells.dtype).endswith(("int32", "int64"))
    if nodes is None and shape[0] == 2 and integers:
        raise InputError(
            f"neighbours: integers of shape {tuple(shape)} may be an edge_index or the adjacency "
            "matrix of two queries. Give nodes=N for the first, adjacency != 0 for the second."
        )
    if isinstance(adjacency, Tensor):
        adjacency = adjacency.detach().cpu()
        if adjacency.layout != torch.strided:
            coo = adjacency.to_sparse().coalesce()
            entries = _numbers(coo.values() != 0), tuple(_numbers(coo.indices()))
            cells = scipy.sparse.csr_array(entries, shape=shape)
        else:
            cells = _numbers(adjacency != 0 if nodes is None else adjacency)
    if nodes is not None:
        cells = _of_edges(cells, whole_number("neighbours", "nodes", nodes, 0))
    # A copy: the matrix, which is the caller's, is changed below.
    compressed = scipy.sparse.csr_array(cells, copy=True)
    compressed.sum_duplicates()
    compressed.eliminate_zeros()
    return Neighbours(
        torch.as_tensor(compressed.indptr, dtype=torch.int64),
        torch.as_tensor(compressed.indices, dtype=torch.int64),
        int(compressed.shape[1]),
    )


def _numbers(tensor: Tensor) -> np.ndarray:
    """Return a CPU tensor as an array, also inside a torch.func transform, which wraps tensors."""
    with torch._C._DisableFuncTorch():
        return tensor.numpy()


def _of_edges(edges: object, nodes: int) -> coo_array:
    """Return the adjacency matrix of an edge_index."""
    from scipy.sparse import coo_array

    if not isinstance(edges, np.ndarray) or edges.dtype.kind not in "iu" or len(edges) != 2:
        raise InputError(
            f"neighbours: nodes={nodes} goes with an edge_index, integers (2, edges). Leave nodes "
            "out for an adjacency matrix."
        )
    wrong = edges[(edges < 0) | (edges >= nodes)]
    if len(wrong):
        raise InputError(
            f"neighbours: the edge_index names node {int(wrong[0])}; expected 0 to {nodes - 1}, as "
            f"nodes={nodes}."
        )
    sources, targets = edges
    return coo_array((np.ones(len(sources), dtype=bool), (targets, sources)), shape=(nodes, nodes))
