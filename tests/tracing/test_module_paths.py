"""Paths of layers that were compiled one by one: those of the model as it is written."""

from __future__ import annotations

from typing import Any

import pytest
import torch

import headloom
from headloom.analysis.matrices.projections import matrices_of

# The compiler's own modules, when it is loaded.
pytestmark = pytest.mark.filterwarnings("ignore::DeprecationWarning")


def llama() -> Any:
    transformers = pytest.importorskip("transformers")
    torch.manual_seed(0)
    config = transformers.LlamaConfig(
        hidden_size=16, num_hidden_layers=2, num_attention_heads=4, num_key_value_heads=2,
        intermediate_size=16, vocab_size=50,
    )  # fmt: skip
    return transformers.LlamaForCausalLM(config).eval()


def test_layers_of_transformers_that_are_compiled_one_by_one() -> None:
    model, ids = llama(), torch.arange(6)[None] + 3
    paths = [layer.name for layer in headloom.trace(model, ids).layers]
    for number, layer in enumerate(model.model.layers):
        model.model.layers[number] = torch.compile(layer)
    assert any("_orig_mod" in path for path, _ in model.named_modules())
    trace = headloom.trace(model, ids)
    assert [layer.name for layer in trace.layers] == paths
    assert trace.verification is not None
    one = headloom.trace(model, ids, layers=["model.layers.1.*"])
    assert [layer.name for layer in one.layers] == paths[1:]
    assert [entry["name"] for entry in one.not_traced] == paths[:1]
    with headloom.watch(model, layers=["model.layers.0.self_attn"]) as watched:
        model(ids)
    assert [layer.name for layer in watched.trace.layers] == paths[:1]
    assert [layer.name for layer in matrices_of(model)] == paths
