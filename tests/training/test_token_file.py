"""Long texts as files of ids: the ids of the whole text, kept, mapped, and never taken on trust."""

from __future__ import annotations

import resource
from collections.abc import Callable
from pathlib import Path

import numpy as np
import pytest
from tests.training.conftest import ConfigMaker
from tests.training.test_loop import assert_same, run
from tokenizers import Regex, Tokenizer, decoders, models, pre_tokenizers, trainers

from weft.errors import DataError, InputError
from weft.formats.files import read_json
from weft.formats.run import RunFolder
from weft.training import token_file
from weft.training.config import RunConfig
from weft.training.text import SPECIALS, Vocabulary
from weft.training.token_file import TokenFile, parts_of

#: Signs before line ends, runs of spaces, letters of several bytes, marks that join the letter
#: before them, and a stretch without a space.
TEXT = (
    "It ran,\nthen stopped.\n\n  Twice!!\r\nÉté, e\u0301te\u0301 ; 12 345 \t67\n"
    "日本語の文章には空白がない。\n\u0301x Don't\n"
) * 400 + "unbroken" * 700


def split_as_llama(vocabulary_size: int = 400) -> Vocabulary:
    """Byte pairs whose splitter joins a sign to the line end after it, as Llama 3's does."""
    pattern = r"\p{L}+|\p{N}{1,3}| ?[^\s\p{L}\p{N}]+[\r\n]*|\s*[\r\n]+|\s+(?!\S)|\s+"
    tokenizer = Tokenizer(models.BPE())
    tokenizer.pre_tokenizer = pre_tokenizers.Sequence(
        [
            pre_tokenizers.Split(Regex(pattern), "isolated"),
            pre_tokenizers.ByteLevel(add_prefix_space=False, use_regex=False),
        ]
    )
    tokenizer.decoder = decoders.ByteLevel()
    tokenizer.train_from_iterator(
        [TEXT], trainers.BpeTrainer(vocab_size=vocabulary_size, special_tokens=list(SPECIALS))
    )
    return Vocabulary(tokenizer)


def as_sentence_piece() -> Vocabulary:
    """Unigrams that write a space before the first word, and know no line ends."""
    tokenizer = Tokenizer(models.Unigram())
    tokenizer.pre_tokenizer = pre_tokenizers.Metaspace()
    trainer = trainers.UnigramTrainer(
        vocab_size=200, special_tokens=list(SPECIALS), unk_token=SPECIALS[1], show_progress=False
    )
    tokenizer.train_from_iterator([TEXT[:4000]], trainer)
    return Vocabulary(tokenizer)


VOCABULARIES: dict[str, Callable[[], Vocabulary]] = {
    "characters": lambda: Vocabulary.of_characters([TEXT]),
    "pieces": lambda: Vocabulary.of_pieces(TEXT.splitlines(), 400),
    "words": lambda: Vocabulary.of_words([TEXT], 12),
    "as Llama 3": split_as_llama,
    "as SentencePiece": as_sentence_piece,
}


@pytest.mark.parametrize("name", VOCABULARIES)
def test_ids_are_those_of_the_whole_text(name: str, monkeypatch: pytest.MonkeyPatch) -> None:
    """Cut into parts of 1,000 characters, and tokenised at once by the tokenizer itself."""
    monkeypatch.setattr(token_file, "_PART", 1_000)
    vocabulary = VOCABULARIES[name]()
    whole = vocabulary.tokenizer.encode(TEXT, add_special_tokens=False).ids
    assert TokenFile.of_text(TEXT, vocabulary).ids.tolist() == whole
    parts = list(parts_of(TEXT, vocabulary))
    assert "".join(parts) == TEXT
    assert len(parts) > 20
    assert len(parts[-1]) >= 5_600  # the stretch without a space


def test_a_border_that_changes_tokens_is_not_taken(monkeypatch: pytest.MonkeyPatch) -> None:
    """A vocabulary with tokens of two words: cutting between them would give others."""
    monkeypatch.setattr(token_file, "_PART", 100)
    words = {word: number for number, word in enumerate((*SPECIALS, "a b"))}
    tokenizer = Tokenizer(models.WordLevel(words, SPECIALS[1]))
    tokenizer.pre_tokenizer = pre_tokenizers.Split(Regex("a b"), "isolated")
    parts = list(parts_of("a b" * 400, Vocabulary(tokenizer)))
    assert parts == ["a b" * 400]


@pytest.mark.parametrize(("size", "width"), [(1 << 16, 2), ((1 << 16) + 1, 4)])
def test_an_id_takes_two_bytes_or_four(size: int, width: int, tmp_path: Path) -> None:
    words = [f"w{number}" for number in range(size - len(SPECIALS))]
    vocabulary = Vocabulary.of_list(words)
    assert len(vocabulary) == size
    tokens = TokenFile.of_text(f"w0 {words[-1]}", vocabulary)
    tokens.keep(tmp_path / "tokens.bin")
    assert tokens.ids.tolist() == [len(SPECIALS), size - 1]
    assert (tmp_path / "tokens.bin").stat().st_size == 2 * width


def test_what_is_kept_is_read_again(tmp_path: Path) -> None:
    vocabulary = Vocabulary.of_characters(["abc"])
    made = TokenFile.of_text("abcab", vocabulary)
    path = tmp_path / "tokens.bin"
    made.keep(path)
    found = TokenFile.open(path, made.facts)
    assert found is not None
    assert isinstance(found.ids, np.memmap)
    assert found.ids.tolist() == vocabulary.encode("abcab")
    assert found.is_of("abcab")
    assert not found.is_of("abcaB")

    content = bytearray(path.read_bytes())
    for damaged in (content[:-1], bytes([content[0] ^ 1, *content[1:]]), b""):
        path.write_bytes(damaged)
        assert TokenFile.open(path, made.facts) is None
    path.write_bytes(content)
    assert TokenFile.open(path, {**made.facts, "type": "no such"}) is None
    assert TokenFile.open(path, {"count": 5}) is None
    path.unlink()
    assert TokenFile.open(path, made.facts) is None


def test_an_empty_text_has_no_ids() -> None:
    assert TokenFile.of_text("", Vocabulary.of_characters(["a"])).ids.tolist() == []


def test_a_full_disk_is_one_line(tmp_path: Path) -> None:
    vocabulary = Vocabulary.of_characters(["a"])
    before = resource.getrlimit(resource.RLIMIT_FSIZE)
    resource.setrlimit(resource.RLIMIT_FSIZE, (1 << 16, before[1]))
    try:
        with pytest.raises(DataError, match=r"^cannot write token ids in .*free some space"):
            TokenFile.of_text("a" * 100_000, vocabulary)
    finally:
        resource.setrlimit(resource.RLIMIT_FSIZE, before)


def test_a_run_that_goes_on_tokenises_nothing(
    tiny: ConfigMaker, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    """And learns the same as without a break; where the file is gone, it is made anew."""

    def config(steps: int) -> RunConfig:
        return tiny(max_steps=steps, checkpoint_every=2, validate_every=2)

    run(config(6), tmp_path / "whole")
    run(config(2), tmp_path / "broken")
    folder = RunFolder.open(tmp_path / "broken")
    known = read_json(folder.data)["tokens"]
    assert folder.tokens.stat().st_size == known["count"] * 2
    with monkeypatch.context() as patched:
        patched.setattr(TokenFile, "of_text", None)
        run(config(4), tmp_path / "broken")
    folder.tokens.unlink()
    run(config(6), tmp_path / "broken")
    assert_same(tmp_path / "whole", tmp_path / "broken")


def test_a_text_that_has_changed_is_refused(
    tiny: ConfigMaker, text_file: Path, tmp_path: Path
) -> None:
    """What is held out would have been learned from, or the other way round."""
    text = tmp_path / "text.txt"
    text.write_text(text_file.read_text())

    def config(steps: int) -> RunConfig:
        task = tiny().task.model_copy(update={"file": str(text)})
        return tiny(max_steps=steps).model_copy(update={"task": task})

    run(config(2), tmp_path / "run")
    text.write_text("New first line.\n" + text_file.read_text())
    with pytest.raises(InputError, match=r"text\.txt: it has changed since this run began"):
        run(config(4), tmp_path / "run")
