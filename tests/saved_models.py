"""A tiny model of another library, saved as that library saves it."""

from __future__ import annotations

from pathlib import Path
from typing import Any

import pytest
import torch

#: The tokens of the model that `save_writer` makes, each a word of its own.
LETTERS = "abcdefghij"
_PAIR = {
    "d_model": 8, "encoder_layers": 1, "decoder_layers": 1, "encoder_attention_heads": 2,
    "decoder_attention_heads": 2, "encoder_ffn_dim": 8, "decoder_ffn_dim": 8,
    "max_position_embeddings": 32, "pad_token_id": 0, "bos_token_id": 2, "eos_token_id": 3,
    "decoder_start_token_id": 2,
}  # fmt: skip
#: Small sizes, by how the classes of models are called.
_SIZES: dict[str, dict[str, Any]] = {
    "Bert": {"hidden_size": 8, "num_hidden_layers": 1, "num_attention_heads": 2,
             "intermediate_size": 8},
    "GPT2": {"n_embd": 8, "n_layer": 2, "n_head": 2, "n_positions": 32},
    "Llama": {"hidden_size": 8, "num_hidden_layers": 1, "num_attention_heads": 2,
              "intermediate_size": 8, "num_key_value_heads": 1},
    "Bart": _PAIR, "Marian": _PAIR,
}  # fmt: skip


def small_model(kind: str, folder: Path, **settings: Any) -> Any:
    """A random model of 15 words, saved; settings: of its configuration."""
    model_class = getattr(pytest.importorskip("transformers"), kind)
    sizes = next(sizes for name, sizes in _SIZES.items() if kind.startswith(name))
    torch.manual_seed(2)
    config = model_class.config_class(vocab_size=15, **sizes | settings)
    model = model_class(config).eval()
    model.save_pretrained(folder)
    return model


def save_writer(
    folder: Path, *, width: int, layers: int, heads: int, positions: int, noise: float = 0.0
) -> Path:
    """A random GPT-2 that can write, with a tokenizer of letters.

    noise: the standard deviation of what is added to each of its weights.
    """
    transformers = pytest.importorskip("transformers")
    from tokenizers import Tokenizer, models, pre_tokenizers

    words = {"[UNK]": 0, **{letter: number for number, letter in enumerate(LETTERS, 1)}}
    tokenizer = Tokenizer(models.WordLevel(words, unk_token="[UNK]"))
    tokenizer.pre_tokenizer = pre_tokenizers.Whitespace()
    transformers.PreTrainedTokenizerFast(
        tokenizer_object=tokenizer, unk_token="[UNK]"
    ).save_pretrained(folder)
    torch.manual_seed(5)
    config = transformers.GPT2Config(
        vocab_size=len(words), n_embd=width, n_layer=layers, n_head=heads, n_positions=positions,
        bos_token_id=None, eos_token_id=None,
    )  # fmt: skip
    model = transformers.GPT2LMHeadModel(config)
    if noise:
        with torch.no_grad():
            for parameter in model.parameters():
                parameter.add_(torch.randn_like(parameter) * noise)
    model.save_pretrained(folder)
    return folder
