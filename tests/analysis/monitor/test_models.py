"""Models of several kinds in a loop of one's own: watched, they end with the same bits."""

from __future__ import annotations

import copy
from pathlib import Path
from typing import Any

import pytest
import torch
from tests.analysis.monitor.conftest import same_state
from torch import Tensor, nn

import headloom
from headloom.analysis.monitor.probe import Probe
from headloom.formats.history import History

STEPS = 4


def train(model: nn.Module, inputs: Tensor, monitor: Any = None) -> None:
    """A few steps, with dropout where the model has it."""
    torch.manual_seed(1)
    optimiser = torch.optim.Adam(model.parameters(), lr=0.01)
    for _ in range(STEPS):
        model(inputs).square().mean().backward()
        optimiser.step()
        optimiser.zero_grad()
        if monitor is not None:
            monitor.step()


@pytest.mark.parametrize("batch_first", [True, False])
def test_a_module_of_torch(tmp_path: Path, batch_first: bool) -> None:
    """`nn.TransformerEncoder`, with dropout; of the batch the first text is the probe."""
    torch.manual_seed(0)
    layer = nn.TransformerEncoderLayer(8, 2, 8, batch_first=batch_first)
    alone = nn.TransformerEncoder(layer, 2, enable_nested_tensor=False)
    watched = copy.deepcopy(alone)
    texts = torch.randn(4, 6, 8)
    inputs = texts if batch_first else texts.transpose(0, 1)

    train(alone, inputs)
    with headloom.monitor(watched, tmp_path / "run", every=1) as monitor:
        train(watched, inputs, monitor)
    assert same_state(alone, watched)
    probe = Probe.open(tmp_path / "run" / "probe.safetensors", torch.device("cpu"))
    (first,) = (value for value in probe.inputs.values() if isinstance(value, Tensor))
    assert torch.equal(first.reshape(6, 8), texts[0])
    seen = History(tmp_path / "run" / "history")[STEPS].layers[1]
    assert seen.graph.shape == (2, 6, 6)
    own = watched.layers[1].self_attn.in_proj_weight.detach()[8:16]  # type: ignore[index,union-attr]
    assert torch.equal(seen.matrices["W_K"], own.T.unflatten(1, (2, 4)).transpose(0, 1))
