"""Folders of Transformers as headloom's models, and headloom's models as those of Transformers.

A BERT, GPT-2, Llama or Marian becomes a model of headloom; a translator or a language model of
headloom becomes a Pegasus, Marian, GPT-2, GPT-NeoX or Llama. Nothing is approximated: what a family
lacks (the factor of embeddings, keys and values that heads share, biases) is multiplied into its
weights or written out.
"""

from __future__ import annotations

from collections.abc import Callable
from copy import deepcopy
from dataclasses import dataclass, field
from pathlib import Path

import torch
from torch import Tensor, nn

from headloom.errors import InputError
from headloom.formats.files import JsonObject
from headloom.mechanism.positions import sinusoidal
from headloom.models.embeddings import position_table
from headloom.models.huggingface.families import (
    BERT,
    GPT2,
    LLAMA,
    MARIAN,
    NEOX,
    PEGASUS,
    read_rotary,
    rope_parameters,
)
from headloom.models.huggingface.folder import Settings, Tensors, read_tensors
from headloom.models.huggingface.layouts import Layout, copied
from headloom.models.language_model import LanguageModel
from headloom.models.predictor import Predictor
from headloom.models.text_encoder import EncoderHead, TextEncoder
from headloom.models.transformer import Transformer

#: No id: language models read texts without padding, and a token that pads in another library may
#: stand in a text.
NO_PADDING = -1
#: What a folder becomes.
Loaded = LanguageModel | TextEncoder | Transformer


def load_model(folder: Path, settings: Settings) -> Loaded:
    """The model of a folder, in evaluation mode.

    Raises: InputError: an architecture or a setting that headloom's models do not have. DataError:
        a file is missing or damaged.
    """
    families: dict[str, Callable[[Settings, Tensors], Loaded]] = {
        "bert": _load_bert, "gpt2": _load_gpt2, "llama": _load_llama, "marian": _load_marian,
    }  # fmt: skip
    kind = settings.get("model_type", "")
    if kind not in families:
        raise InputError(
            f"{folder}: model_type {kind!r}; headloom's own models hold {', '.join(families)}. "
            "Trace others by headloom.trace, which needs no copy of them."
        )
    tensors = read_tensors(folder)
    model = families[kind](settings, tensors)
    tensors.check_used()
    nn.Module.eval(model)
    return model


def _load_bert(settings: Settings, tensors: Tensors) -> TextEncoder:
    settings.expect("is_decoder", False)
    settings.expect("add_cross_attention", False)
    settings.expect("position_embedding_type", "absolute")
    architecture = BERT.read(settings)
    head: EncoderHead = "none"
    classes, start, names = 0, "", dict(BERT.layout.names)
    if tensors.has("bert.embeddings.word_embeddings.weight"):
        start = "bert."
    pooler = tensors.has(f"{start}pooler.dense.weight")
    if tensors.has("cls.predictions.transform.dense.weight"):
        head = "tokens"
    if tensors.has("classifier.weight"):
        head, classes = "classes", tensors.sizes("classifier.weight")[0]
    model = TextEncoder(
        settings.size("vocab_size", 30522), architecture,
        segments=settings.size("type_vocab_size", 2), head=head, classes=classes, pooler=pooler,
        padding=settings.get("pad_token_id", 0),
    )  # fmt: skip
    if model.pooler is not None:
        names["pooler.dense"] = "pooler"
    Layout(names).fill(model, tensors, start)
    if head == "classes":
        Layout({"classifier": "output"}).fill(model, tensors)
    elif head == "tokens":
        dense = {"transform.dense": "transform", "transform.LayerNorm": "transform_norm"}
        Layout(dense).fill(model, tensors, "cls.predictions.")
        # A decoder that is not tied to the embeddings has a bias of its own, if the folder has it.
        bias = "cls.predictions.bias"
        if not architecture.tied:
            sizes = tuple(model.output.weight.shape)
            copied(model.output.weight, tensors.take("cls.predictions.decoder.weight", sizes))
            if tensors.has("cls.predictions.decoder.bias"):
                tensors.drop(bias)
                bias = "cls.predictions.decoder.bias"
        copied(model.output.bias, tensors.take(bias, tuple(model.output.bias.shape)))
        tensors.drop("cls.predictions.decoder")  # the same again
        tensors.drop("cls.seq_relationship")  # of whether two texts follow each other
    return model


def _load_gpt2(settings: Settings, tensors: Tensors) -> LanguageModel:
    settings.expect("scale_attn_weights", True)
    settings.expect("scale_attn_by_inverse_layer_idx", False)
    settings.expect("add_cross_attention", False)
    model = LanguageModel(settings.size("vocab_size", 50257), GPT2.read(settings), NO_PADDING)
    start = "transformer." if tensors.has("transformer.wte.weight") else ""
    Layout({"wpe": "embedding.positions"}).fill(model, tensors, start)
    GPT2.layout.fill(model, tensors, start)
    return _with_output(model, tensors)


def _load_llama(settings: Settings, tensors: Tensors) -> LanguageModel:
    biases = [settings.get(f"{part}_bias", False) for part in ("attention", "mlp")]
    base, scaling = read_rotary(settings)
    architecture = LLAMA.read(
        settings,
        biases=any(biases),  # those that only one part has are 0 in the other
        rotary_base=base,
        rotary_scaling=scaling,
    )
    model = LanguageModel(settings.size("vocab_size", 32000), architecture, NO_PADDING)
    LLAMA.layout.fill(model, tensors)
    return _with_output(model, tensors)


def _with_output(model: LanguageModel, tensors: Tensors) -> LanguageModel:
    weight = model.output_embedding.weight
    if not model.architecture.tied:
        copied(weight, tensors.take("lm_head.weight", tuple(weight.shape)))
    tensors.drop("lm_head.")
    return model


def _load_marian(settings: Settings, tensors: Tensors) -> Transformer:
    settings.expect("share_encoder_decoder_embeddings", True)
    settings.expect("tie_word_embeddings", True)
    architecture = MARIAN.read(settings, output_bias=True)
    for part, same in (("attention_heads", architecture.heads),
                       ("ffn_dim", architecture.feed_forward)):  # fmt: skip
        settings.expect(f"decoder_{part}", same)
    vocabulary = settings.size("vocab_size", 58101)
    model = Transformer(vocabulary, architecture, settings.get("pad_token_id", 58100))
    MARIAN.layout.fill(model, tensors)
    halves = torch.arange(architecture.width).view(-1, 2).T.flatten()
    sines = sinusoidal(architecture.max_length, architecture.width)[:, halves]
    for side in ("encoder", "decoder"):
        tensors.drop(f"model.{side}.embed_tokens.")
        name = f"model.{side}.embed_positions.weight"
        # Half precision has 3 digits.
        if tensors.has(name) and not torch.allclose(
            tensors.take(name, tuple(sines.shape)), sines, atol=1e-2
        ):
            raise InputError(
                f"{tensors.folder}: {name} holds no sines and cosines; headloom's translators with "
                "a norm after each layer compute theirs. Trace the model by headloom.trace instead."
            )
    bias = torch.zeros(1, vocabulary)
    if tensors.has("final_logits_bias"):
        bias = tensors.take("final_logits_bias", (1, vocabulary))
    copied(model.output_embedding.bias, bias[0])
    tensors.drop("lm_head.")
    _reorder(model, halves.argsort())
    return model


def _reorder(model: Transformer, order: Tensor) -> None:
    """Reorder the numbers that flow between layers.

    Marian has all sines of a position, then all cosines; headloom has them in turn. A norm, a sum
    and a matrix product are the same in any order, so weights that read or write these numbers are
    reordered once.
    """
    reads = ("w_q", "w_k", "w_v", "rise", "tokens")
    for name, parameter in model.named_parameters():
        module, _, part = name.rpartition(".")
        last = module.rpartition(".")[2]
        if last in reads and part == "weight":
            copied(parameter, parameter.detach()[:, order].clone())
        elif last in ("w_o", "fall") or last.endswith("norm"):
            copied(parameter, parameter.detach()[order].clone())


@dataclass(frozen=True)
class StockModel:
    """A model in another's words.

    architecture: the class of Transformers.
    settings: of its configuration, but for the special tokens.
    weights: by its names, without the last map.
    output: of the last map, (vocabulary, width).
    """

    architecture: str
    settings: JsonObject
    weights: dict[str, Tensor] = field(repr=False)
    output: Tensor = field(repr=False)


@torch.no_grad()
def stock_model(model: Predictor) -> StockModel:
    """The architecture of Transformers that computes what a model computes, with its weights.

    Raises: InputError: none does.
    """
    if isinstance(model, Transformer):
        return _translator(model)
    if isinstance(model, LanguageModel):
        return _language_model(model)
    raise InputError(
        f"export: this model {model.purpose}; no architecture of Transformers computes the same. "
        "Translators and language models have one."
    )


def _translator(model: Transformer) -> StockModel:
    architecture = model.architecture
    family = MARIAN if architecture.norm == "post" else PEGASUS
    settings = family.settings(architecture) | {
        "vocab_size": len(model.source_embedding.tokens.weight),
        "decoder_attention_heads": architecture.heads,
        "decoder_ffn_dim": architecture.feed_forward,
        "tie_word_embeddings": True,
    }
    table = position_table(model.source_embedding), position_table(model.target_embedding)
    if family is MARIAN:
        halves = torch.arange(architecture.width).view(-1, 2).T.flatten()
        model = deepcopy(model)
        _reorder(model, halves)
        table = table[0][:, halves], table[1][:, halves]
    weights, embedding = family.layout.written(model), model.source_embedding.tokens.weight
    for side, positions in zip(("encoder", "decoder"), table, strict=True):
        weights[f"model.{side}.embed_tokens.weight"] = embedding
        weights[f"model.{side}.embed_positions.weight"] = positions
    if model.output_embedding.bias is not None:
        weights["final_logits_bias"] = model.output_embedding.bias[None]
    return StockModel(family.model, settings, weights, embedding)


def _language_model(model: LanguageModel) -> StockModel:
    architecture, before = model.architecture, ""
    modern = architecture.normalisation == "rms" or architecture.feed_forward_kind == "gated"
    more: JsonObject = {"vocab_size": len(model.output_embedding.weight)}
    family = LLAMA if modern else NEOX
    if architecture.positions != "rotary":
        family, before = GPT2, "transformer."
        more["embd_pdrop"] = architecture.dropout
    else:
        more["rope_parameters"] = rope_parameters(architecture)
    if family is NEOX:
        more["rope_parameters"] |= {"partial_rotary_factor": 1.0}
        more["use_parallel_residual"] = False
    if family is LLAMA:
        more |= {"attention_bias": architecture.biases, "mlp_bias": architecture.biases}
    settings = family.settings(architecture) | more | {"tie_word_embeddings": False}
    written = family.layout.written(model, architecture.embedding_factor)
    weights = {f"{before}{name}": tensor for name, tensor in written.items()}
    if family is GPT2:
        weights["transformer.wpe.weight"] = position_table(model.embedding)
    return StockModel(family.model, settings, weights, model.output_embedding.weight)
