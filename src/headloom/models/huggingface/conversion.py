"""Conversion of headloom's models to Transformers.

A translator or a language model becomes a Pegasus, Marian, GPT-2, GPT-NeoX or Llama. The conversion
is exact: features that a family lacks (the factor of embeddings, shared keys and values, biases)
are multiplied into the weights or expanded.
"""

from __future__ import annotations

from copy import deepcopy
from dataclasses import dataclass, field
from pathlib import Path

import torch
from torch import Tensor

from headloom.errors import InputError
from headloom.formats.files import JsonObject
from headloom.formats.run import is_run
from headloom.models.classifier import Classifier
from headloom.models.embeddings import position_table
from headloom.models.encoder import Encoder
from headloom.models.graph_attention import GraphAttentionNetwork
from headloom.models.huggingface.families import GPT2, LLAMA, MARIAN, NEOX, PEGASUS, rope_parameters
from headloom.models.huggingface.folder import Settings
from headloom.models.huggingface.reading import class_of, reorder
from headloom.models.images import ConvolutionalClassifier, VisionTransformer
from headloom.models.language_model import LanguageModel
from headloom.models.predictor import Predictor
from headloom.models.transformer import Transformer

#: Modules that a folder can hold.
_MODULES: tuple[type[Predictor], ...] = (
    LanguageModel, Transformer, Encoder, Classifier, GraphAttentionNetwork, VisionTransformer,
    ConvolutionalClassifier,
)  # fmt: skip


def load_module(folder: Path) -> Predictor | None:
    """Load the module of a folder; None: no module's `save_pretrained` wrote it."""
    ours = (folder / "config.json").exists() and not is_run(folder)
    name = Settings.read(folder).raw("headloom") if ours else None
    kinds = {kind.__name__: kind for kind in _MODULES}
    return kinds[str(name)].from_pretrained(folder) if name in kinds else None


def load_transformers(folder: Path, settings: Settings) -> LanguageModel | Encoder | Transformer:
    """Load a folder of Transformers with the matching class, in evaluation mode."""
    kinds = {kind.__name__: kind for kind in (LanguageModel, Encoder, Transformer)}
    return kinds[class_of(folder, settings)].from_pretrained(folder)


@dataclass(frozen=True)
class StockModel:
    """Model in the format of Transformers; output: the weight of its last map."""

    architecture: str
    settings: JsonObject
    weights: dict[str, Tensor] = field(repr=False)
    output: Tensor = field(repr=False)


@torch.no_grad()
def stock_model(model: Predictor) -> StockModel:
    """Return the equivalent architecture of Transformers, with the model's weights."""
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
        reorder(model, halves)
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
    is_llama = architecture.normalisation == "rms" or architecture.feed_forward_kind == "gated"
    more: JsonObject = {"vocab_size": len(model.output_embedding.weight)}
    family = LLAMA if is_llama else NEOX
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
