"""Text to tokens and back."""

from __future__ import annotations

import unicodedata
from pathlib import Path

import pytest
from hypothesis import assume, given, settings
from hypothesis import strategies as st

from headloom.errors import DataError, InputError
from headloom.training.text import SPECIALS, Vocabulary

LINES = ["the cat sat on the mat", "the dog sat by the log", "ein Mädchen, drei Köche"] * 5
PIECES = Vocabulary.of_pieces(LINES, 320)

any_text = st.text(st.characters(exclude_categories=["Cs"]), max_size=40)


@settings(deadline=None)
@given(any_text)
def test_pieces_reach_every_text(text: str) -> None:
    # The space that byte-pair encoding writes before the first word takes the place of one.
    assume(not text.startswith(" "))
    ids = PIECES.encode(text)
    assert PIECES.decode(ids) == unicodedata.normalize("NFC", text)
    assert all(len(SPECIALS) <= index < len(PIECES) for index in ids)


@settings(deadline=None)
@given(st.text("abcdé <>/pnud\n\t月", max_size=40))
def test_characters_come_back(text: str) -> None:
    vocabulary = Vocabulary.of_characters(["abcdé <>/pnud\n\t月"])
    assert vocabulary.decode(vocabulary.encode(text)) == text
    assert len(vocabulary.encode(text)) == len(text)


def test_unknown_parts() -> None:
    vocabulary = Vocabulary.of_characters(["abc"])
    ids = vocabulary.encode("aXc")
    assert ids[1] == vocabulary.unknown
    assert vocabulary.decode(ids) == "ac"


def test_characters_are_normalised() -> None:
    vocabulary = Vocabulary.of_characters(["é"])
    assert vocabulary.encode("e\u0301") == vocabulary.encode("\u00e9") == [4]


def test_specials_are_where_the_models_expect_them() -> None:
    for vocabulary in (PIECES, Vocabulary.of_characters(["a"])):
        places = (vocabulary.pad, vocabulary.unknown, vocabulary.start, vocabulary.end)
        assert places == (0, 1, 2, 3)
        assert vocabulary.token_strings([0, 1, 2, 3]) == list(SPECIALS)
        assert vocabulary.decode([2, 0, 3]) == ""


def test_token_strings_are_what_a_person_reads() -> None:
    assert "".join(PIECES.token_strings(PIECES.encode("the mat"))) == " the mat"
    assert PIECES.token_strings(PIECES.encode("月"))[-3:] == ["<0xE6>", "<0x9C>", "<0x88>"]
    assert Vocabulary.of_characters(["月\n"]).token_strings([5, 4]) in (["\n", "月"], ["月", "\n"])
    with pytest.raises(InputError, match=r"token id 999: the vocabulary has 0 to "):
        PIECES.token_strings([999])


def test_a_continuation_keeps_its_space() -> None:
    ids = PIECES.encode("the mat")
    assert PIECES.decode_continuation(ids) == " the mat"
    assert PIECES.decode(ids) == "the mat"


def test_saved_and_loaded(tmp_path: Path) -> None:
    for vocabulary in (PIECES, Vocabulary.of_characters(LINES)):
        vocabulary.save(tmp_path / "v.json")
        loaded = Vocabulary.load(tmp_path / "v.json")
        assert loaded.encode("the <end> Mädchen") == vocabulary.encode("the <end> Mädchen")
        assert loaded.has_pieces == vocabulary.has_pieces
        assert len(loaded) == len(vocabulary)


@pytest.mark.parametrize(
    "content",
    ["", "{", "[]", '{"model": {}}', '{"model": {"type": "BPE", "vocab": {}, "merges": []}}'],
)
def test_damaged(tmp_path: Path, content: str) -> None:
    (tmp_path / "v.json").write_text(content)
    with pytest.raises(DataError) as caught:
        Vocabulary.load(tmp_path / "v.json")
    assert str(caught.value).startswith(f"{tmp_path / 'v.json'}: this vocabulary is damaged")
    assert "\n" not in str(caught.value)


def test_the_most_frequent_words_are_kept_and_survive_a_file(tmp_path: Path) -> None:
    vocabulary = Vocabulary.of_words(["a a a b b c"], 6)
    assert vocabulary.token_strings([4, 5]) == ["a", "b"]
    assert len(vocabulary) == 6
    vocabulary.save(tmp_path / "v.json")
    assert Vocabulary.load(tmp_path / "v.json").encode("b A c") == [5, 4, vocabulary.unknown]


def test_what_cannot_be_a_vocabulary() -> None:
    with pytest.raises(InputError, match="the texts are empty"):
        Vocabulary.of_characters(["", ""])
    with pytest.raises(InputError, match="needs at least one word"):
        Vocabulary.of_words(["", " "], 300)


def test_half_a_surrogate_pair_is_refused_in_one_line() -> None:
    """As from a command's argument whose bytes were not UTF-8."""
    for vocabulary in (PIECES, Vocabulary.of_characters(["a"])):
        with pytest.raises(InputError, match=r"'a\\udcff' is not UTF-8 text"):
            vocabulary.encode("a\udcff")
