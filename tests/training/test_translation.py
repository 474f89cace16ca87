"""Lines without end are translated in windows: their order, how far they are read, bad ones."""

from __future__ import annotations

from collections.abc import Iterator

import pytest
import torch
from tests.slow import slow

from headloom.errors import InputError
from headloom.models.decoding import beam_hypotheses
from headloom.models.transformer import Transformer
from headloom.training.text import Vocabulary
from headloom.training.translation import Search, translate, translated_windows

WORDS = Vocabulary.of_characters(["abcdefgh "])
SIZES = {"width": 16, "heads": 2, "feed_forward": 16, "tied": False, "padding": 0}
SEARCH = Search(beam=3)


@pytest.fixture(scope="module")
def model() -> Transformer:
    torch.manual_seed(3)
    return Transformer(len(WORDS), **SIZES).eval()


def lines(count: int) -> Iterator[str]:
    """Texts of 0 to 6 letters, in no order of length."""
    for number in range(count):
        yield "abcdefgh"[: number * 5 % 7]


@pytest.mark.parametrize(
    "window",
    [10, *slow(1, 4, 99)],
)
def test_windows_change_nothing(model: Transformer, window: int) -> None:
    windows = list(translated_windows(model, WORDS, lines(10), SEARCH, window))
    assert [len(part) for part in windows[:-1]] == [window] * (len(windows) - 1)
    found = [line for part in windows for line in part]
    assert [line.number for line in found] == list(range(1, 11))
    assert [line.source for line in found] == list(lines(10))
    alone = [translate(model, WORDS, [text], SEARCH)[0] for text in lines(10)]
    written = [WORDS.decode(line.hypotheses[0].tokens) if line.hypotheses else "" for line in found]
    assert written == alone
    assert [line.number for line in found if not line.hypotheses] == [1, 8]


def test_hypotheses_are_those_of_the_search_in_order(model: Transformer) -> None:
    ((line,),) = translated_windows(model, WORDS, ["bad cab"], SEARCH, 9)
    ids = WORDS.encode("bad cab")
    ((best, *_),) = beam_hypotheses(
        model, model.start(torch.tensor([[*ids, WORDS.end]])), 1, start=WORDS.start, end=WORDS.end,
        max_length=2 * (len(ids) + 1) + 32, beam=3,
    )  # fmt: skip
    assert (line.ids, line.hypotheses[0]) == (ids, best)
    scores = [hypothesis.score(1.0) for hypothesis in line.hypotheses]
    assert len(scores) == 3
    assert scores == sorted(scores, reverse=True)
    assert len({tuple(hypothesis.tokens) for hypothesis in line.hypotheses}) == 3


def test_a_line_that_is_too_long_is_named() -> None:
    model = Transformer(len(WORDS), **SIZES, positions="learned", max_length=6).eval()
    texts = ["ab", "abcde", "", "abcdef", "a"]
    for window in (1, 2, 3, 4, 9):
        windows = translated_windows(model, WORDS, texts, SEARCH, window)
        found = []
        with pytest.raises(InputError, match=r"line 4 has 7 tokens .* end at 6\. Split it"):
            for part in windows:
                found += part
        assert [line.source for line in found] == texts[:3]
