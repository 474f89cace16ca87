"""Recording a history: what every head's matrices are, and how they move, at chosen steps."""

from __future__ import annotations

import torch
from torch import Tensor, nn

from weft.formats.history import LayerSnapshot, Snapshot
from weft.mechanism.attention_layer import LayerKind
from weft.mechanism.graph import AttentionGraph, Top
from weft.mechanism.grid import Grid
from weft.mechanism.spectra import directionality, effective_rank, product_spectrum, symmetry
from weft.mechanism.watching import Recorder, layers_of, watching
from weft.training.tasks.task import Probe

__all__ = ["is_snapshot_step", "snapshot"]

#: Edges kept of each of the probe's rows. A probe is short: these are all, or nearly.
PROBE_EDGES = 64


def is_snapshot_step(step: int, growth: float) -> bool:
    """Whether a step belongs to the geometric schedule 0, 1, growth, growth^2, ... (rounded up).

    >>> [step for step in range(40) if is_snapshot_step(step, 2.0)]
    [0, 1, 2, 4, 8, 16, 32]
    >>> [step for step in range(20) if is_snapshot_step(step, 1.5)]
    [0, 1, 2, 3, 4, 6, 8, 12, 18]
    """
    if step < 2:
        return True
    exact = 1.0
    while exact <= step - 1:
        exact *= growth
    return exact <= step


def _measures(
    layer_matrices: dict[str, Tensor], gradients: dict[str, Tensor] | None
) -> dict[str, list[float | None]]:
    measures: dict[str, list[float | None]] = {}
    for name, matrix in layer_matrices.items():
        measures[f"norm_{name}"] = matrix.norm(dim=(1, 2)).tolist()
    for name in layer_matrices:
        measures[f"gradient_norm_{name}"] = (
            [None] * len(layer_matrices[name])
            if gradients is None
            else gradients[name].norm(dim=(1, 2)).tolist()
        )
    queries, keys = layer_matrices["W_Q"], layer_matrices["W_K"]
    measures["effective_rank"] = effective_rank(product_spectrum(queries, keys)).tolist()
    measures["symmetry"] = symmetry(queries, keys).tolist()
    measures["directionality"] = directionality(queries, keys).tolist()
    return measures


@torch.no_grad()
def snapshot(
    model: nn.Module, probe: Probe, step: int, loss: float | None, *, gradients: bool
) -> Snapshot:
    """The state of every attention layer.

    Args:
        model: as it is; left as it is.
        probe: the fixed input whose attention is kept.
        step: of the training.
        loss: of the step, if known.
        gradients: whether the parameters hold the step's gradients.
    """
    recorder = Recorder(model, Top(PROBE_EDGES))
    training = model.training
    model.eval()
    try:
        with watching(model, recorder):
            model(**probe.inputs)
        # In training, what makes a matrix may move with each look at it, as spectral norm does.
        matrices = {name: layer.matrices() for name, layer in layers_of(model)}
    finally:
        model.train(training)
    seen = {name: observation for name, _, observation in recorder.calls}
    layers = []
    for name, layer in layers_of(model):
        graph = seen[name].caught
        if not isinstance(graph, AttentionGraph):
            raise TypeError("an observer that keeps Top(k) is given graphs")
        query_tokens, key_tokens = _tokens(probe, layer.kind, seen[name].grids)
        layers.append(
            LayerSnapshot(
                name,
                layer.kind,
                {matrix: tensor.detach().clone() for matrix, tensor in matrices[name].items()},
                _measures(matrices[name], layer.matrices(gradients=True) if gradients else None),
                graph[0],
                query_tokens,
                key_tokens,
                seen[name].scale,
            )
        )
    return Snapshot(step, loss, layers)


def _tokens(
    probe: Probe, kind: LayerKind, grids: tuple[Grid, Grid] | None
) -> tuple[list[str], list[str]]:
    """The names of a layer's queries and keys: of places of an image the layer knows them."""
    if grids is not None:
        return grids[0].names(), grids[1].names()
    queries, keys = probe.sequences_of(kind)
    return probe.tokens[queries], probe.tokens[keys]
