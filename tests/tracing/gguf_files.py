"""Small GGUF files, written by the package gguf from models of Transformers."""

from __future__ import annotations

from pathlib import Path
from typing import Any

import gguf
import numpy as np
import torch
import transformers
from torch import nn

WORDS = ["<unk>", "<s>", "</s>", *"abcdefghij", "ab"]


def small_llama(**changes: Any) -> nn.Module:
    """Two layers of 4 heads over 2, in which no width is that of another."""
    torch.manual_seed(0)
    config = transformers.LlamaConfig(
        vocab_size=len(WORDS), hidden_size=64, intermediate_size=96, num_hidden_layers=2,
        num_attention_heads=4, num_key_value_heads=2, max_position_embeddings=64,
        rms_norm_eps=1e-5, rope_theta=5_000.0, tie_word_embeddings=False, **changes,
    )  # fmt: skip
    model = transformers.LlamaForCausalLM(config).eval()
    for parameter in model.parameters():
        nn.init.normal_(parameter, std=0.2)
    return model


def interleaved(weight: np.ndarray[Any, Any], heads: int) -> np.ndarray[Any, Any]:
    """Rows of W_Q or W_K as llama.cpp stores them: the halves that rotate together side by side."""
    rows = weight.reshape(heads, 2, -1, weight.shape[-1])
    return rows.swapaxes(1, 2).reshape(weight.shape)


def write_llama(
    path: Path, model: Any, kind: str = "F32", *, rotary: int | None = None, **settings: Any,
) -> Path:  # fmt: skip
    """The model as a file; matrices of a type, the rest in float32.

    rotary: how many numbers of a key are turned by its position; None: all.
    settings: more entries, by their names after "llama.".
    """
    config = model.config
    writer = gguf.GGUFWriter(path, "llama")
    writer.add_name("small")
    writer.add_block_count(config.num_hidden_layers)
    writer.add_context_length(config.max_position_embeddings)
    writer.add_embedding_length(config.hidden_size)
    writer.add_feed_forward_length(config.intermediate_size)
    writer.add_head_count(config.num_attention_heads)
    writer.add_head_count_kv(config.num_key_value_heads)
    writer.add_rope_freq_base(5_000.0)
    writer.add_rope_dimension_count(rotary or config.hidden_size // config.num_attention_heads)
    writer.add_layer_norm_rms_eps(config.rms_norm_eps)
    writer.add_vocab_size(config.vocab_size)
    for name, value in settings.items():
        kinds = {str: writer.add_string, bool: writer.add_bool}
        kinds.get(type(value), writer.add_float32)(f"llama.{name}", value)
    writer.add_tokenizer_model("gpt2")
    writer.add_tokenizer_pre("smollm")
    writer.add_token_list(WORDS)
    writer.add_token_types([2, 3, 3] + [1] * (len(WORDS) - 3))
    writer.add_token_merges(["a b"])
    writer.add_bos_token_id(1)
    writer.add_eos_token_id(2)
    writer.add_unk_token_id(0)
    names = gguf.get_tensor_name_map(gguf.MODEL_ARCH.LLAMA, config.num_hidden_layers)
    for name, tensor in model.state_dict().items():
        stem, _, ending = name.rpartition(".")
        numbers = tensor.float().numpy()
        if stem.endswith("q_proj"):
            numbers = interleaved(numbers, config.num_attention_heads)
        elif stem.endswith("k_proj"):
            numbers = interleaved(numbers, config.num_key_value_heads)
        stored = gguf.GGMLQuantizationType[kind if numbers.ndim == 2 else "F32"]
        data = gguf.quants.quantize(np.ascontiguousarray(numbers), stored)
        writer.add_tensor(f"{names.get_name(stem)}.{ending}", data, raw_dtype=stored)
    writer.write_header_to_file()
    writer.write_kv_data_to_file()
    writer.write_tensors_to_file()
    writer.close()
    return path
