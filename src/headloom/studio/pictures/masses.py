"""What a picture of weights shows: each cell of a head, or the mass of blocks of many."""

from __future__ import annotations

from dataclasses import dataclass

import numpy as np
import torch
from torch import Tensor

from headloom.analysis.overview import block_sizes, edge_means, matrix_means
from headloom.analysis.weights import keeps_all, mean_left_out
from headloom.errors import InputError
from headloom.formats.trace import TraceLayer
from headloom.mechanism.graph import AttentionGraph
from headloom.mechanism.matrix.attention_matrix import AttentionMatrix
from headloom.mechanism.shapes import place_of
from headloom.studio.pictures.canvas import Array

#: What has weights that can be drawn.
Weights = TraceLayer | AttentionGraph | AttentionMatrix | Tensor | Array


@dataclass(frozen=True)
class Masses:
    """Weights as they are drawn, (heads, rows, columns), 0 to 1.

    sizes: queries and keys of a cell. Of more than one, its value is the mass of a row in these
        keys, the mean of these rows.
    left_out: (heads,), the share of a row's mass that is not in them.
    """

    values: Array
    sizes: tuple[int, int]
    left_out: Array

    @property
    def notes(self) -> list[str]:
        """What is not as one would think, in words."""
        down, across = self.sizes
        dots = f"a dot: the mass of a row in {across} keys, mean of {down} rows"
        return [dots] * (self.sizes != (1, 1)) + ["drawn from the kept edges"] * self.partial

    @property
    def partial(self) -> bool:
        """Whether mass is left out that one could see."""
        return any(map(not_shown, self.left_out))


def masses_of(what: Weights, head: int | None, most: int) -> Masses:
    """The weights of a head, or of all: all of them where they are known, else the kept edges.

    most: rows and columns up to which a cell is a weight.
    Raises: InputError: no such head; a batch; what has no rows and columns.
    """
    if isinstance(what, Tensor | np.ndarray):
        dense = torch.as_tensor(np.array(what) if isinstance(what, np.ndarray) else what)
        dense = dense.detach().cpu().float()
        what = dense[None] if dense.ndim == 2 else dense
    if len(what.shape) != 3:
        raise InputError(
            f"plot: weights of shape {tuple(what.shape)}; expected (queries, keys) or (heads, "
            "queries, keys). Of a batch choose one, as graph[0]."
        )
    heads, queries, keys = what.shape
    chosen = [*range(heads)] if head is None else [place_of("layer", "plot", "head", head, heads)]
    sizes, left_out = block_sizes(queries, keys, most), np.zeros(len(chosen))
    graph = what.graph if isinstance(what, TraceLayer) else what
    matrix = what.matrix if isinstance(what, TraceLayer) else what
    if isinstance(what, Tensor):
        means = what[chosen].numpy()
        if sizes != (1, 1):
            means = torch.nn.functional.avg_pool2d(what[chosen], sizes, ceil_mode=True).numpy()
    elif isinstance(matrix, AttentionMatrix) and not (
        isinstance(graph, AttentionGraph) and keeps_all(graph)
    ):
        means = np.stack([matrix_means(matrix, number, sizes).cpu() for number in chosen])
    else:
        assert isinstance(graph, AttentionGraph)
        graph = graph.detach().cpu()
        edges = graph.keys[chosen].numpy(), graph.weights[chosen].float().numpy()
        means = edge_means(*edges, keys, sizes)
        terms = what.terms if isinstance(what, TraceLayer) else None
        left_out = mean_left_out(graph, None if terms is None else terms.sinks)[chosen].numpy()
    return Masses(means * sizes[1], sizes, left_out)


def not_shown(share: float) -> str:
    """How much of the mass a picture of kept edges leaves out, in words; "": nothing to speak of.

    >>> not_shown(0.714)
    '71.4 % not shown'
    """
    # Something is shown: 100 of all alone.
    percent = min(100 * share, 99.9 if share < 1 else 100)
    return f"{percent:.3g} % not shown" if percent >= 0.05 else ""
