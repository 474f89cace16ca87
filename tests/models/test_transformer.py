"""The encoder-decoder and the language model: cached and uncached logits, padding, causality."""

from __future__ import annotations

import torch

from headloom.models.configuration import Architecture
from headloom.models.language_model import LanguageModel
from headloom.models.transformer import Transformer

VOCABULARY = 13

#: Three sources; the ids 0 are padding.
SOURCE = torch.tensor([[5, 6, 7, 8, 9], [4, 12, 3, 0, 0], [10, 3, 0, 0, 0]])
TARGET = torch.tensor([[2, 5, 6, 7, 4, 9], [2, 11, 3, 8, 8, 5], [2, 4, 4, 12, 6, 7]])

close = {"rtol": 1e-9, "atol": 1e-10}


def model_of(architecture: Architecture) -> Transformer:
    """In float64, so that only a wrong formula can make a difference."""
    torch.manual_seed(1)
    return Transformer(VOCABULARY, padding=0, **architecture.arguments()).double().eval()


@torch.no_grad()
def test_cached_logits_are_the_uncached_ones(architecture: Architecture) -> None:
    model = model_of(architecture)
    expected = model(SOURCE, TARGET)
    state = model.start(SOURCE)
    # One token, then three at once, then one: as a prompt followed by steps.
    pieces = [model.step(piece, state) for piece in TARGET.split([1, 3, 1, 1], 1)]
    torch.testing.assert_close(torch.cat(pieces, 1), expected, **close)
    assert state.position == TARGET.shape[1]
    assert all(cache.target.length == TARGET.shape[1] for cache in state.caches)
    assert all(cache.source.length == SOURCE.shape[1] for cache in state.caches)


@torch.no_grad()
def test_after_beams_died_split_and_left(architecture: Architecture) -> None:
    model = model_of(architecture)
    state = model.start(SOURCE)
    model.step(TARGET[:, :2], state)
    # Sequence 1 dies, 2 splits into two, 0 stays: the batch grows to four.
    order = torch.tensor([2, 0, 2, 2])
    state.reorder(order, order)
    source, target = SOURCE[order], TARGET[order].clone()
    target[2, 2:] = torch.tensor([9, 9, 10, 11])
    target[3, 2:] = torch.tensor([6, 5, 4, 3])
    first = model.step(target[:, 2:4], state)
    torch.testing.assert_close(first, model(source, target[:, :4])[:, 2:], **close)
    # Two sequences end: the batch shrinks.
    left = torch.tensor([3, 1])
    state.reorder(left, left)
    last = model.step(target[left, 4:], state)
    torch.testing.assert_close(last, model(source[left], target[left])[:, 4:], **close)


@torch.no_grad()
def test_padding_never_changes_a_logit(architecture: Architecture) -> None:
    model = model_of(architecture)
    together = model(SOURCE, TARGET)
    for row in range(len(SOURCE)):
        alone = SOURCE[row][SOURCE[row] != 0][None]
        torch.testing.assert_close(model(alone, TARGET[row : row + 1])[0], together[row], **close)
    # Neither does filling up the targets, which only later positions could see.
    filled = torch.cat((TARGET, torch.zeros(3, 4, dtype=torch.long)), 1)
    torch.testing.assert_close(model(SOURCE, filled)[:, : TARGET.shape[1]], together, **close)


def writer_of(architecture: Architecture) -> LanguageModel:
    torch.manual_seed(1)
    return LanguageModel(VOCABULARY, **architecture.arguments("decoder")).double().eval()


@torch.no_grad()
def test_a_later_token_changes_no_earlier_logit(architecture: Architecture) -> None:
    translator, writer = model_of(architecture), writer_of(architecture)
    for logits_of in (lambda target: translator(SOURCE, target), writer):
        before = logits_of(TARGET)
        for place in range(1, TARGET.shape[1]):
            changed = TARGET.clone()
            changed[:, place] = (changed[:, place] + 1) % VOCABULARY
            after = logits_of(changed)
            assert torch.equal(before[:, :place], after[:, :place])
            assert not torch.allclose(before[:, place], after[:, place])


@torch.no_grad()
def test_a_language_model_steps_reorders_and_knows_the_order(architecture: Architecture) -> None:
    model = writer_of(architecture)
    expected, state = model(TARGET), model.start()
    pieces = [model.step(piece, state) for piece in TARGET.split([3, 1, 2], 1)]
    torch.testing.assert_close(torch.cat(pieces, 1), expected, **close)
    state, order = model.start(), torch.tensor([1, 1, 0])
    model.step(TARGET[:, :3], state)
    state.reorder(order)
    tokens = TARGET[order].clone()
    tokens[1, 3:] = torch.tensor([9, 8, 7])
    torch.testing.assert_close(model.step(tokens[:, 3:], state), model(tokens)[:, 3:], **close)
    # Without positions, a causal model of one layer's last row is blind to order; not of two.
    swapped = TARGET[:, [1, 0, 2, 3, 4, 5]]
    assert not torch.allclose(expected[:, -1], model(swapped)[:, -1])


def test_dropout_acts_in_training_only() -> None:
    torch.manual_seed(3)
    model = Transformer(VOCABULARY, width=8, heads=2, dropout=0.5, padding=0)
    with torch.no_grad():
        assert not torch.equal(model(SOURCE, TARGET), model(SOURCE, TARGET))
        model.eval()
        assert torch.equal(model(SOURCE, TARGET), model(SOURCE, TARGET))


@torch.no_grad()
def test_hypotheses_of_one_source_share_it(architecture: Architecture) -> None:
    model = model_of(architecture)
    state = model.start(SOURCE)
    count = len(SOURCE)
    each = torch.arange(count).repeat_interleave(2)
    first = TARGET[each, :2]
    model.step(first[:, :1], state)
    model.step(first[:, 1:], state)
    # The hypotheses of the last source change places; then the first source is done.
    order = torch.arange(2 * count)
    order[-2:] = order[-2:].flip(0)
    state.reorder(order)
    more = torch.randint(4, VOCABULARY, (2 * count, 1), generator=torch.Generator().manual_seed(3))
    written = torch.cat((first[order], more), 1)
    logits = model.step(more, state)
    torch.testing.assert_close(logits, model(SOURCE[each], written)[:, 2:], **close)
    state.reorder(torch.arange(2, 2 * count), torch.arange(1, count))
    last = model.step(more[2:], state)
    whole = model(SOURCE[each[2:]], torch.cat((written[2:], more[2:]), 1))
    torch.testing.assert_close(last, whole[:, 3:], **close)
