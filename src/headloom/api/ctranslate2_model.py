"""A trained model as CTranslate2 reads it.

CTranslate2 (Klein et al. 2020) knows more attentions than one architecture of Transformers does:
Shaw's relative positions, and both places of the norm with any table of positions.
"""

from __future__ import annotations

from collections.abc import Iterable
from pathlib import Path
from typing import Any

import torch
from torch import Tensor, nn

from headloom.errors import InputError, installing, optional_package
from headloom.mechanism.multihead import MultiHeadAttention
from headloom.models.blocks import DecoderBlock, EncoderBlock
from headloom.models.configuration import Architecture
from headloom.models.embeddings import Embedding
from headloom.models.language_model import LanguageModel
from headloom.models.stock_parts import position_table, queries_keys_values
from headloom.models.transformer import Transformer
from headloom.training.inference import TrainedRun
from headloom.training.text import SPECIALS

__all__ = ["scores_of_ctranslate2", "write_ctranslate2"]


def write_ctranslate2(run: TrainedRun, folder: Path) -> str:
    """Fill a folder with a run's model; returns the class of CTranslate2 that opens it.

    Raises: InputError: CTranslate2 cannot compute the model.
    """
    with optional_package("export", installing("ctranslate2")):
        from ctranslate2 import specs
    model, vocabulary = run.model, run.vocabulary
    if not isinstance(model, (Transformer, LanguageModel)):
        raise InputError(
            f"export: this model {model.purpose}; CTranslate2 runs translators and language models."
        )
    architecture = model.architecture
    _check(architecture, translator=isinstance(model, Transformer))
    activations: dict[str, Any] = {"relu": specs.Activation.RELU, "gelu": specs.Activation.GELU}
    settings = {
        "pre_norm": architecture.norm == "pre",
        "activation": activations[architecture.activation],
        "with_relative_position": architecture.relative in ("shaw", "shaw-keys"),
    }
    tokens = vocabulary.token_names()
    if isinstance(model, Transformer):
        layers = architecture.encoder_layers, architecture.decoder_layers
        spec = specs.TransformerSpec.from_config(layers, architecture.heads, **settings)
        spec.register_source_vocabulary(tokens)
        spec.register_target_vocabulary(tokens)
        spec.config.decoder_start_token = SPECIALS[vocabulary.start]
        _fill_stack(spec.encoder, model.source_embedding, model.encoder, model.encoder_norm)
        embedding = model.target_embedding
    else:
        if architecture.relative == "rotary":
            settings |= {"rotary_dim": 0, "rotary_interleave": False}
        spec = specs.TransformerDecoderModelSpec.from_config(
            architecture.decoder_layers, architecture.heads, **settings
        )
        spec.register_vocabulary(tokens)
        embedding = model.embedding
    _fill_stack(spec.decoder, embedding, model.decoder, model.decoder_norm)
    _set(spec.decoder.projection, model.output_embedding.weight)
    spec.config.bos_token = SPECIALS[vocabulary.start]
    spec.config.eos_token = SPECIALS[vocabulary.end]
    spec.config.unk_token = SPECIALS[vocabulary.unknown]
    spec.config.layer_norm_epsilon = 1e-5
    spec.validate()
    spec.optimize()
    spec.save(str(folder))
    return "Translator" if run.translates else "Generator"


def _check(architecture: Architecture, *, translator: bool) -> None:
    unknown = [
        (architecture.weights == "uniform", 'model.weights "uniform"'),
        (
            architecture.positions in ("alibi", "buckets"),
            f'model.positions "{architecture.positions}"',
        ),
        (translator and architecture.positions == "rotary", "a translator with rotary positions"),
    ]
    unknown += [(True, choice) for choice in architecture.later_choices()]
    for has, what in unknown:
        if has:
            raise InputError(f"export: CTranslate2 does not compute {what}. Train another model.")


def _fill_stack(spec: Any, embedding: Embedding, blocks: Iterable[nn.Module], norm: Any) -> None:
    """An encoder or a decoder."""
    embeddings = spec.embeddings[0] if isinstance(spec.embeddings, list) else spec.embeddings
    embeddings.weight = _array(embedding.tokens.weight)
    spec.scale_embeddings = True
    if hasattr(spec, "position_encodings"):
        spec.position_encodings.encodings = _array(position_table(embedding))
    if hasattr(spec, "layer_norm"):
        _set_norm(spec.layer_norm, norm)
    for layer, block in zip(spec.layer, blocks, strict=True):
        if not isinstance(block, (EncoderBlock, DecoderBlock)):
            raise TypeError("a stack is made of encoder or decoder blocks")
        _fill_attention(layer.self_attention, block.self_attention, shared_input=True)
        _set_norm(layer.self_attention.layer_norm, block.self_attention_norm)
        if isinstance(block, DecoderBlock) and block.cross_attention is not None:
            _fill_attention(layer.attention, block.cross_attention, shared_input=False)
            _set_norm(layer.attention.layer_norm, block.cross_attention_norm)
        for part, linear in (
            (layer.ffn.linear_0, block.feed_forward.rise),
            (layer.ffn.linear_1, block.feed_forward.fall),
        ):
            _set(part, linear.weight, linear.bias)
        _set_norm(layer.ffn.layer_norm, block.feed_forward_norm)


def _fill_attention(spec: Any, attention: MultiHeadAttention, *, shared_input: bool) -> None:
    """W_Q, W_K and W_V in one map of a shared input; else W_Q in one, W_K and W_V in the next."""
    parts = queries_keys_values(attention)
    groups = [parts] if shared_input else [parts[:1], parts[1:]]
    for linear, group in zip(spec.linear, groups, strict=False):
        _set(linear, torch.cat([w for w, _ in group]), torch.cat([b for _, b in group]))
    _set(spec.linear[-1], attention.w_o.weight, attention.w_o.bias)
    if attention.relative in ("shaw", "shaw-keys"):
        keys, values = attention.key_table, attention.value_table
        spec.relative_position_keys = _array(keys)
        spec.relative_position_values = _array(torch.zeros_like(keys) if values is None else values)


def _set(spec: Any, weight: Tensor, bias: Tensor | None = None) -> None:
    spec.weight = _array(weight)
    if bias is not None:
        spec.bias = _array(bias)


def _set_norm(spec: Any, norm: Any) -> None:
    spec.gamma, spec.beta = _array(norm.weight), _array(norm.bias)


def _array(tensor: Tensor) -> Any:
    return tensor.detach().contiguous().numpy()


def scores_of_ctranslate2(
    run: TrainedRun, folder: Path, source: Tensor, target: Tensor
) -> tuple[Tensor, Tensor]:
    """The log-probability of each token of some texts, by the run and by the written model.

    Args:
        run: the run.
        folder: of the written model.
        source: ids, (texts, positions); a language model reads the target alone.
        target: likewise, without start and end.
    """
    import ctranslate2

    vocabulary, model = run.vocabulary, run.model
    names = vocabulary.token_names()

    def texts(ids: Tensor) -> list[list[str]]:
        return [[names[i] for i in row if i != vocabulary.pad] for row in ids.tolist()]

    begun = torch.cat((torch.full((len(target), 1), vocabulary.start), target), 1)
    settings = {"device": "cpu", "compute_type": "float32"}
    with torch.no_grad():
        if run.translates:
            scored = ctranslate2.Translator(str(folder), **settings).score_batch(
                texts(source), texts(target)
            )
            logits = model(source, begun)
        else:
            scored = ctranslate2.Generator(str(folder), **settings).score_batch(texts(begun))
            logits = model(begun)
    columns = target.shape[1]
    ours = logits.log_softmax(-1)[:, :columns].gather(2, target[..., None])[..., 0]
    return ours, torch.tensor([result.log_probs[:columns] for result in scored])
