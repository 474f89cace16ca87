"""Every model gets the kind of mask that its own attention gets, and looks where it would look.

The families are those whose own masks are easily lost or invented: decoders that do not say that
they are causal, models that compute with their mask, encoders without a flag. The oracle is the
model itself without headloom, and the weights that its eager attention returns.
"""

from __future__ import annotations

from typing import Any

import pytest
import torch
from tests.tracing.conftest import GROUPED, IMAGE, PAIR, SIZES, Family, as_list, dense_weights

import headloom

transformers = pytest.importorskip("transformers")

#: The second word is the kind of the layers that are compared.
CAUSAL = [
    Family(
        "NLLB-MoE",
        "decoder",
        "NllbMoeModel",
        "NllbMoeConfig",
        {**PAIR, "num_experts": 2, "encoder_sparse_step": 2, "decoder_sparse_step": 2},
        reads="pair",
    ),
    Family(
        "Pegasus-X",
        "decoder",
        "PegasusXModel",
        "PegasusXConfig",
        {**PAIR, "block_size": 8, "num_global_tokens": 4},
        reads="pair",
    ),
    Family(
        "BigBird-Pegasus",
        "decoder",
        "BigBirdPegasusModel",
        "BigBirdPegasusConfig",
        {**PAIR, "attention_type": "original_full"},
        reads="pair",
    ),
    Family(
        "PaliGemma",
        "decoder",
        "PaliGemmaForConditionalGeneration",
        "PaliGemmaConfig",
        {
            "text_config": {**GROUPED, "model_type": "gemma"},
            "vision_config": {**IMAGE, "model_type": "siglip_vision_model"},
            "projection_dim": 32,
            "image_token_id": 59,
        },
    ),
    Family(
        "DeepSeek-V4",
        "decoder",
        "DeepseekV4ForCausalLM",
        "DeepseekV4Config",
        {
            **SIZES,
            "num_key_value_heads": 1,
            "head_dim": 16,
            "qk_rope_head_dim": 8,
            "q_lora_rank": 16,
            "o_lora_rank": 16,
            "o_groups": 2,
            "n_routed_experts": 4,
            "num_experts_per_tok": 2,
            "moe_intermediate_size": 32,
            "index_n_heads": 2,
            "index_head_dim": 16,
            "index_topk": 4,
            "sliding_window": 4,
        },
    ),
]
FULL = [
    Family("Splinter", "encoder", "SplinterModel", "SplinterConfig", SIZES),
    Family("ALIGN", "encoder", "AlignTextModel", "AlignTextConfig", SIZES),
    Family("CLAP", "encoder", "ClapTextModel", "ClapTextConfig", SIZES),
    Family(
        "LayoutLM",
        "encoder",
        "LayoutLMModel",
        "LayoutLMConfig",
        {**SIZES, "max_2d_position_embeddings": 64},
    ),
    Family(
        "MarkupLM",
        "encoder",
        "MarkupLMModel",
        "MarkupLMConfig",
        {
            **SIZES,
            "max_depth": 4,
            "xpath_unit_hidden_size": 8,
            "tag_pad_id": 5,
            "subs_pad_id": 5,
            "max_xpath_tag_unit_embeddings": 8,
            "max_xpath_subs_unit_embeddings": 8,
        },
    ),
]
GIT = Family(
    "GIT", "encoder", "GitForCausalLM", "GitConfig", {**SIZES, "vision_config": IMAGE}, reads="both"
)


def outputs_with_and_without(
    model: torch.nn.Module, inputs: dict[str, Any]
) -> tuple[list[headloom.Trace], dict[str, float]]:
    """The traces, and how far each tensor of the output is from that of the model alone."""
    outputs: list[Any] = []
    with model.register_forward_hook(lambda module, given, output: outputs.append(output)):
        traces = as_list(headloom.trace(model, inputs, keep=headloom.All()))
    with torch.no_grad():
        own = model(**inputs, use_cache=False)
    differences = {
        name: float((outputs[-1][name] - tensor).abs().max())
        for name, tensor in own.items()
        if isinstance(tensor, torch.Tensor) and tensor.is_floating_point()
    }
    assert differences
    return traces, differences


@pytest.mark.filterwarnings("ignore:.*ran and cannot be traced")
@pytest.mark.parametrize("family", CAUSAL + FULL, ids=lambda family: family.name)
def test_a_model_looks_where_it_looks_without_headloom(family: Family) -> None:
    model, inputs = family.build(), family.inputs(padded=False)
    (trace,), differences = outputs_with_and_without(model, inputs)
    assert max(differences.values()) <= 1e-5
    expected = dense_weights(model, {**inputs, "use_cache": False})
    group = family.kind if family.kind in expected else "all"
    layers = [layer for layer in trace.layers if layer.kind == family.kind]
    assert trace.deviation is not None
    assert trace.deviation < 5e-6
    for layer, weights in zip(layers, expected[group], strict=True):
        assert torch.allclose(layer.graph.to_dense(), weights[0, :, :, : layer.shape[2]], atol=2e-6)
        ahead = float(layer.graph.to_dense().triu(1).max())
        assert (ahead == 0) == (family.kind == "decoder")


def test_a_model_may_compute_with_its_mask() -> None:
    """GIT joins the mask of its text with that of its image."""
    # The layers of its text are not caught, and named.
    with pytest.warns(UserWarning, match="GitSelfAttention|git"):
        _, differences = outputs_with_and_without(GIT.build(), GIT.inputs(padded=False))
    assert max(differences.values()) <= 1e-5


@pytest.mark.parametrize("implementation", ["eager", "sdpa"])
def test_a_missing_mask_means_what_it_means_to_the_models_own_attention(
    implementation: str,
) -> None:
    """PaliGemma's modules say that they are not causal: only eager attention gets a mask then."""
    family = CAUSAL[3]
    model, inputs = family.build(implementation), family.inputs(padded=False)
    (trace,), differences = outputs_with_and_without(model, inputs)
    assert max(differences.values()) <= 1e-5
    assert {layer.kind for layer in trace.layers} == {
        "decoder" if implementation == "eager" else "encoder"
    }
