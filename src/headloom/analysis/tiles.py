"""The cells of a matrix some rows at a time, where no product tells what is asked."""

from __future__ import annotations

from collections.abc import Iterator

from torch import Tensor

from headloom.mechanism.matrix.attention_matrix import AttentionMatrix

__all__ = ["row_tiles"]

#: Cells of a tile: 8 MiB of float32, which stay near the processor while they are worked on.
CELLS = 2**21


def row_tiles(
    matrix: AttentionMatrix, head: int, *, causal: bool
) -> Iterator[tuple[range, range, Tensor]]:
    """The weights of a head, some rows at a time: their rows, their columns, and the cells.

    causal: whether no query looks ahead; then the columns ahead of the rows are left out.
    """
    _, queries, keys = matrix.shape
    start = 0
    while start < queries:
        size = max(1, CELLS // max(1, min(keys, start + 1024) if causal else keys))
        stop = min(start + size, queries)
        width = min(keys, stop) if causal else keys
        yield range(start, stop), range(width), matrix[head, start:stop, 0:width]
        start = stop
