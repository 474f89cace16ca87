"""The decoder-only model: cached and uncached logits, causality, tied matrices."""

from __future__ import annotations

import torch

from headloom.models.configuration import Architecture
from headloom.models.language_model import LanguageModel

VOCABULARY = 13
TOKENS = torch.tensor([[5, 6, 7, 8, 9, 4, 4], [4, 12, 3, 1, 1, 2, 8], [10, 3, 5, 6, 6, 7, 9]])

close = {"rtol": 1e-9, "atol": 1e-10}


def model_of(architecture: Architecture) -> LanguageModel:
    torch.manual_seed(1)
    return LanguageModel(VOCABULARY, architecture).double().eval()


@torch.no_grad()
def test_cached_logits_are_the_uncached_ones(architecture: Architecture) -> None:
    model = model_of(architecture)
    expected = model(TOKENS)
    state = model.start()
    pieces = [model.step(piece, state) for piece in TOKENS.split([3, 1, 2, 1], 1)]
    torch.testing.assert_close(torch.cat(pieces, 1), expected, **close)


@torch.no_grad()
def test_after_sequences_were_reordered(architecture: Architecture) -> None:
    model = model_of(architecture)
    state = model.start()
    model.step(TOKENS[:, :3], state)
    order = torch.tensor([1, 1, 0])
    state.reorder(order)
    tokens = TOKENS[order].clone()
    tokens[1, 3:] = torch.tensor([9, 8, 7, 6])
    found = model.step(tokens[:, 3:], state)
    torch.testing.assert_close(found, model(tokens)[:, 3:], **close)


@torch.no_grad()
def test_a_later_token_changes_no_earlier_logit(architecture: Architecture) -> None:
    model = model_of(architecture)
    before = model(TOKENS)
    for place in range(1, TOKENS.shape[1]):
        changed = TOKENS.clone()
        changed[:, place] = (changed[:, place] + 1) % VOCABULARY
        after = model(changed)
        assert torch.equal(before[:, :place], after[:, :place])
        assert not torch.allclose(before[:, place], after[:, place])


@torch.no_grad()
def test_the_order_of_tokens_counts(architecture: Architecture) -> None:
    """Without positions, a causal model of one layer's last row is blind to order; not of two."""
    model = model_of(architecture)
    swapped = TOKENS[:, [1, 0, 2, 3, 4, 5, 6]]
    assert not torch.allclose(model(TOKENS)[:, -1], model(swapped)[:, -1])
