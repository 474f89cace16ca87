"""What tokens say, as the decoder of their vocabulary knows it: real vocabularies, made here."""

from __future__ import annotations

from pathlib import Path
from typing import ClassVar

import pytest
import torch
from tokenizers import Tokenizer, decoders, models, normalizers, pre_tokenizers, trainers

import headloom
from headloom.api.trace import Trace
from headloom.formats.tokens import Tokens, each_once, shown, texts_of
from headloom.tracing.names import special_known, token_names
from headloom.training.text import Vocabulary

ENGLISH = "the price of the dog is of the cat, and the naïve café of the town\n" * 20
TEXT = "the price of 東京 naïve café 👩‍🚀!\n    東"


def byte_level() -> Tokenizer:
    """As GPT-2's, Llama 3's and Qwen's."""
    tokenizer = Tokenizer(models.BPE())
    tokenizer.pre_tokenizer = pre_tokenizers.ByteLevel(add_prefix_space=False)
    tokenizer.decoder = decoders.ByteLevel()
    tokenizer.train_from_iterator(
        # Frequent, so that a space and the first byte of a character become one piece.
        [ENGLISH, " 東 東 東 東 東 方 京" * 20],
        trainers.BpeTrainer(
            vocab_size=330, initial_alphabet=pre_tokenizers.ByteLevel.alphabet(),
            special_tokens=["<|endoftext|>", "<｜é▁Ġ｜>"], show_progress=False,
        ),
    )  # fmt: skip
    return tokenizer


def metaspace() -> Tokenizer:
    """As Llama 2's and Gemma's: what the vocabulary lacks is written in bytes."""
    characters = sorted({*ENGLISH.replace(" ", "▁")})
    pieces = [*(f"<0x{byte:02X}>" for byte in range(256)), *characters, "▁t", "▁th", "▁the"]
    merges = [("▁", "t"), ("▁t", "h"), ("▁th", "e")]
    vocabulary = {piece: number for number, piece in enumerate(["<unk>", *pieces])}
    tokenizer = Tokenizer(models.BPE(vocabulary, merges, byte_fallback=True, unk_token="<unk>"))
    tokenizer.normalizer = normalizers.Replace(" ", "▁")
    tokenizer.decoder = decoders.Sequence(
        [decoders.Replace("▁", " "), decoders.ByteFallback(), decoders.Fuse()]
    )
    return tokenizer


def test_which_tokens_are_special_where_somebody_knows() -> None:
    class Transformers:
        all_special_ids: ClassVar[list[int]] = [2, 5]

    assert special_known([5, 17, 2], Transformers()) == {"special": [True, False, True]}
    words = Vocabulary.of_characters(["abc"])
    ids = [words.start, *words.encode("ab?"), words.end, words.pad]
    assert special_known(ids, words) == {"special": [True, False, False, True, True, True]}
    assert special_known([1], byte_level()) == special_known([1], None) == {}


def test_byte_level_pieces_are_read() -> None:
    tokenizer = byte_level()
    ids = tokenizer.encode(TEXT + "<|endoftext|>").ids
    names = token_names(ids, tokenizer)
    # What is kept is the vocabulary's own spelling.
    assert names == tokenizer.encode(TEXT + "<|endoftext|>").tokens
    assert isinstance(names, Tokens)
    texts = shown(names)
    assert any(name.startswith("Ġ") for name in names)
    assert not any("Ġ" in text or "Ċ" in text for text in texts)
    assert "".join(each_once(texts)) == TEXT + "<|endoftext|>"
    # 👩 is four bytes, which the vocabulary has not joined.
    parts = [text for text in texts if "👩" in text]
    assert [text[-3:] for text in parts] == ["¹⁄₄", "²⁄₄", "³⁄₄", "⁴⁄₄"]


def test_byte_fallback_and_spaces_of_sentencepiece() -> None:
    tokenizer = metaspace()
    encoded = tokenizer.encode("the the 東!é")
    names = token_names(encoded.ids, tokenizer)
    assert names[-5:-1] == ["<0xE6>", "<0x9D>", "<0xB1>", "<0x21>"]
    assert shown(names)[-5:] == ["東¹⁄₃", "東²⁄₃", "東³⁄₃", "!", "é"]
    assert "▁the" in names
    assert " the" in shown(names)
    assert "".join(each_once(shown(names))) == "the the 東!é"


def test_the_end_of_a_word() -> None:
    """As CLIP's, whose pieces are bytes and end with </w> where a space follows."""
    tokenizer = Tokenizer(models.BPE({"d": 0, "Ã": 1, "©</w>": 2}, [], end_of_word_suffix="</w>"))
    tokenizer.decoder = decoders.ByteLevel()
    assert shown(token_names([0, 1, 2], tokenizer)) == ["d", "é¹⁄₂", "é²⁄₂ "]


@pytest.mark.parametrize("seed", range(20))
def test_any_cut_of_a_text_is_read_alike(seed: int) -> None:
    generator = torch.Generator().manual_seed(seed)
    content = TEXT.encode()
    cuts = sorted(torch.randperm(len(content) - 1, generator=generator)[:25].add(1).tolist())
    pieces = [content[a:b] for a, b in zip([0, *cuts], [*cuts, len(content)], strict=True)]
    texts = texts_of(pieces)
    assert len(texts) == len(pieces)
    assert "".join(each_once(texts)) == TEXT


def test_a_vocabulary_of_headloom() -> None:
    vocabulary = Vocabulary.of_pieces([ENGLISH], 320)
    names = token_names(vocabulary.encode("the 東"), vocabulary)
    assert list(shown(names))[-3:] == ["東¹⁄₃", "東²⁄₃", "東³⁄₃"]
    characters = Vocabulary.of_characters(["Ġof ▁"])
    assert token_names(characters.encode("Ġ▁"), characters) == ["Ġ", "▁"]


def test_of_a_trace_of_a_model_of_transformers(tmp_path: Path) -> None:
    """Kept beside the tokens, and there again when the trace is opened."""
    transformers = pytest.importorskip("transformers")
    tokenizer = transformers.PreTrainedTokenizerFast(
        tokenizer_object=byte_level(), eos_token="<|endoftext|>"
    )
    config = transformers.GPT2Config(
        vocab_size=len(tokenizer), n_embd=16, n_layer=1, n_head=2, n_positions=128
    )
    model = transformers.GPT2Model(config).eval()
    trace = headloom.trace(model, TEXT, tokenizer=tokenizer)
    assert isinstance(trace, Trace)
    trace.save(tmp_path / "t.loom")
    opened = headloom.open(tmp_path / "t.loom")
    for found in (trace, opened):
        tokens = found.tokens
        assert list(tokens) == tokenizer.convert_ids_to_tokens(tokenizer(TEXT)["input_ids"])
        assert "".join(each_once(shown(tokens))) == TEXT
        assert shown(found.layers[0].key_tokens) == shown(tokens)
    answer = opened.query("select token, text from tokens order by position")
    assert list(answer["text"]) == list(shown(opened.tokens))
    assert list(answer["token"]) == list(opened.tokens)
