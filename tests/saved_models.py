"""A tiny model of another library, saved as that library saves it."""

from __future__ import annotations

from pathlib import Path

import pytest
import torch

#: The tokens of the model that `save_writer` makes, each a word of its own.
LETTERS = "abcdefghij"


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
