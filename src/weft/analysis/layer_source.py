"""What a measure of a layer is taken from: all its weights, or its kept edges."""

from __future__ import annotations

import math

from weft.analysis.heads.pattern_mass import CHEAP_CELLS, only_edges_exact, rounded_to
from weft.analysis.interval import Source, check_numbers, keeps_all
from weft.errors import InputError
from weft.formats.trace import TraceLayer

__all__ = ["layer_source"]


def layer_source(operation: str, layer: TraceLayer, exact: bool | None) -> tuple[Source, str]:
    """A layer's weights, and what they are in a word.

    Args:
        operation: whose errors begin with it.
        layer: of a trace.
        exact: True: all weights; False: the kept edges; None: all of them where that is cheap.

    Returns: ``layer.matrix`` with "exact"; ``layer.normalised_matrix`` with "rounded" where its
    queries and keys are stored in half precision; or ``layer.graph`` with "kept", or with
    "exact" where these are all edges.
    Raises: InputError: exact weights that the layer does not have; weights that are not numbers.
    """
    if exact is not False and only_edges_exact(layer):
        exact = False
    if exact is None:
        exact = math.prod(layer.shape) <= CHEAP_CELLS and layer.matrix is not None
    if not exact or (layer.matrix is None and keeps_all(layer.graph)):
        check_numbers(layer.graph, f"{operation}: layer {layer.name}")
        return layer.graph, "exact" if keeps_all(layer.graph) else "kept"
    matrix = layer.normalised_matrix
    if matrix is None:
        raise InputError(
            f"{operation}: layer {layer.name} has no exact weights: {layer.no_matrix}. Take the "
            "kept edges, exact=False."
        )
    check_numbers(matrix, f"{operation}: layer {layer.name}")
    return matrix, "exact" if rounded_to(layer) is None else "rounded"
