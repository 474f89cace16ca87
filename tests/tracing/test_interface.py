"""The traps of the attention interface: masks, paths, grouped heads, sinks, soft caps, biases."""

from __future__ import annotations

from typing import Any

import pytest
import torch
from tests.tracing.conftest import assert_dense, dense_weights, ids_of
from torch import nn

import headloom

transformers = pytest.importorskip("transformers")


@pytest.mark.parametrize("implementation", ["eager", "sdpa"])
def test_a_mask_that_hides_a_whole_row_by_the_lowest_number(family_named, implementation) -> None:
    """Its softmax looks at all keys alike, as the model's own does."""
    model = family_named("Llama").build(implementation)
    added = torch.full((1, 1, 4, 4), torch.finfo(torch.float32).min).triu(1)
    added[:, :, 2] = torch.finfo(torch.float32).min
    inputs = {"input_ids": torch.tensor([[5, 6, 7, 8]]), "attention_mask": added}
    trace = headloom.trace(model, inputs, keep=headloom.All())
    for layer in trace.layers:
        torch.testing.assert_close(layer.graph.to_dense()[:, 2], torch.full((4, 4), 0.25))
        assert "too large for float32" in layer.no_matrix


def test_a_bool_mask_is_added_by_eager_attention_and_hides_nothing(family_named) -> None:
    """As Grounding DINO's own, which is made for fused attention."""
    cells = torch.ones(1, 1, 4, 4, dtype=torch.bool).tril()
    inputs = {"input_ids": torch.tensor([[5, 6, 7, 8]]), "attention_mask": cells}
    for implementation, keys in (("eager", [4, 4, 4, 4]), ("sdpa", [1, 2, 3, 4])):
        model = family_named("Llama").build(implementation)
        trace = headloom.trace(model, inputs, keep=headloom.All())
        assert trace.layers[0].graph.count[0].tolist() == keys
        assert trace.verification["difference"] < 1e-5
        if implementation == "eager":
            expected = dense_weights(model, {**inputs, "use_cache": False})["all"]
            assert_dense(trace.layers, expected, matrix=True)


def test_sinks_soft_caps_and_position_biases_are_not_lost(family_named) -> None:
    family = family_named("gpt-oss")
    model = family.build()
    trace = headloom.trace(model, family.inputs(padded=False), keep=headloom.All())
    assert all(float(layer.graph.rest.min()) > 1e-4 for layer in trace.layers)  # the sink's mass
    family = family_named("Gemma 2")
    trace = headloom.trace(family.build(), family.inputs(padded=False))
    for layer in trace.layers:
        kept = layer.graph.keys >= 0
        assert layer.softcap == 2.0
        assert float(layer.graph.scores[kept].abs().max()) < 2.0
    family = family_named("T5")
    trace = headloom.trace(family.build(), family.inputs(padded=False))
    assert {layer.positions for layer in trace.layers if layer.kind != "cross"} == {"bias"}


def test_sinks_of_each_query_are_in_the_weights(tmp_path) -> None:
    """Inkling 2 computes a sink from each position, for each head."""
    if not hasattr(transformers, "Inkling2TextModel"):
        pytest.skip("this version of Transformers has no Inkling 2")
    torch.manual_seed(0)
    config = transformers.Inkling2TextConfig(
        vocab_size=50, unpadded_vocab_size=50, hidden_size=16, num_hidden_layers=2, head_dim=8,
        num_attention_heads=2, num_key_value_heads=1, swa_num_attention_heads=2,
        swa_num_key_value_heads=1, swa_head_dim=8, moe_intermediate_size=16, n_routed_experts=4,
        num_experts_per_tok=2, eos_token_id=2, layer_types=["hybrid_sliding", "hybrid"],
        sliding_window_size=4,
    )  # fmt: skip
    build = transformers.Inkling2TextModel._from_config
    model: Any = build(config, attn_implementation="eager").float().eval()
    formed: list[torch.Tensor] = []
    hooks = []
    for module in [module for module in model.modules() if hasattr(module, "sink_proj")]:
        nn.init.normal_(module.sink_proj.weight)
        hooks.append(module.register_forward_hook(lambda *given: formed.append(given[2][1])))
    ids = torch.randint(3, 50, (1, 12))
    with torch.no_grad():
        model(ids)
    for hook in hooks:
        hook.remove()
    headloom.trace(model, ids, keep=headloom.All(), save=tmp_path / "t")
    layers = headloom.open(tmp_path / "t").layers
    with_sinks = [x for x in layers if hasattr(model.get_submodule(x.name), "sink_proj")]
    assert_dense(with_sinks, formed, matrix=True)
    assert all(float(weights.sum(-1).min()) < 0.9 for weights in formed)  # the sinks take a part


def test_sdpa_models_are_traced_though_output_attentions_gives_nothing(family_named) -> None:
    family = family_named("BERT")
    inputs = family.inputs(padded=False)
    fused, eager = family.build("sdpa"), family.build("eager")
    assert not fused(**inputs, output_attentions=True).attentions
    trace = headloom.trace(fused, inputs, keep=headloom.All())
    assert_dense(trace.layers, dense_weights(eager, inputs)["all"])


def test_sliding_windows_and_packed_sequences_hide_keys(family_named) -> None:
    family = family_named("Mistral")
    model, inputs = family.build(), family.inputs(padded=False)
    graph = headloom.trace(model, inputs).layers[0].graph
    assert graph.count[0].tolist() == [1, 2, 3, 4, 5, 5, 5, 5, 5, 5, 5, 5]
    packed = {
        "input_ids": inputs["input_ids"],
        "position_ids": torch.tensor([[0, 1, 2, 3, 0, 1, 2, 3, 4, 5, 6, 7]]),
    }
    llama = family_named("Llama").build()
    trace = headloom.trace(llama, packed, keep=headloom.All())
    expected = dense_weights(llama, {**packed, "use_cache": False})["all"]
    assert_dense(trace.layers, expected, matrix=True)
    for layer in trace.layers:
        assert layer.graph.count[0].tolist() == [1, 2, 3, 4, 1, 2, 3, 4, 5, 6, 7, 8]
        assert layer.mask == "ranges"


def test_masks_with_numbers_are_masks_and_biases(family_named) -> None:
    model = family_named("Llama").build()
    ids = torch.tensor([[5, 6, 7, 8]])
    added = torch.full((1, 1, 4, 4), torch.finfo(torch.float32).min).triu(1)
    added[..., 2, 0] = 1.5
    inputs = {"input_ids": ids, "attention_mask": added}
    trace = headloom.trace(model, inputs, keep=headloom.All())
    expected = dense_weights(model, {**inputs, "use_cache": False})["all"]
    assert_dense(trace.layers, expected)
    assert all(layer.graph.count[0].tolist() == [1, 2, 3, 4] for layer in trace.layers)


def test_a_bias_in_a_window_is_joined_where_its_keys_are() -> None:
    """Inkling's layers add a bias by distance, and some let go of the keys before their window."""
    if not hasattr(transformers, "InklingForCausalLM"):
        pytest.skip("this version of Transformers has no Inkling")
    torch.manual_seed(0)
    config = transformers.InklingTextConfig(
        vocab_size=50, unpadded_vocab_size=50, hidden_size=16, num_hidden_layers=2, head_dim=8,
        num_attention_heads=2, num_key_value_heads=1, swa_num_attention_heads=2,
        swa_num_key_value_heads=1, swa_head_dim=8, intermediate_size=16, eos_token_id=None,
        layer_types=["hybrid_sliding", "hybrid"], mlp_layer_types=["dense"] * 2,
        sliding_window_size=4, rel_extent=8, pad_token_id=0,
    )  # fmt: skip
    model = transformers.InklingForCausalLM._from_config(config, attn_implementation="eager").eval()
    for parameter in model.parameters():
        parameter.data.add_(torch.randn_like(parameter) * 0.2)
    ids = torch.randint(3, 50, (1, 6))
    grown = headloom.trace(model, ids, generate=2, keep=headloom.All())
    with torch.no_grad():
        own = model(ids_of(grown), output_attentions=True).attentions
    assert_dense(grown.layers, own, matrix=True)
