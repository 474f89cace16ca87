"""Reading of Transformers' folders as headloom's modules: BERT, GPT-2, Llama and Marian.

The conversion is exact: unsupported settings are refused by name.
"""

from __future__ import annotations

from collections.abc import Callable
from pathlib import Path
from typing import TypeVar

import torch
from torch import Tensor, nn

from headloom.errors import InputError
from headloom.mechanism.positions import sinusoidal
from headloom.models.huggingface.families import BERT, GPT2, LLAMA, MARIAN, read_rotary
from headloom.models.huggingface.folder import Settings, Tensors, read_tensors
from headloom.models.huggingface.layouts import Layout, copied

_Module = TypeVar("_Module", bound=nn.Module)


def class_of(folder: Path, settings: Settings) -> str:
    """Return the name of headloom's class equivalent to the model of a folder."""
    kind = settings.get("model_type", "")
    if kind not in _READERS:
        raise InputError(
            f"{folder}: model_type {kind!r}; headloom's own modules are {', '.join(_READERS)}. "
            "Trace others by headloom.trace, which needs no copy of them."
        )
    return _READERS[kind][0]


def read_transformers(make: type[_Module], folder: Path, settings: Settings) -> _Module:
    """Build a module of this class with the weights of a folder, in evaluation mode."""
    name, kind = class_of(folder, settings), settings.get("model_type", "")
    if name not in [base.__name__ for base in make.__mro__]:
        raise InputError(
            f"{folder} holds a {kind}, no {make.__name__}. Use headloom.{name}.from_pretrained."
        )
    tensors = read_tensors(folder)
    model = _READERS[kind][1](make, settings, tensors)
    tensors.check_used()
    assert isinstance(model, make)
    return model.train(False)


def _read_bert(make: type[_Module], settings: Settings, tensors: Tensors) -> _Module:
    settings.expect("is_decoder", False)
    settings.expect("add_cross_attention", False)
    settings.expect("position_embedding_type", "absolute")
    architecture = BERT.read(settings)
    head, classes, start, names = "none", 0, "", dict(BERT.layout.names)
    if tensors.has("bert.embeddings.word_embeddings.weight"):
        start = "bert."
    pooler = tensors.has(f"{start}pooler.dense.weight")
    if tensors.has("cls.predictions.transform.dense.weight"):
        head = "tokens"
    if tensors.has("classifier.weight"):
        head, classes = "classes", tensors.sizes("classifier.weight")[0]
    pooler = pooler or head == "classes"
    model = make(
        vocabulary=settings.size("vocab_size", 30522),
        segments=settings.size("type_vocab_size", 2), head=head, classes=classes, pooler=pooler,
        padding=settings.get("pad_token_id", 0), **architecture.arguments("encoder"),
    )  # fmt: skip
    if pooler:
        names["pooler.dense"] = "pooler"
    Layout(names).fill(model, tensors, start)
    if head == "classes":
        Layout({"classifier": "output"}).fill(model, tensors)
    elif head == "tokens":
        dense = {"transform.dense": "transform", "transform.LayerNorm": "transform_norm"}
        Layout(dense).fill(model, tensors, "cls.predictions.")
        # A decoder that is not tied to the embeddings has a separate bias, if the folder has it.
        bias = "cls.predictions.bias"
        weight, bias_parameter = (
            model.get_parameter(f"output.{part}") for part in ("weight", "bias")
        )
        if not architecture.tied:
            sizes = tuple(weight.shape)
            copied(weight, tensors.take("cls.predictions.decoder.weight", sizes))
            if tensors.has("cls.predictions.decoder.bias"):
                tensors.drop(bias)
                bias = "cls.predictions.decoder.bias"
        copied(bias_parameter, tensors.take(bias, tuple(bias_parameter.shape)))
        tensors.drop("cls.predictions.decoder")  # a duplicate
        tensors.drop("cls.seq_relationship")  # of the next-sentence prediction
    return model


def _read_gpt2(make: type[_Module], settings: Settings, tensors: Tensors) -> _Module:
    settings.expect("scale_attn_weights", True)
    settings.expect("scale_attn_by_inverse_layer_idx", False)
    settings.expect("add_cross_attention", False)
    architecture = GPT2.read(settings)
    vocabulary = settings.size("vocab_size", 50257)
    model = make(vocabulary=vocabulary, **architecture.arguments("decoder"))
    start = "transformer." if tensors.has("transformer.wte.weight") else ""
    Layout({"wpe": "embedding.positions"}).fill(model, tensors, start)
    GPT2.layout.fill(model, tensors, start)
    _read_output(model, tensors, tied=architecture.tied)
    return model


def _read_llama(make: type[_Module], settings: Settings, tensors: Tensors) -> _Module:
    biases = [settings.get(f"{part}_bias", False) for part in ("attention", "mlp")]
    base, scaling = read_rotary(settings)
    architecture = LLAMA.read(
        settings,
        biases=any(biases),  # those that only one part has are 0 in the other
        rotary_base=base,
        rotary_scaling=scaling,
    )
    vocabulary = settings.size("vocab_size", 32000)
    model = make(vocabulary=vocabulary, **architecture.arguments("decoder"))
    LLAMA.layout.fill(model, tensors)
    _read_output(model, tensors, tied=architecture.tied)
    return model


def _read_output(model: nn.Module, tensors: Tensors, *, tied: bool) -> None:
    if not tied:
        weight = model.get_parameter("output_embedding.weight")
        copied(weight, tensors.take("lm_head.weight", tuple(weight.shape)))
    tensors.drop("lm_head.")


def _read_marian(make: type[_Module], settings: Settings, tensors: Tensors) -> _Module:
    settings.expect("share_encoder_decoder_embeddings", True)
    settings.expect("tie_word_embeddings", True)
    architecture = MARIAN.read(settings, output_bias=True)
    for part, same in (("attention_heads", architecture.heads),
                       ("ffn_dim", architecture.feed_forward)):  # fmt: skip
        settings.expect(f"decoder_{part}", same)
    vocabulary = settings.size("vocab_size", 58101)
    padding = settings.get("pad_token_id", 58100)
    model = make(vocabulary=vocabulary, padding=padding, **architecture.arguments())
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
    copied(model.get_parameter("output_embedding.bias"), bias[0])
    tensors.drop("lm_head.")
    reorder(model, halves.argsort())
    return model


def reorder(model: nn.Module, order: Tensor) -> None:
    """Reorder the coordinates of the vectors between layers.

    Marian has all sines of a position, then all cosines; headloom alternates them. Norms, sums and
    matrix products do not depend on the order, so only the weights that read or write these
    coordinates are reordered.
    """
    reads = ("w_q", "w_k", "w_v", "rise", "tokens")
    for name, parameter in model.named_parameters():
        module, _, part = name.rpartition(".")
        last = module.rpartition(".")[2]
        if last in reads and part == "weight":
            copied(parameter, parameter.detach()[:, order].clone())
        elif last in ("w_o", "fall") or last.endswith("norm"):
            copied(parameter, parameter.detach()[order].clone())


_READERS: dict[str, tuple[str, Callable[..., nn.Module]]] = {
    "bert": ("Encoder", _read_bert),
    "gpt2": ("LanguageModel", _read_gpt2),
    "llama": ("LanguageModel", _read_llama),
    "marian": ("Transformer", _read_marian),
}
