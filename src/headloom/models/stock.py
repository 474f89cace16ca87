"""headloom's models as architectures of Transformers, which many programs read.

    translator, pre-norm     PegasusForConditionalGeneration
    translator, post-norm    MarianMTModel
    language models          see `headloom.models.stock_language`

Nothing is approximated: weights are renamed, cut, put side by side, turned or reordered, and what
an architecture lacks (the factor of embeddings, keys and values that heads share) is multiplied
into its weights or written out.

Sources: Zhang et al. 2020 (Pegasus); Junczys-Dowmunt et al. 2018 (Marian).
"""

from __future__ import annotations

import torch
from torch import Tensor, nn

from headloom.errors import InputError
from headloom.models.blocks import DecoderBlock, EncoderBlock
from headloom.models.language_model import LanguageModel
from headloom.models.predictor import Predictor
from headloom.models.stock_language import language_model
from headloom.models.stock_parts import (
    ACTIVATIONS,
    STOCK_POSITIONS,
    StockModel,
    check_choices,
    map_of,
    named,
    no_counterpart,
    position_table,
    queries_keys_values,
)
from headloom.models.transformer import Transformer

__all__ = ["stock_model"]


def stock_model(model: Predictor) -> StockModel:
    """The architecture of Transformers that computes what a model computes, with its weights.

    Raises: InputError: none does.
    """
    with torch.no_grad():
        if isinstance(model, Transformer):
            return _translator(model)
        if isinstance(model, LanguageModel):
            return language_model(model)
    raise InputError(
        f"export: this model {model.purpose}; no architecture of Transformers computes the same. "
        "Translators and language models have one."
    )


def _translator(model: Transformer) -> StockModel:
    architecture = model.architecture
    check_choices(
        architecture, "model.activation", "model.biases", "embeddings", "a bias of the scores"
    )
    if not architecture.tied:
        raise no_counterpart(
            "three embedding matrices (model.tied = false)", "Train with model.tied = true."
        )
    marian = architecture.norm == "post"
    suited = ("sinusoidal",) if marian else STOCK_POSITIONS
    if architecture.positions not in suited:
        raise no_counterpart(
            f'a translator with model.norm "{architecture.norm}" and model.positions '
            f'"{architecture.positions}"',
            f"With a counterpart: {', '.join(suited)}.",
        )
    embedding = model.source_embedding.tokens.weight
    weights: dict[str, Tensor] = {"model.shared.weight": embedding}
    for side, blocks, own in (
        ("encoder", model.encoder, model.source_embedding),
        ("decoder", model.decoder, model.target_embedding),
    ):
        weights[f"model.{side}.embed_tokens.weight"] = embedding
        weights[f"model.{side}.embed_positions.weight"] = position_table(own)
        for number, block in enumerate(blocks):
            weights |= _bart_layer(f"model.{side}.layers.{number}", block)
    output = embedding
    if marian:
        # Marian has all sines of a position, then all cosines; headloom has them in turn.
        order = [*range(0, architecture.width, 2), *range(1, architecture.width, 2)]
        weights = {name: _reordered(name, weight, order) for name, weight in weights.items()}
        output = embedding[:, order]
    else:
        weights |= named("model.encoder.layer_norm", model.encoder_norm)
        weights |= named("model.decoder.layer_norm", model.decoder_norm)
    if model.output_embedding.bias is not None:
        weights["final_logits_bias"] = model.output_embedding.bias[None]
    settings: dict[str, object] = {
        "vocab_size": len(embedding),
        "d_model": architecture.width,
        "encoder_layers": architecture.encoder_layers,
        "decoder_layers": architecture.decoder_layers,
        "encoder_attention_heads": architecture.heads,
        "decoder_attention_heads": architecture.heads,
        "encoder_ffn_dim": architecture.feed_forward,
        "decoder_ffn_dim": architecture.feed_forward,
        "activation_function": ACTIVATIONS[architecture.activation],
        "max_position_embeddings": architecture.max_length,
        "scale_embedding": architecture.scaled_embeddings,
        "dropout": architecture.dropout,
        "attention_dropout": architecture.attention_dropout,
        "tie_word_embeddings": True,
    }
    name = "MarianMTModel" if marian else "PegasusForConditionalGeneration"
    return StockModel(name, settings, weights, output)


def _bart_layer(name: str, block: nn.Module) -> dict[str, Tensor]:
    """A layer of an encoder or decoder, as BART, Marian and Pegasus name its parts."""
    if not isinstance(block, (EncoderBlock, DecoderBlock)):
        raise TypeError("a translator is made of encoder and decoder blocks")
    attentions = [("self_attn", block.self_attention, block.self_attention_norm)]
    if isinstance(block, DecoderBlock) and block.cross_attention and block.cross_attention_norm:
        attentions.append(("encoder_attn", block.cross_attention, block.cross_attention_norm))
    weights: dict[str, Tensor] = {}
    for part, attention, norm in attentions:
        for letter, (weight, bias) in zip("qkv", queries_keys_values(attention), strict=True):
            weights[f"{name}.{part}.{letter}_proj.weight"] = weight
            weights[f"{name}.{part}.{letter}_proj.bias"] = bias
        weights |= map_of(f"{name}.{part}.out_proj", attention.w_o)
        weights |= named(f"{name}.{part}_layer_norm", norm)
    weights |= map_of(f"{name}.fc1", block.feed_forward.rise)
    weights |= map_of(f"{name}.fc2", block.feed_forward.fall)
    weights |= named(f"{name}.final_layer_norm", block.feed_forward_norm)
    return weights


def _reordered(name: str, weight: Tensor, order: list[int]) -> Tensor:
    """A weight of a translator whose vectors between layers have their numbers in this order."""
    part = name.removesuffix(".weight").removesuffix(".bias").rpartition(".")[2]
    if part in ("out_proj", "fc2") or part.endswith("layer_norm"):
        return weight[order]
    reads = part in ("q_proj", "k_proj", "v_proj", "fc1", "shared") or part.startswith("embed_")
    return weight[:, order] if reads and name.endswith("weight") else weight
