"""Long texts as files of ids: the ids of the whole text, kept, mapped, and never taken on trust."""

from __future__ import annotations

import resource
from collections.abc import Callable
from pathlib import Path

import numpy as np
import pytest
from tests.training.conftest import ConfigMaker, measures_of
from tests.training.test_loop import assert_same, run
from tokenizers import Regex, Tokenizer, decoders, models, normalizers, pre_tokenizers, trainers

from headloom.errors import DataError, InputError
from headloom.formats.files import read_json
from headloom.formats.run import RunFolder
from headloom.training import token_file
from headloom.training.config import RunConfig
from headloom.training.inference import open_run
from headloom.training.text import SPECIALS, Vocabulary
from headloom.training.token_file import TokenFile, parts_of

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


def test_spaces_that_a_tokenizer_takes_off_an_end_are_no_border(
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    """After a word and more spaces than are looked at, nothing else seems to follow."""
    monkeypatch.setattr(token_file, "_PART", 100)
    vocabulary = Vocabulary.of_characters(["ab "])
    vocabulary.tokenizer.normalizer = normalizers.Strip()
    text = ("a" * 150 + " " * 230 + "b a") * 10
    whole = vocabulary.tokenizer.encode(text, add_special_tokens=False).ids
    assert TokenFile.of_text(text, vocabulary).ids.tolist() == whole


def test_lines_without_spaces_are_cut_at_their_ends(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(token_file, "_PART", 1_000)
    text = "日本語の文章には空白がない。\n" * 500
    vocabulary = Vocabulary.of_characters([text])
    sizes = [len(part) for part in parts_of(text, vocabulary)]
    assert sum(sizes) == len(text)
    assert max(sizes[:-1]) < 1_100
    whole = vocabulary.tokenizer.encode(text, add_special_tokens=False).ids
    assert TokenFile.of_text(text, vocabulary).ids.tolist() == whole


def test_a_stretch_without_a_border_is_one_part_and_the_rest_is_cut(
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    monkeypatch.setattr(token_file, "_PART", 1_000)
    vocabulary = Vocabulary.of_pieces(["one two"], 300)
    # A line of a single word would begin a part with a space that is not there.
    text = "one two " * 500 + "one\n" * 1_000 + "one two " * 500
    sizes = [len(part) for part in parts_of(text, vocabulary)]
    assert sum(sizes) == len(text)
    assert [size > 1_100 for size in sizes[:-1]].count(True) == 1
    assert max(sizes) >= 4_000
    whole = vocabulary.tokenizer.encode(text, add_special_tokens=False).ids
    assert TokenFile.of_text(text, vocabulary).ids.tolist() == whole


def test_ids_beyond_the_number_of_tokens_have_room() -> None:
    """Of a tokenizer whose ids have gaps."""
    names = {word: number for number, word in enumerate(SPECIALS)} | {"far": 70_000}
    tokenizer = Tokenizer(models.WordLevel(names, SPECIALS[1]))
    assert TokenFile.of_text("far", Vocabulary(tokenizer)).ids.tolist() == [70_000]


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

    content = bytearray(path.read_bytes())
    for damaged in (content[:-1], bytes([content[0] ^ 1, *content[1:]]), b""):
        path.write_bytes(damaged)
        assert TokenFile.open(path, made.facts) is None
    path.write_bytes(content)
    for wrong in ({"type": "no such"}, {"count": float("inf")}, {"count": -1}, {"digest": 5}):
        assert TokenFile.open(path, {**made.facts, **wrong}) is None
    assert TokenFile.open(path, {"count": 5}) is None
    path.unlink()
    assert TokenFile.open(path, made.facts) is None


def test_an_empty_text_has_no_ids() -> None:
    assert TokenFile.of_text("", Vocabulary.of_characters(["a"])).ids.tolist() == []


def test_a_full_disk_is_one_line(tmp_path: Path) -> None:
    vocabulary = Vocabulary.of_characters(["a"])
    made = TokenFile.of_text("a" * 100_000, vocabulary)
    before = resource.getrlimit(resource.RLIMIT_FSIZE)
    resource.setrlimit(resource.RLIMIT_FSIZE, (1 << 16, before[1]))
    try:
        with pytest.raises(
            DataError, match=r"^cannot write token ids in .*Free some space, or set TMPDIR"
        ):
            TokenFile.of_text("a" * 100_000, vocabulary)
        with pytest.raises(DataError, match=r"tokens\.bin: file too large\. .*free some space"):
            made.keep(tmp_path / "tokens.bin")
    finally:
        resource.setrlimit(resource.RLIMIT_FSIZE, before)
    assert not list(tmp_path.iterdir())


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
    content = folder.tokens.read_bytes()
    folder.tokens.unlink()
    run(config(6), tmp_path / "broken")
    assert_same(tmp_path / "whole", tmp_path / "broken")
    assert folder.tokens.read_bytes() == content


@pytest.mark.parametrize("lost", [False, True])
@pytest.mark.parametrize("place", [10, -10])
def test_a_text_that_has_changed_is_refused(
    place: int, lost: bool, tiny: ConfigMaker, text_file: Path, tmp_path: Path
) -> None:
    """In one letter, also of what is held out; and also where its ids are no longer there."""
    text = tmp_path / "text.txt"
    text.write_text(text_file.read_text())

    def config(steps: int) -> RunConfig:
        task = tiny().task.model_copy(update={"file": str(text)})
        return tiny(max_steps=steps).model_copy(update={"task": task})

    run(config(2), tmp_path / "run")
    letters = list(text_file.read_text())
    letters[place] = "x" if letters[place] != "x" else "y"
    text.write_text("".join(letters))
    if lost:
        (tmp_path / "run" / "tokens.bin").unlink()
    with pytest.raises(InputError, match=r"text\.txt: it has changed since this run began"):
        run(config(4), tmp_path / "run")
    with pytest.raises(InputError, match=r"text\.txt: it has changed since this run began"):
        measures_of(open_run(tmp_path / "run"), "valid")


def test_a_run_without_digests_goes_on_and_has_them_from_then(
    tiny: ConfigMaker, tmp_path: Path
) -> None:
    """As one that an earlier version began."""
    run(tiny(max_steps=2), tmp_path / "run")
    folder = RunFolder.open(tmp_path / "run")
    description = read_json(folder.data)
    folder.data.unlink()
    folder.tokens.unlink()
    run(tiny(max_steps=4), tmp_path / "run")
    assert read_json(folder.data) == description
    assert set(description["tokens"]) == {"text", "held_out", "type", "count", "digest"}


def test_a_description_that_says_nothing_of_the_tokens_is_one_line(
    tiny: ConfigMaker, tmp_path: Path
) -> None:
    run(tiny(max_steps=2), tmp_path / "run")
    RunFolder.open(tmp_path / "run").data.write_text('{"tokens": 5}')
    with pytest.raises(DataError, match=r"data\.json: damaged: .*Put a copy back"):
        run(tiny(max_steps=4), tmp_path / "run")
