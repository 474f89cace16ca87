"""headloom's language models as architectures of Transformers.

    pre-norm                          GPT2LMHeadModel
    pre-norm, rotary                  GPTNeoXForCausalLM
    pre-norm, rotary, RMS norm, gated LlamaForCausalLM

Sources: Radford et al. 2019 (GPT-2); Black et al. 2022 (GPT-NeoX); Touvron et al.
2023 (Llama).
"""

from __future__ import annotations

from collections.abc import Sequence

import torch
from torch import Tensor

from headloom.models.blocks import DecoderBlock
from headloom.models.language_model import LanguageModel
from headloom.models.rotary_settings import rope_parameters
from headloom.models.stock_parts import (
    ACTIVATIONS,
    STOCK_POSITIONS,
    StockModel,
    bias_of,
    check_choices,
    map_of,
    named,
    no_counterpart,
    position_table,
    queries_keys_values,
    scaled_tokens,
)

__all__ = ["language_model"]


def language_model(model: LanguageModel) -> StockModel:
    """The architecture that computes what a language model computes, with its weights.

    Raises: InputError: none does.
    """
    architecture = model.architecture
    if architecture.norm == "pre" and architecture.positions == "rotary":
        modern = architecture.normalisation == "rms" or architecture.feed_forward_kind == "gated"
        return _llama(model) if modern else _gpt_neox(model)
    return _gpt(model)


def _gpt(model: LanguageModel) -> StockModel:
    architecture = model.architecture
    check_choices(
        architecture, "model.activation", "model.biases", "embeddings", "model.norm_epsilon"
    )
    if architecture.norm == "post" or architecture.positions not in STOCK_POSITIONS:
        raise no_counterpart(
            f'a language model with model.norm "{architecture.norm}" and model.positions '
            f'"{architecture.positions}"',
            f'With a counterpart: {", ".join(STOCK_POSITIONS)}, rotary, with model.norm "pre".',
        )
    weights = {
        "transformer.wte.weight": scaled_tokens(model.embedding),
        "transformer.wpe.weight": position_table(model.embedding),
    }
    for number, block in enumerate(_decoder_blocks(model)):
        weights |= _gpt_layer(f"transformer.h.{number}", block)
    weights |= named("transformer.ln_f", model.decoder_norm)
    settings: dict[str, object] = {
        "vocab_size": len(model.output_embedding.weight),
        "n_embd": architecture.width,
        "n_layer": architecture.decoder_layers,
        "n_head": architecture.heads,
        "n_positions": architecture.max_length,
        "n_inner": architecture.feed_forward,
        "activation_function": ACTIVATIONS[architecture.activation],
        "layer_norm_epsilon": architecture.norm_epsilon,
        "resid_pdrop": architecture.dropout,
        "embd_pdrop": architecture.dropout,
        "attn_pdrop": architecture.attention_dropout,
        "tie_word_embeddings": False,
    }
    return StockModel("GPT2LMHeadModel", settings, weights, model.output_embedding.weight)


def _gpt_layer(name: str, block: DecoderBlock) -> dict[str, Tensor]:
    """A layer, as GPT-2 names its parts; its maps are matrices of (inputs, outputs)."""
    parts = queries_keys_values(block.self_attention)
    feed_forward = block.feed_forward
    maps: Sequence[tuple[str, Tensor, Tensor]] = (
        ("attn.c_attn", torch.cat([w for w, _ in parts]), torch.cat([b for _, b in parts])),
        ("attn.c_proj", block.self_attention.w_o.weight, bias_of(block.self_attention.w_o)),
        ("mlp.c_fc", feed_forward.rise.weight, bias_of(feed_forward.rise)),
        ("mlp.c_proj", feed_forward.fall.weight, bias_of(feed_forward.fall)),
    )
    weights: dict[str, Tensor] = {}
    for part, weight, bias in maps:
        weights[f"{name}.{part}.weight"] = weight.T
        weights[f"{name}.{part}.bias"] = bias
    weights |= named(f"{name}.ln_1", block.self_attention_norm)
    weights |= named(f"{name}.ln_2", block.feed_forward_norm)
    return weights


def _gpt_neox(model: LanguageModel) -> StockModel:
    architecture = model.architecture
    check_choices(
        architecture, "model.activation", "model.biases", "embeddings", "model.norm_epsilon",
        "model.rotary_base", "scaled rotary positions",
    )  # fmt: skip
    weights = {"gpt_neox.embed_in.weight": scaled_tokens(model.embedding)}
    for number, block in enumerate(_decoder_blocks(model)):
        name, attention = f"gpt_neox.layers.{number}", block.self_attention
        parts = queries_keys_values(attention)
        # Of each head its queries, keys and values, then the next head's.
        for kind, tensors in (("weight", [w for w, _ in parts]), ("bias", [b for _, b in parts])):
            heads = attention.heads
            by_head = [tensor.reshape(heads, -1, *tensor.shape[1:]) for tensor in tensors]
            weights[f"{name}.attention.query_key_value.{kind}"] = torch.cat(by_head, 1).flatten(
                0, 1
            )
        weights |= map_of(f"{name}.attention.dense", attention.w_o)
        weights |= named(f"{name}.input_layernorm", block.self_attention_norm)
        weights |= named(f"{name}.post_attention_layernorm", block.feed_forward_norm)
        weights |= map_of(f"{name}.mlp.dense_h_to_4h", block.feed_forward.rise)
        weights |= map_of(f"{name}.mlp.dense_4h_to_h", block.feed_forward.fall)
    weights |= named("gpt_neox.final_layer_norm", model.decoder_norm)
    settings: dict[str, object] = {
        "vocab_size": len(model.output_embedding.weight),
        "hidden_size": architecture.width,
        "num_hidden_layers": architecture.decoder_layers,
        "num_attention_heads": architecture.heads,
        "intermediate_size": architecture.feed_forward,
        "hidden_act": ACTIVATIONS[architecture.activation],
        "max_position_embeddings": architecture.max_length,
        "rope_parameters": rope_parameters(architecture) | {"partial_rotary_factor": 1.0},
        "layer_norm_eps": architecture.norm_epsilon,
        "use_parallel_residual": False,
        "attention_dropout": architecture.attention_dropout,
        "hidden_dropout": architecture.dropout,
        "tie_word_embeddings": False,
    }  # fmt: skip
    return StockModel("GPTNeoXForCausalLM", settings, weights, model.output_embedding.weight)


def _llama(model: LanguageModel) -> StockModel:
    """Llama, with keys and values that heads share as they are."""
    architecture = model.architecture
    for has, what, other in (
        (architecture.normalisation == "rms", 'model.normalisation "layer"', "a gate"),
        (architecture.feed_forward_kind == "gated", 'model.feed_forward_kind "plain"', "RMS norms"),
    ):
        if not has:
            raise no_counterpart(
                f"a language model with {what} beside {other}",
                'Train with "rms" and "gated", or with neither, or export --to onnx.',
            )
    check_choices(
        architecture, "model.normalisation", "model.feed_forward_kind", "model.activation",
        "model.biases", "embeddings", "model.norm_epsilon", "model.rotary_base",
        "scaled rotary positions", "heads of depth",
    )  # fmt: skip
    weights = {"model.embed_tokens.weight": scaled_tokens(model.embedding)}
    for number, block in enumerate(_decoder_blocks(model)):
        weights |= _llama_layer(f"model.layers.{number}", block)
    weights |= named("model.norm", model.decoder_norm)
    attention = _decoder_blocks(model)[0].self_attention
    settings: dict[str, object] = {
        "vocab_size": len(model.output_embedding.weight),
        "hidden_size": architecture.width,
        "num_hidden_layers": architecture.decoder_layers,
        "num_attention_heads": architecture.heads,
        "num_key_value_heads": attention.kv_heads,
        "head_dim": attention.depth,
        "intermediate_size": architecture.feed_forward,
        "hidden_act": ACTIVATIONS[architecture.activation],
        "max_position_embeddings": architecture.max_length,
        "rms_norm_eps": architecture.norm_epsilon,
        "rope_parameters": rope_parameters(architecture),
        "attention_bias": architecture.biases,
        "mlp_bias": architecture.biases,
        "attention_dropout": architecture.attention_dropout,
        "tie_word_embeddings": False,
    }
    return StockModel("LlamaForCausalLM", settings, weights, model.output_embedding.weight)


def _llama_layer(name: str, block: DecoderBlock) -> dict[str, Tensor]:
    attention, feed_forward = block.self_attention, block.feed_forward
    if feed_forward.gate is None:
        raise TypeError("a block of Llama has a gate")
    return {
        **named(f"{name}.self_attn.q_proj", attention.w_q),
        **named(f"{name}.self_attn.k_proj", attention.w_k),
        **named(f"{name}.self_attn.v_proj", attention.w_v),
        **named(f"{name}.self_attn.o_proj", attention.w_o),
        **named(f"{name}.mlp.gate_proj", feed_forward.gate),
        **named(f"{name}.mlp.up_proj", feed_forward.rise),
        **named(f"{name}.mlp.down_proj", feed_forward.fall),
        **named(f"{name}.input_layernorm", block.self_attention_norm),
        **named(f"{name}.post_attention_layernorm", block.feed_forward_norm),
    }


def _decoder_blocks(model: LanguageModel) -> list[DecoderBlock]:
    return [block for block in model.decoder if isinstance(block, DecoderBlock)]
