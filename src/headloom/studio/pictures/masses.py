"""Content of a picture of weights: the cells of a head, or the mass of blocks of cells."""

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

#: Objects with weights that can be drawn.
Weights = TraceLayer | AttentionGraph | AttentionMatrix | Tensor | Array


@dataclass(frozen=True)
class Masses:
    """Weights to draw, (heads, rows, columns), 0 to 1.

    sizes: queries and keys of a cell. If more than one, its value is the mean mass of these rows in
        these keys.
    left_out: (heads,), the share of a row's mass that is missing.
    """

    values: Array
    sizes: tuple[int, int]
    left_out: Array

    @property
    def notes(self) -> list[str]:
        """Remarks for the reader: blocks instead of cells, kept edges instead of all."""
        down, across = self.sizes
        dots = f"a dot: the mass of a row in {across} keys, mean of {down} rows"
        return [dots] * (self.sizes != (1, 1)) + ["drawn from the kept edges"] * self.partial

    @property
    def partial(self) -> bool:
        """Whether a visible share of the mass is missing."""
        return any(map(not_shown, self.left_out))


def masses_of(what: Weights, head: int | None, most: int) -> Masses:
    """Return the weights of a head or of all heads: complete where known, else the kept edges.

    most: rows and columns up to which a cell is a weight.
    Raises: InputError: no such head, a batch, or no matrix.
    """
    if isinstance(what, Tensor | np.ndarray):
        dense = torch.as_tensor(np.array(what) if isinstance(what, np.ndarray) else what)
        dense = dense.detach().cpu().float()
        what = dense[None] if dense.ndim == 2 else dense
    if len(what.shape) != 3:
        raise InputError(
            f"plot: weights of shape {tuple(what.shape)}; expected (queries, keys) or (heads, "
            "queries, keys). Choose one of a batch, as graph[0]."
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
    """Describe the share of the mass that a picture of kept edges lacks; "": negligible.

    >>> not_shown(0.714)
    '71.4 % not shown'
    """
    # 100 only if nothing is shown.
    percent = min(100 * share, 99.9 if share < 1 else 100)
    return f"{percent:.3g} % not shown" if percent >= 0.05 else ""
