"""`layer_sums`: sums over all weights of a layer, of which kept edges alone would give a part."""

from __future__ import annotations

from collections.abc import Callable

import numpy as np
import torch
from scipy import sparse
from torch import Tensor

from headloom.mechanism.matrix.attention_matrix import AttentionMatrix
from headloom.studio.arrays import Array, LayerArrays

__all__ = ["layer_sums"]


@torch.no_grad()
def layer_sums(
    arrays: LayerArrays,
    matrix: AttentionMatrix | None,
    norms: Array | None,
    sinks: Tensor | None = None,
    go_on: Callable[[], bool] = lambda: True,
) -> bytes:
    """Sums over the weights P of each head, float32, little-endian, one after the other:

    received (heads, keys)     sum_i P_ij: what a key gets from all queries
    valued (heads, queries)    sum_j P_ij |v_j|
    given (heads, keys)        sum_i P_ij |v_j| / valued_i: what it gets when weighed by |v|
    sinks (heads,)             logits of sinks, where there are some: e^(sink - lse_i) of row i

    Args:
        arrays: the kept edges, which are all of them where there is no matrix.
        norms: |v|, (heads, keys); None: `valued` and `given` are left out.
        sinks: logits, (heads,); None: `sinks` is left out.
        go_on: asked before each head.

    Raises: InterruptedError: it said no.
    """
    heads, queries, length = arrays.heads, arrays.queries, arrays.length
    known = arrays.received
    received = np.zeros((heads, length), np.float32) if known is None else known
    valued = np.zeros((heads, queries), np.float32)
    given = np.zeros((heads, length), np.float32)
    for head in range(heads if queries and length else 0):
        if not go_on():
            raise InterruptedError
        whole = _edges(arrays, head) if matrix is None else matrix.head(head)
        if known is None:
            received[head] = whole.T @ np.ones(queries, np.float32)
        if norms is not None:
            valued[head] = whole @ norms[head]
            # A row that may look at no key gives nothing.
            inverse = np.divide(
                1, valued[head], out=np.zeros(queries, np.float32), where=valued[head] > 0
            )
            given[head] = norms[head] * (whole.T @ inverse)
    parts = [received] if norms is None else [received, valued, given]
    if sinks is not None:
        parts.append(sinks.float().numpy())
    return b"".join(part.astype("<f4").tobytes() for part in parts)


def _edges(arrays: LayerArrays, head: int) -> sparse.csr_array:
    """The kept edges of a head as a matrix."""
    rows, places = np.nonzero(arrays.keys[head] >= 0)
    weights, keys = arrays.weights[head, rows, places], arrays.keys[head, rows, places]
    return sparse.csr_array((weights, (rows, keys)), shape=(arrays.queries, arrays.length))
