"""Embeddings by their formula, x_t = E[token_t] sqrt(width) + position_t."""

from __future__ import annotations

import math

import pytest
import torch

from headloom.errors import InputError
from headloom.mechanism.positions import sinusoidal
from headloom.models.configuration import Architecture, PositionKind
from headloom.models.embeddings import Embedding


def embedding(positions: PositionKind, max_length: int = 8) -> Embedding:
    torch.manual_seed(1)
    architecture = Architecture(
        width=6, heads=3, positions=positions, dropout=0.0, max_length=max_length
    )
    return Embedding(11, architecture)


def test_formula_with_sinusoids_and_offset() -> None:
    layer = embedding("sinusoidal")
    ids = torch.tensor([[4, 9, 4]])
    table = sinusoidal(10, 6)
    expected = layer.tokens.weight[ids[0]] * math.sqrt(6) + table[5:8]
    torch.testing.assert_close(layer(ids, offset=5)[0], expected)


def test_formula_with_learned_positions_and_none() -> None:
    ids = torch.tensor([[3, 3, 3]])
    alone = embedding("rotary")
    torch.testing.assert_close(alone(ids)[0], alone.tokens.weight[ids[0]] * math.sqrt(6))
    layer = embedding("learned")
    expected = layer.tokens.weight[[3, 3]] * math.sqrt(6) + layer.positions.weight[1:3]
    torch.testing.assert_close(layer(torch.tensor([[3, 3]]), offset=1)[0], expected)


def test_learned_positions_end() -> None:
    layer = embedding("learned", max_length=4)
    assert layer(torch.ones(1, 4, dtype=torch.long)).shape == (1, 4, 6)
    with pytest.raises(InputError, match=r"5 tokens, the model's positions end at 4.*max_length"):
        layer(torch.ones(1, 2, dtype=torch.long), offset=3)
