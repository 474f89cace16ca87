"""Decoding against answers that can be enumerated, and on models that are small but real."""

from __future__ import annotations

import itertools
import math
from collections.abc import Iterator
from typing import Any

import pytest
import torch
from hypothesis import given, settings
from hypothesis import strategies as st
from torch import Tensor

from headloom.errors import InputError
from headloom.models.blocks import BlockCache
from headloom.models.decoding import (
    DecodingState,
    Hypothesis,
    WithoutTokens,
    beam_hypotheses,
    sample,
)
from headloom.models.language_model import LanguageModel
from headloom.models.transformer import Transformer

START, END = 2, 3


def beam_search(*arguments: Any, **options: Any) -> list[Hypothesis]:
    """The best of each source."""
    return [ranked[0] for ranked in beam_hypotheses(*arguments, **options)]


class Written(BlockCache):
    """Remembers each sequence's tokens: a cache whose reordering shows."""

    def __init__(self, batch: int) -> None:
        super().__init__()
        self.tokens = torch.zeros(batch, 0, dtype=torch.long)

    def reorder(self, order: Tensor, sources: Tensor | None) -> None:
        self.tokens = self.tokens[order]


class Tabulated:
    """A stepper made by hand: the logits after a prefix are looked up.

    Every sequence of the batch has a table of its own, chosen by the source.
    """

    def __init__(self, tables: list[dict[tuple[int, ...], Tensor]]) -> None:
        self.tables = tables
        self.sizes: list[int] = []

    def start(self) -> DecodingState:
        """The state: which table, and what was written."""
        batch = len(self.tables)
        return DecodingState([Written(batch)], source=torch.arange(batch))

    def step(self, tokens: Tensor, state: DecodingState) -> Tensor:
        """Logits of each prefix, without the start token."""
        cache = state.caches[0]
        assert isinstance(cache, Written)
        assert state.source is not None
        self.sizes.append(len(tokens))
        cache.tokens = torch.cat((cache.tokens, tokens), 1)
        tables = state.source.repeat_interleave(len(tokens) // len(state.source))
        rows = [
            self.tables[table][tuple(written[1:])]
            for table, written in zip(tables.tolist(), cache.tokens.tolist(), strict=True)
        ]
        return torch.stack(rows)[:, None]


def random_tables(
    batch: int, vocabulary: int, length: int, seed: int
) -> list[dict[tuple[int, ...], Tensor]]:
    generator = torch.Generator().manual_seed(seed)
    return [
        {
            prefix: torch.randn(vocabulary, generator=generator, dtype=torch.float64) * 2
            for size in range(length)
            for prefix in itertools.product(range(vocabulary), repeat=size)
        }
        for _ in range(batch)
    ]


def every_ending(
    table: dict[tuple[int, ...], Tensor], vocabulary: int, length: int
) -> Iterator[tuple[list[int], float]]:
    """Every sequence that ends within so many tokens, with its log-probability."""
    others = [token for token in range(vocabulary) if token != END]
    for size in range(length):
        for words in itertools.product(others, repeat=size):
            total = 0.0
            for place, token in enumerate((*words, END)):
                total += float(table[words[:place]].log_softmax(-1)[token])
            yield list(words), total


@settings(max_examples=15, deadline=None)
@given(
    batch=st.integers(1, 3),
    length=st.integers(1, 4),
    penalty=st.sampled_from((0.0, 1.0, 2.0)),
    seed=st.integers(0, 2**20),
)
def test_a_beam_that_holds_everything_ranks_everything(
    batch: int, length: int, penalty: float, seed: int
) -> None:
    tables = random_tables(batch, 4, length, seed)
    model = Tabulated(tables)
    found = beam_hypotheses(
        model, model.start(), batch, start=START, end=END, max_length=length, beam=4**length,
        length_penalty=penalty,
    )  # fmt: skip
    for table, hypotheses in zip(tables, found, strict=True):
        expected = sorted(
            ((total / (len(words) + 1) ** penalty, words)
             for words, total in every_ending(table, 4, length)),
            reverse=True,
        )  # fmt: skip
        assert [hypothesis.tokens for hypothesis in hypotheses] == [words for _, words in expected]
        assert all(hypothesis.ended for hypothesis in hypotheses)
        scores = [hypothesis.score(penalty) for hypothesis in hypotheses]
        assert scores == pytest.approx([score for score, _ in expected], abs=1e-5)


def log(*shares: float) -> Tensor:
    return torch.tensor([max(share, 1e-9) for share in shares], dtype=torch.float64).log()


def garden_path() -> dict[tuple[int, ...], Tensor]:
    """Token 0 looks better at first, token 1 leads further: 0.55 * 0.4 < 0.45 * 0.9."""
    return {
        (): log(0.55, 0.45, 0, 0),
        (0,): log(0.3, 0.3, 0, 0.4),
        (1,): log(0.05, 0.05, 0, 0.9),
        **{pair: log(0.25, 0.25, 0.25, 0.25) for pair in itertools.product(range(4), repeat=2)},
    }


def test_greedy_is_led_astray_a_beam_of_two_is_not() -> None:
    model = Tabulated([garden_path()])
    options = {"start": START, "end": END, "max_length": 3}
    (greedily,) = beam_search(model, model.start(), 1, beam=1, **options)
    (searched,) = beam_search(model, model.start(), 1, beam=2, length_penalty=0, **options)
    assert greedily.tokens == [0]
    assert greedily.log_probability == pytest.approx(math.log(0.55 * 0.4), abs=1e-6)
    assert searched.tokens == [1]
    assert searched.log_probability == pytest.approx(math.log(0.45 * 0.9), abs=1e-6)


def test_tokens_that_are_never_written() -> None:
    """Of the garden path without its first token, the other; of one token alone, the end."""
    model = Tabulated([garden_path() | {(2,): log(0.25, 0.25, 0.25, 0.25)}])
    found = beam_search(
        WithoutTokens(model, 0), model.start(), 1, start=START, end=END, max_length=3, beam=2
    )
    assert found[0].tokens == [1]
    only = Tabulated([{(0,) * size: log(1.0) for size in range(3)}])
    (ended,) = beam_search(only, only.start(), 1, start=START, end=0, max_length=3, beam=2)
    assert (ended.tokens, ended.log_probability) == ([], 0.0)


@pytest.mark.parametrize(("penalty", "expected"), [(0.0, []), (1.0, [0, 0])])
def test_length_penalty(penalty: float, expected: list[int]) -> None:
    """Ending at once: 0.4. Going on: 0.6 * 0.7 * 0.9 = 0.378 over three tokens."""
    table = {
        (): log(0.6, 0, 0, 0.4),
        (0,): log(0.7, 0, 0, 0.3),
        (0, 0): log(0.1, 0, 0, 0.9),
    }
    others = {
        prefix: log(0.25, 0.25, 0.25, 0.25)
        for size in range(3)
        for prefix in itertools.product(range(4), repeat=size)
    }
    model = Tabulated([others | table])
    (found,) = beam_search(
        model, model.start(), 1, start=START, end=END, max_length=3, beam=64,
        length_penalty=penalty,
    )  # fmt: skip
    assert found.tokens == expected


def test_a_search_goes_on_until_none_is_above_the_worst_that_ended() -> None:
    """After two tokens two have ended: "0" scores -0.84 and leads, "" -0.92. "0 0" scores -0.90,
    and with its end -0.61.
    """
    table = {
        prefix: log(0.25, 0.25, 0.25, 0.25)
        for size in range(3)
        for prefix in itertools.product(range(4), repeat=size)
    } | {
        (): log(0.35, 0.25, 0, 0.4),
        (0,): log(0.47, 0, 0, 0.53),
        (0, 0): log(0.01, 0, 0, 0.99),
    }
    model = Tabulated([table])
    (found,) = beam_search(model, model.start(), 1, start=START, end=END, max_length=9, beam=2)
    assert found.tokens == [0, 0]
    assert found.score(1.0) == pytest.approx(math.log(0.35 * 0.47 * 0.99) / 3, abs=1e-6)
    assert len(model.sizes) == 3  # and no further: what is alive now is below both


@settings(max_examples=15, deadline=None)
@given(batch=st.integers(1, 4), length=st.integers(1, 5), seed=st.integers(0, 2**20))
def test_a_beam_of_one_takes_the_likeliest_token(batch: int, length: int, seed: int) -> None:
    tables = random_tables(batch, 4, length, seed)
    model = Tabulated(tables)
    options = {"start": START, "end": END, "max_length": length}
    found = beam_search(model, model.start(), batch, beam=1, **options)
    for table, hypothesis in zip(tables, found, strict=True):
        words: tuple[int, ...] = ()
        total = 0.0
        while len(words) < length and END not in words:
            logs = table[words].log_softmax(-1)
            total += float(logs.max())
            words = (*words, int(logs.argmax()))
        assert hypothesis.tokens == [word for word in words if word != END]
        assert hypothesis.ended == (END in words)
        assert hypothesis.log_probability == pytest.approx(total, abs=1e-5)


def test_a_sequence_that_never_ends_is_cut() -> None:
    forever = {(0,) * size: log(0.9, 0.1, 0, 0) for size in range(5)}
    model = Tabulated([forever])
    options = {"start": START, "end": END, "max_length": 4}
    (found,) = beam_search(model, model.start(), 1, beam=1, **options)
    assert found.tokens == [0, 0, 0, 0]
    assert found.log_probability == pytest.approx(4 * math.log(0.9), abs=1e-6)
    assert not found.ended
    # Four tokens, none of them the end.
    assert found.score(1.0) == pytest.approx(math.log(0.9), abs=1e-6)


@pytest.mark.parametrize("beam", [1, 2])
def test_each_sequence_has_a_greatest_length_of_its_own(beam: int) -> None:
    forever = {(0,) * size: log(0.9, 0.1, 0, 0) for size in range(5)}
    others = {
        prefix: log(0.9, 0.1, 0, 0)
        for size in range(5)
        for prefix in itertools.product(range(2), repeat=size)
    }
    model = Tabulated([others | forever] * 3)
    options = {"start": START, "end": END, "max_length": [2, 4, 1]}
    found = beam_search(model, model.start(), 3, beam=beam, **options)
    assert [hypothesis.tokens for hypothesis in found] == [[0, 0], [0] * 4, [0]]
    # No step computes for those that were cut.
    assert model.sizes == [3 * beam, 2 * beam, beam, beam]
    for lengths in ([2, 4], [2, 4, 0], 0):
        with pytest.raises(InputError, match="for 3 sequences; expected a number for each"):
            beam_search(model, model.start(), 3, **{**options, "max_length": lengths})


@pytest.fixture(scope="module")
def transformer() -> Transformer:
    torch.manual_seed(4)
    return Transformer(
        9, width=16, heads=2, feed_forward=16, tied=False, decoder_layers=1, padding=0
    ).eval()


def test_batching_changes_no_translation(transformer: Transformer) -> None:
    """Padding, other sequences' ends and beams next door leave a sequence's result alone."""
    sources = [[4, 5, 6, 7, 8, 3], [5, 3], [8, 8, 4, 3]]
    padded = torch.tensor([row + [0] * (6 - len(row)) for row in sources])
    options = {"start": START, "end": END, "max_length": 12}
    together = beam_search(transformer, transformer.start(padded), 3, beam=4, **options)
    for source, found in zip(sources, together, strict=True):
        alone = torch.tensor([source])
        (expected,) = beam_search(transformer, transformer.start(alone), 1, beam=4, **options)
        assert found.tokens == expected.tokens
        assert found.log_probability == pytest.approx(expected.log_probability, abs=1e-4)


@torch.no_grad()
def test_log_probabilities_are_the_models(transformer: Transformer) -> None:
    source = torch.tensor([[4, 5, 6, 3]])
    options = {"start": START, "end": END, "max_length": 12}
    for beam in (1, 4):
        (found,) = beam_search(transformer, transformer.start(source), 1, beam=beam, **options)
        whole = [START, *found.tokens, END][: options["max_length"] + 1]
        logits = transformer(source, torch.tensor([whole[:-1]]))[0].log_softmax(-1)
        total = sum(float(logits[place, token]) for place, token in enumerate(whole[1:]))
        assert found.log_probability == pytest.approx(total, abs=1e-4)


@pytest.fixture(scope="module")
def language_model() -> LanguageModel:
    torch.manual_seed(5)
    return LanguageModel(11, width=16, heads=2, feed_forward=16, layers=2).eval()


PROMPT = torch.tensor([[4, 5, 6], [7, 7, 7]])


@torch.no_grad()
def test_temperature_0_takes_the_likeliest(language_model: LanguageModel) -> None:
    drawn = sample(language_model, language_model.start(), PROMPT, length=6, temperature=0)
    tokens = PROMPT
    for _ in range(6):
        tokens = torch.cat((tokens, language_model(tokens)[:, -1].argmax(-1, keepdim=True)), 1)
    assert torch.equal(drawn, tokens[:, 3:])
    one = sample(language_model, language_model.start(), PROMPT, length=6, top=1)
    assert torch.equal(one, drawn)
