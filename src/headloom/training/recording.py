"""Snapshots of all heads for the history of a training."""

from __future__ import annotations

from typing import cast

import torch
from torch import nn

from headloom.formats.history import PROBE_EDGES, LayerSnapshot, Snapshot
from headloom.formats.trace import SEQUENCES
from headloom.mechanism.attention_layer import LayerKind
from headloom.mechanism.graph import AttentionGraph, Top
from headloom.mechanism.grid import Grid
from headloom.mechanism.spectra import matrix_measures
from headloom.mechanism.watching import Recorder, layers_of, watching
from headloom.training.tasks.task import Probe


@torch.no_grad()
def snapshot(
    model: nn.Module, probe: Probe, step: int, loss: float | None, *, gradients: bool
) -> Snapshot:
    """Record the state of every attention layer.

    Args:
        model: is not changed.
        probe: the fixed input whose attention is recorded.
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
        # In training mode, reading a matrix may change it, as with spectral norm.
        matrices = {name: layer.matrices() for name, layer in layers_of(model)}
    finally:
        model.train(training)
    observations = {name: observation for name, _, observation in recorder.calls}
    layers = []
    for name, layer in layers_of(model):
        graph = cast(AttentionGraph, observations[name].caught)
        learned = layer.matrices(gradients=True) if gradients else None
        query_tokens, key_tokens = _tokens(probe, layer.kind, observations[name].grids)
        copies = {matrix: tensor.detach().clone() for matrix, tensor in matrices[name].items()}
        measures = matrix_measures(matrices[name], learned)
        layers.append(
            LayerSnapshot(
                name, layer.kind, copies, measures, graph[0], query_tokens, key_tokens,
                observations[name].scale,
            )
        )  # fmt: skip
    return Snapshot(step, loss, layers)


def _tokens(
    probe: Probe, kind: LayerKind, grids: tuple[Grid, Grid] | None
) -> tuple[list[str], list[str]]:
    """Return names of a layer's queries and keys; of image positions from the layer's grids."""
    if grids is not None:
        return grids[0].names(), grids[1].names()
    queries, keys = ("tokens", "tokens") if "tokens" in probe.tokens else SEQUENCES[kind]
    return probe.tokens[queries], probe.tokens[keys]
