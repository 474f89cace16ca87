"""The four families: what their settings are in headloom's words, and where their weights go.

Sources: Devlin et al. 2019 (BERT); Radford et al. 2019 (GPT-2); Touvron et al. 2023 (Llama);
Junczys-Dowmunt et al. 2018 (Marian).
"""

from __future__ import annotations

from pathlib import Path

import torch
from torch import nn

from headloom.errors import InputError
from headloom.mechanism.positions import sinusoidal
from headloom.mechanism.rotary import RotaryScaling
from headloom.models.blocks import DecoderBlock, EncoderBlock
from headloom.models.configuration import Architecture
from headloom.models.huggingface.folder import (
    Settings,
    Tensors,
    copied,
    fill_attention,
    fill_linear,
    fill_norm,
    fill_table,
    read_tensors,
)
from headloom.models.language_model import LanguageModel
from headloom.models.predictor import Predictor
from headloom.models.rotary_settings import read_rotary
from headloom.models.text_encoder import EncoderHead, TextEncoder
from headloom.models.transformer import Transformer

__all__ = ["load_model"]


def load_model(folder: Path, settings: Settings) -> Predictor:
    """The model of a folder, in evaluation mode.

    Raises: InputError: an architecture or a setting that headloom's models do not have. DataError:
        a file is missing or damaged.
    """
    families = {"bert": _bert, "gpt2": _gpt2, "llama": _llama, "marian": _marian}
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


def _heads(settings: Settings, key: str, default: int, width: int) -> int:
    heads = settings.size(key, default)
    if width % heads:
        raise settings.wrong(key, f"a number that divides the width, {width}")
    return heads


def _bert(settings: Settings, tensors: Tensors) -> TextEncoder:
    settings.expect("is_decoder", False)
    settings.expect("add_cross_attention", False)
    settings.expect("position_embedding_type", "absolute")
    width = settings.size("hidden_size", 768)
    architecture = Architecture(
        width=width,
        heads=_heads(settings, "num_attention_heads", 12, width),
        feed_forward=settings.size("intermediate_size", 3072),
        encoder_layers=settings.size("num_hidden_layers", 12),
        positions="learned",
        max_length=settings.size("max_position_embeddings", 512),
        norm="post",
        norm_epsilon=settings.get("layer_norm_eps", 1e-12),
        activation=settings.activation("hidden_act", "gelu"),
        dropout=settings.get("hidden_dropout_prob", 0.1),
        attention_dropout=settings.get("attention_probs_dropout_prob", 0.1),
        scaled_embeddings=False,
        tied=settings.get("tie_word_embeddings", True),
    )
    tokens, classes = tensors.has("cls.predictions.transform.dense.weight"), 0
    head: EncoderHead = "tokens" if tokens else "none"
    if tensors.has("classifier.weight"):
        head, classes = "classes", tensors.sizes("classifier.weight")[0]
    start = "bert." if tensors.has("bert.embeddings.word_embeddings.weight") else ""
    model = TextEncoder(
        settings.size("vocab_size", 30522),
        architecture,
        segments=settings.size("type_vocab_size", 2),
        head=head,
        classes=classes,
        pooler=tensors.has(f"{start}pooler.dense.weight"),
        padding=settings.get("pad_token_id", 0),
    )
    embedding, before = model.embedding, f"{start}embeddings"
    fill_table(tensors, f"{before}.word_embeddings.weight", embedding.tokens)
    fill_table(tensors, f"{before}.position_embeddings.weight", embedding.positions)
    if embedding.segments is not None:
        fill_table(tensors, f"{before}.token_type_embeddings.weight", embedding.segments)
    fill_norm(tensors, f"{before}.LayerNorm", embedding.norm)
    for number, block in enumerate(model.encoder):
        if isinstance(block, EncoderBlock):
            _bert_layer(tensors, f"{start}encoder.layer.{number}", block)
    if model.pooler is not None:
        fill_linear(tensors, f"{start}pooler.dense", model.pooler)
    if head == "classes":
        fill_linear(tensors, "classifier", model.output)
    elif head == "tokens":
        predictions = "cls.predictions"
        fill_linear(tensors, f"{predictions}.transform.dense", model.transform)
        fill_norm(tensors, f"{predictions}.transform.LayerNorm", model.transform_norm)
        # A decoder that is not tied to the embeddings has a bias of its own, if the folder has it.
        bias = f"{predictions}.bias"
        if not architecture.tied:
            sizes = tuple(model.output.weight.shape)
            copied(model.output.weight, tensors.take(f"{predictions}.decoder.weight", sizes))
            if tensors.has(f"{predictions}.decoder.bias"):
                tensors.drop(bias)
                bias = f"{predictions}.decoder.bias"
        copied(model.output.bias, tensors.take(bias, tuple(model.output.bias.shape)))
        tensors.drop(f"{predictions}.decoder")  # the same again
        tensors.drop("cls.seq_relationship")  # of whether two texts follow each other
    return model


def _bert_layer(tensors: Tensors, name: str, block: EncoderBlock) -> None:
    attention = f"{name}.attention"
    own = (f"{attention}.self.{part}" for part in ("query", "key", "value"))
    queries, keys, values = own
    names = queries, keys, values, f"{attention}.output.dense"
    fill_attention(tensors, names, block.self_attention)
    fill_norm(tensors, f"{attention}.output.LayerNorm", block.self_attention_norm)
    fill_linear(tensors, f"{name}.intermediate.dense", block.feed_forward.rise)
    fill_linear(tensors, f"{name}.output.dense", block.feed_forward.fall)
    fill_norm(tensors, f"{name}.output.LayerNorm", block.feed_forward_norm)


def _gpt2(settings: Settings, tensors: Tensors) -> LanguageModel:
    settings.expect("scale_attn_weights", True)
    settings.expect("scale_attn_by_inverse_layer_idx", False)
    settings.expect("add_cross_attention", False)
    width = settings.size("n_embd", 768)
    architecture = Architecture(
        width=width,
        heads=_heads(settings, "n_head", 12, width),
        feed_forward=settings.size("n_inner", 4 * width),
        decoder_layers=settings.size("n_layer", 12),
        positions="learned",
        max_length=settings.size("n_positions", 1024),
        norm_epsilon=settings.get("layer_norm_epsilon", 1e-5),
        activation=settings.activation("activation_function", "gelu_new"),
        dropout=settings.get("resid_pdrop", 0.1),
        attention_dropout=settings.get("attn_pdrop", 0.1),
        scaled_embeddings=False,
        tied=settings.get("tie_word_embeddings", True),
    )
    model = LanguageModel(settings.size("vocab_size", 50257), architecture, padding=NO_PADDING)
    start = "transformer." if tensors.has("transformer.wte.weight") else ""
    fill_table(tensors, f"{start}wte.weight", model.embedding.tokens)
    fill_table(tensors, f"{start}wpe.weight", model.embedding.positions)
    for number, block in enumerate(model.decoder):
        if isinstance(block, DecoderBlock):
            _gpt2_layer(tensors, f"{start}h.{number}", block)
    fill_norm(tensors, f"{start}ln_f", model.decoder_norm)
    _fill_output(tensors, model.output_embedding, tied=architecture.tied)
    return model


def _gpt2_layer(tensors: Tensors, name: str, block: DecoderBlock) -> None:
    layer, width = block.self_attention, block.self_attention.w_q.in_features
    weight = tensors.take(f"{name}.attn.c_attn.weight", (width, 3 * width)).T
    bias = tensors.take(f"{name}.attn.c_attn.bias", (3 * width,))
    maps = (layer.w_q, layer.w_k, layer.w_v)
    for linear, matrix, offset in zip(maps, weight.chunk(3), bias.chunk(3), strict=True):
        copied(linear.weight, matrix)
        copied(linear.bias, offset)
    fill_linear(tensors, f"{name}.attn.c_proj", layer.w_o, transposed=True)
    fill_linear(tensors, f"{name}.mlp.c_fc", block.feed_forward.rise, transposed=True)
    fill_linear(tensors, f"{name}.mlp.c_proj", block.feed_forward.fall, transposed=True)
    fill_norm(tensors, f"{name}.ln_1", block.self_attention_norm)
    fill_norm(tensors, f"{name}.ln_2", block.feed_forward_norm)


def _llama(settings: Settings, tensors: Tensors) -> LanguageModel:
    width = settings.size("hidden_size", 4096)
    heads = settings.size("num_attention_heads", 32)
    inner = settings.size("intermediate_size", 11008)
    shared = settings.size("num_key_value_heads", heads)
    if heads % shared:
        raise settings.wrong("num_key_value_heads", f"a number that divides the heads, {heads}")
    biases = [settings.get(f"{part}_bias", False) for part in ("attention", "mlp")]
    base, scaling = _rotary(settings)
    architecture = Architecture(
        width=width,
        heads=heads,
        kv_heads=shared,
        depth=settings.size("head_dim", width // heads),
        feed_forward=inner,
        decoder_layers=settings.size("num_hidden_layers", 32),
        positions="rotary",
        rotary_base=base,
        rotary_scaling=scaling,
        max_length=settings.size("max_position_embeddings", 2048),
        normalisation="rms",
        norm_epsilon=settings.get("rms_norm_eps", 1e-6),
        feed_forward_kind="gated",
        activation=settings.activation("hidden_act", "silu"),
        biases=any(biases),  # those that only one part has are 0 in the other
        dropout=0.0,
        attention_dropout=settings.get("attention_dropout", 0.0),
        scaled_embeddings=False,
        tied=settings.get("tie_word_embeddings", False),
    )
    model = LanguageModel(settings.size("vocab_size", 32000), architecture, padding=NO_PADDING)
    fill_table(tensors, "model.embed_tokens.weight", model.embedding.tokens)
    for number, block in enumerate(model.decoder):
        if isinstance(block, DecoderBlock):
            _llama_layer(tensors, f"model.layers.{number}", block)
    fill_norm(tensors, "model.norm", model.decoder_norm)
    _fill_output(tensors, model.output_embedding, tied=architecture.tied)
    return model


def _rotary(settings: Settings) -> tuple[float, RotaryScaling | None]:
    """Transformers 5 has both in rope_parameters, earlier ones the base beside rope_scaling."""
    base = settings.get("rope_theta", 10_000.0)
    for key in ("rope_parameters", "rope_scaling"):
        given = settings.raw(key)
        if given is None:
            continue
        if not isinstance(given, dict):
            raise settings.wrong(key, "an object")
        try:
            read = read_rotary(given, base, settings.size("max_position_embeddings", 2048))
        except InputError as error:
            raise settings.wrong(key, f"numbers that go together ({error})") from error
        if read is None:
            raise settings.refused(key)
        return read
    return base, None


def _llama_layer(tensors: Tensors, name: str, block: DecoderBlock) -> None:
    queries, keys, values, output = (f"{name}.self_attn.{part}_proj" for part in "qkvo")
    fill_attention(tensors, (queries, keys, values, output), block.self_attention)
    if block.feed_forward.gate is None:
        raise TypeError("a block of Llama has a gate")
    fill_linear(tensors, f"{name}.mlp.gate_proj", block.feed_forward.gate)
    fill_linear(tensors, f"{name}.mlp.up_proj", block.feed_forward.rise)
    fill_linear(tensors, f"{name}.mlp.down_proj", block.feed_forward.fall)
    fill_norm(tensors, f"{name}.input_layernorm", block.self_attention_norm)
    fill_norm(tensors, f"{name}.post_attention_layernorm", block.feed_forward_norm)


#: No id: language models read texts without padding, and a token that pads in another library may
#: stand in a text.
NO_PADDING = -1


def _fill_output(tensors: Tensors, output: nn.Linear, *, tied: bool) -> None:
    if not tied:
        copied(output.weight, tensors.take("lm_head.weight", tuple(output.weight.shape)))
    tensors.drop("lm_head.")


def _marian(settings: Settings, tensors: Tensors) -> Transformer:
    settings.expect("share_encoder_decoder_embeddings", True)
    settings.expect("tie_word_embeddings", True)
    width = settings.size("d_model", 1024)
    heads = _heads(settings, "encoder_attention_heads", 16, width)
    inner = settings.size("encoder_ffn_dim", 4096)
    for key, same in (("decoder_attention_heads", heads), ("decoder_ffn_dim", inner)):
        if settings.size(key, 16 if "heads" in key else 4096) != same:
            raise InputError(
                f"{settings.path}: {key} is {settings.raw(key)}, the encoder has {same}; "
                "headloom's translators have one for both. Trace the model by headloom.trace."
            )
    vocabulary = settings.size("vocab_size", 58101)
    architecture = Architecture(
        width=width,
        heads=heads,
        feed_forward=inner,
        encoder_layers=settings.size("encoder_layers", 12),
        decoder_layers=settings.size("decoder_layers", 12),
        positions="sinusoidal",
        max_length=settings.size("max_position_embeddings", 1024),
        norm="post",
        activation=settings.activation("activation_function", "gelu"),
        dropout=settings.get("dropout", 0.1),
        attention_dropout=settings.get("attention_dropout", 0.0),
        scaled_embeddings=settings.get("scale_embedding", False),
        output_bias=True,
    )
    model = Transformer(vocabulary, architecture, padding=settings.get("pad_token_id", 58100))
    fill_table(tensors, "model.shared.weight", model.source_embedding.tokens)
    for side, blocks in (("encoder", model.encoder), ("decoder", model.decoder)):
        for number, block in enumerate(blocks):
            if isinstance(block, (EncoderBlock, DecoderBlock)):
                _marian_layer(tensors, f"model.{side}.layers.{number}", block)
        tensors.drop(f"model.{side}.embed_tokens.")
        _check_sines(tensors, f"model.{side}.embed_positions.weight", architecture)
    bias = torch.zeros(1, vocabulary)
    if tensors.has("final_logits_bias"):
        bias = tensors.take("final_logits_bias", (1, vocabulary))
    copied(model.output_embedding.bias, bias[0])
    tensors.drop("lm_head.")
    _sines_in_turn(model)
    return model


def _check_sines(tensors: Tensors, name: str, architecture: Architecture) -> None:
    """Raise an InputError where a folder has other positions than Marian's sines and cosines."""
    if not tensors.has(name):
        return
    given = tensors.take(name, (architecture.max_length, architecture.width))
    computed = sinusoidal(architecture.max_length, architecture.width)
    computed = torch.cat((computed[:, 0::2], computed[:, 1::2]), 1)
    if not torch.allclose(given, computed, atol=1e-2):  # half precision has 3 digits
        raise InputError(
            f"{tensors.folder}: {name} holds no sines and cosines; headloom's translators with a "
            "norm after each layer compute theirs. Trace the model by headloom.trace instead."
        )


def _marian_layer(tensors: Tensors, name: str, block: EncoderBlock | DecoderBlock) -> None:
    attentions = [("self_attn", block.self_attention, block.self_attention_norm)]
    if isinstance(block, DecoderBlock) and block.cross_attention and block.cross_attention_norm:
        attentions.append(("encoder_attn", block.cross_attention, block.cross_attention_norm))
    for part, layer, norm in attentions:
        queries, keys, values = (f"{name}.{part}.{letter}_proj" for letter in "qkv")
        fill_attention(tensors, (queries, keys, values, f"{name}.{part}.out_proj"), layer)
        fill_norm(tensors, f"{name}.{part}_layer_norm", norm)
    fill_linear(tensors, f"{name}.fc1", block.feed_forward.rise)
    fill_linear(tensors, f"{name}.fc2", block.feed_forward.fall)
    fill_norm(tensors, f"{name}.final_layer_norm", block.feed_forward_norm)


def _sines_in_turn(model: Transformer) -> None:
    """Reorder the numbers that flow between layers.

    Marian has all sines of a position, then all cosines; headloom has them in turn. A norm, a sum
    and a matrix product are the same in any order, so weights that read or write these numbers are
    reordered once.
    """
    width = model.architecture.width
    order = torch.arange(width).view(2, width // 2).T.flatten()
    reads = ("w_q", "w_k", "w_v", "rise", "tokens")
    for name, parameter in model.named_parameters():
        module, _, part = name.rpartition(".")
        last = module.rpartition(".")[2]
        if last in reads and part == "weight":
            copied(parameter, parameter.detach()[:, order].clone())
        elif last in ("w_o", "fall") or last.endswith("norm"):
            copied(parameter, parameter.detach()[order].clone())
