"""weft's models as architectures of Transformers, which many programs read.

    translator, pre-norm     PegasusForConditionalGeneration
    translator, post-norm    MarianMTModel
    language model, pre-norm GPT2LMHeadModel; with rotary positions GPTNeoXForCausalLM
    language model, post-norm OpenAIGPTLMHeadModel

Nothing is approximated: weights are renamed, cut, put side by side, turned or reordered, and what
an architecture lacks (the factor of embeddings, keys and values that heads share) is multiplied
into its weights or written out.

Sources: Zhang et al. 2020 (Pegasus); Junczys-Dowmunt et al. 2018 (Marian); Radford et al. 2018 and
2019 (GPT, GPT-2); Black et al. 2022 (GPT-NeoX).
"""

from __future__ import annotations

import math
from collections.abc import Sequence
from dataclasses import dataclass, field

import torch
from torch import Tensor, nn

from weft.errors import InputError
from weft.mechanism.multihead import MultiHeadAttention
from weft.mechanism.positions import sinusoidal
from weft.models.blocks import DecoderBlock, EncoderBlock
from weft.models.configuration import Architecture
from weft.models.embeddings import Embedding
from weft.models.language_model import LanguageModel
from weft.models.predictor import Predictor
from weft.models.transformer import Transformer

__all__ = ["StockModel", "position_table", "queries_keys_values", "stock_model"]


@dataclass(frozen=True)
class StockModel:
    """A model in another's words.

    architecture: the class of Transformers.
    settings: of its configuration, but for the special tokens.
    weights: by its names, without the last map.
    output: of the last map, (vocabulary, width).
    """

    architecture: str
    settings: dict[str, object]
    weights: dict[str, Tensor] = field(repr=False)
    output: Tensor = field(repr=False)


def stock_model(model: Predictor) -> StockModel:
    """The architecture of Transformers that computes what a model computes, with its weights.

    Raises: InputError: none does.
    """
    with torch.no_grad():
        if isinstance(model, Transformer):
            return _translator(model)
        if isinstance(model, LanguageModel):
            return _language_model(model)
    raise InputError(
        f"export: this model {model.purpose}; no architecture of Transformers computes the same. "
        "Translators and language models have one."
    )


def _no_counterpart(what: str, remedy: str) -> InputError:
    return InputError(f"export: no architecture of Transformers has {what}. {remedy}")


def _check_weights(architecture: Architecture) -> None:
    if architecture.weights == "uniform":
        raise _no_counterpart('model.weights "uniform"', 'Train with "learned".')
    for choice in architecture.later_choices():
        raise _no_counterpart(choice, "Train without it, or export --to onnx.")


def _translator(model: Transformer) -> StockModel:
    architecture = model.architecture
    _check_weights(architecture)
    if not architecture.tied:
        raise _no_counterpart(
            "three embedding matrices (model.tied = false)", "Train with model.tied = true."
        )
    marian = architecture.norm == "post"
    suited = ("sinusoidal",) if marian else ("sinusoidal", "learned", "none")
    if architecture.positions not in suited:
        raise _no_counterpart(
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
        order = _halves(architecture.width)
        weights = {name: _reordered(name, weight, order) for name, weight in weights.items()}
        output = embedding[:, order]
    else:
        weights |= _named("model.encoder.layer_norm", model.encoder_norm)
        weights |= _named("model.decoder.layer_norm", model.decoder_norm)
    settings: dict[str, object] = {
        "vocab_size": len(embedding),
        "d_model": architecture.width,
        "encoder_layers": architecture.encoder_layers,
        "decoder_layers": architecture.decoder_layers,
        "encoder_attention_heads": architecture.heads,
        "decoder_attention_heads": architecture.heads,
        "encoder_ffn_dim": architecture.feed_forward,
        "decoder_ffn_dim": architecture.feed_forward,
        "activation_function": architecture.activation,
        "max_position_embeddings": architecture.max_length,
        "scale_embedding": True,
        "dropout": architecture.dropout,
        "attention_dropout": architecture.attention_dropout,
        "tie_word_embeddings": True,
    }
    name = "MarianMTModel" if marian else "PegasusForConditionalGeneration"
    return StockModel(name, settings, weights, output)


def _language_model(model: LanguageModel) -> StockModel:
    architecture = model.architecture
    _check_weights(architecture)
    kind = architecture.positions
    if kind == "rotary" and architecture.norm == "pre":
        return _gpt_neox(model)
    post = architecture.norm == "post"
    if kind not in ("sinusoidal", "learned", "none"):
        suited = "sinusoidal, learned, none" + ("" if post else ", rotary")
        raise _no_counterpart(
            f'a language model with model.norm "{architecture.norm}" and model.positions "{kind}"',
            f"With a counterpart: {suited}.",
        )
    if post and architecture.activation == "gelu":
        raise _no_counterpart(
            'a language model with model.norm "post" and the exact model.activation "gelu"',
            'Train with "relu", or with model.norm "pre".',
        )
    tokens, positions = ("tokens_embed", "positions_embed") if post else ("wte", "wpe")
    weights = {
        f"transformer.{tokens}.weight": _scaled_tokens(model.embedding),
        f"transformer.{positions}.weight": position_table(model.embedding),
    }
    for number, block in enumerate(_decoder_blocks(model)):
        weights |= _gpt_layer(f"transformer.h.{number}", block)
    if not post:
        weights |= _named("transformer.ln_f", model.decoder_norm)
    settings: dict[str, object] = {
        "vocab_size": len(model.output_embedding.weight),
        "n_embd": architecture.width,
        "n_layer": architecture.decoder_layers,
        "n_head": architecture.heads,
        "n_positions": architecture.max_length,
        "resid_pdrop": architecture.dropout,
        "embd_pdrop": architecture.dropout,
        "attn_pdrop": architecture.attention_dropout,
        "tie_word_embeddings": False,
    }
    if post:
        settings["afn"] = architecture.activation
        if architecture.feed_forward != 4 * architecture.width:
            raise _no_counterpart(
                f'a language model with model.norm "post" whose model.feed_forward is '
                f"{architecture.feed_forward}, not 4 times model.width",
                'Train with that, or with model.norm "pre".',
            )
    else:
        settings["activation_function"] = architecture.activation
        settings["n_inner"] = architecture.feed_forward
    name = "OpenAIGPTLMHeadModel" if post else "GPT2LMHeadModel"
    return StockModel(name, settings, weights, model.output_embedding.weight)


def _gpt_neox(model: LanguageModel) -> StockModel:
    architecture = model.architecture
    weights = {"gpt_neox.embed_in.weight": _scaled_tokens(model.embedding)}
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
        weights |= _named(f"{name}.attention.dense", attention.w_o)
        weights |= _named(f"{name}.input_layernorm", block.self_attention_norm)
        weights |= _named(f"{name}.post_attention_layernorm", block.feed_forward_norm)
        weights |= _named(f"{name}.mlp.dense_h_to_4h", block.feed_forward.rise)
        weights |= _named(f"{name}.mlp.dense_4h_to_h", block.feed_forward.fall)
    weights |= _named("gpt_neox.final_layer_norm", model.decoder_norm)
    settings: dict[str, object] = {
        "vocab_size": len(model.output_embedding.weight),
        "hidden_size": architecture.width,
        "num_hidden_layers": architecture.decoder_layers,
        "num_attention_heads": architecture.heads,
        "intermediate_size": architecture.feed_forward,
        "hidden_act": architecture.activation,
        "max_position_embeddings": architecture.max_length,
        "rope_parameters": {
            "rope_type": "default", "rope_theta": 10_000.0, "partial_rotary_factor": 1.0,
        },
        "use_parallel_residual": False,
        "attention_dropout": architecture.attention_dropout,
        "hidden_dropout": architecture.dropout,
        "tie_word_embeddings": False,
    }  # fmt: skip
    return StockModel("GPTNeoXForCausalLM", settings, weights, model.output_embedding.weight)


def _decoder_blocks(model: LanguageModel) -> list[DecoderBlock]:
    return [block for block in model.decoder if isinstance(block, DecoderBlock)]


def _scaled_tokens(embedding: Embedding) -> Tensor:
    """The embedding matrix, which the GPTs do not multiply by sqrt(width)."""
    return embedding.tokens.weight * math.sqrt(embedding.architecture.width)


def position_table(embedding: Embedding) -> Tensor:
    """What is added at each position, (max_length, width)."""
    architecture = embedding.architecture
    if architecture.positions == "learned":
        return embedding.positions.weight
    if architecture.positions == "sinusoidal":
        return sinusoidal(architecture.max_length, architecture.width)
    return torch.zeros(architecture.max_length, architecture.width)


def _named(name: str, module: nn.Module) -> dict[str, Tensor]:
    """The weight and bias of a module, under another name."""
    return {f"{name}.{key}": value for key, value in module.state_dict().items()}


def queries_keys_values(attention: MultiHeadAttention) -> list[tuple[Tensor, Tensor]]:
    """W and b of each; keys and values once for each head that shares them."""
    shared = attention.heads // attention.kv_heads
    pairs = []
    for linear, times in ((attention.w_q, 1), (attention.w_k, shared), (attention.w_v, shared)):
        both = []
        for tensor in (linear.weight, linear.bias):
            by_head = tensor.reshape(-1, attention.depth, *tensor.shape[1:])
            both.append(by_head.repeat_interleave(times, 0).flatten(0, 1))
        pairs.append((both[0], both[1]))
    return pairs


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
        weights |= _named(f"{name}.{part}.out_proj", attention.w_o)
        weights |= _named(f"{name}.{part}_layer_norm", norm)
    weights |= _named(f"{name}.fc1", block.feed_forward.rise)
    weights |= _named(f"{name}.fc2", block.feed_forward.fall)
    weights |= _named(f"{name}.final_layer_norm", block.feed_forward_norm)
    return weights


def _gpt_layer(name: str, block: DecoderBlock) -> dict[str, Tensor]:
    """A layer, as GPT and GPT-2 name its parts; their maps are matrices of (inputs, outputs)."""
    parts = queries_keys_values(block.self_attention)
    feed_forward = block.feed_forward
    maps: Sequence[tuple[str, Tensor, Tensor]] = (
        ("attn.c_attn", torch.cat([w for w, _ in parts]), torch.cat([b for _, b in parts])),
        ("attn.c_proj", block.self_attention.w_o.weight, block.self_attention.w_o.bias),
        ("mlp.c_fc", feed_forward.rise.weight, feed_forward.rise.bias),
        ("mlp.c_proj", feed_forward.fall.weight, feed_forward.fall.bias),
    )
    weights: dict[str, Tensor] = {}
    for part, weight, bias in maps:
        weights[f"{name}.{part}.weight"] = weight.T
        weights[f"{name}.{part}.bias"] = bias
    weights |= _named(f"{name}.ln_1", block.self_attention_norm)
    weights |= _named(f"{name}.ln_2", block.feed_forward_norm)
    return weights


def _halves(width: int) -> list[int]:
    """Marian has all sines of a position, then all cosines; weft has them in turn."""
    return [*range(0, width, 2), *range(1, width, 2)]


def _reordered(name: str, weight: Tensor, order: list[int]) -> Tensor:
    """A weight of a translator whose vectors between layers have their numbers in this order."""
    part = name.removesuffix(".weight").removesuffix(".bias").rpartition(".")[2]
    if part in ("out_proj", "fc2") or part.endswith("layer_norm"):
        return weight[order]
    reads = part in ("q_proj", "k_proj", "v_proj", "fc1", "shared") or part.startswith("embed_")
    return weight[:, order] if reads and name.endswith("weight") else weight
