"""Attention worked through: numbers by hand, NumPy in float64, and one query at a time."""

from __future__ import annotations

import math
from typing import Any

import numpy as np
import pytest
import torch

import headloom
from headloom.errors import InputError
from headloom.studio.steps.worked import Projections, Worked, row_of, work

HEADS, WIDTH, SOURCE, DEPTH, VALUE = 3, 5, 4, 6, 2
Arrays = dict[str, np.ndarray[Any, Any]]


@pytest.fixture
def arrays() -> Arrays:
    generator = np.random.default_rng(5)
    shapes = {
        "X": (4, WIDTH), "Y": (7, SOURCE), "W_Q": (HEADS, WIDTH, DEPTH),
        "W_K": (HEADS, SOURCE, DEPTH), "W_V": (HEADS, SOURCE, VALUE), "W_O": (HEADS * VALUE, WIDTH),
        "b_Q": (HEADS, DEPTH), "b_K": (HEADS, DEPTH), "b_V": (HEADS, VALUE), "b_O": (WIDTH,),
    }  # fmt: skip
    return {name: generator.normal(size=shape) for name, shape in shapes.items()}


def worked_of(arrays: Arrays, allowed: Any = None, **options: Any) -> Worked:
    tensors = {name: torch.from_numpy(array) for name, array in arrays.items()}
    X, Y = tensors.pop("X"), tensors.pop("Y")
    seen = None if allowed is None else torch.from_numpy(allowed)
    return work(X, Y, Projections(**tensors), seen, **options)


def by_numpy(a: Arrays, allowed: Any) -> Arrays:
    """The formula of the paper, in NumPy alone."""
    Q = np.einsum("iw,hwd->hid", a["X"], a["W_Q"]) + a["b_Q"][:, None]
    K = np.einsum("jw,hwd->hjd", a["Y"], a["W_K"]) + a["b_K"][:, None]
    V = np.einsum("jw,hwd->hjd", a["Y"], a["W_V"]) + a["b_V"][:, None]
    scores = np.einsum("hid,hjd->hij", Q, K)
    masked = np.where(allowed, scores / math.sqrt(DEPTH), -np.inf)
    powers = np.exp(masked - masked.max(-1, keepdims=True))
    weights = powers / powers.sum(-1, keepdims=True)
    Z = np.einsum("hij,hjd->hid", weights, V)
    joined = np.concatenate(list(Z), axis=-1)
    output = joined @ a["W_O"] + a["b_O"]
    return {"Q": Q, "K": K, "V": V, "scores": scores, "scaled": scores / math.sqrt(DEPTH),
            "masked": masked, "weights": weights, "Z": Z, "joined": joined,
            "output": output}  # fmt: skip


@pytest.mark.parametrize("causal", [False, True])
def test_every_matrix_is_that_of_numpy(arrays: Arrays, causal: bool) -> None:
    allowed = np.tril(np.ones((4, 7), bool)) if causal else np.ones((4, 7), bool)
    worked = worked_of(arrays, allowed)
    for name, expected in by_numpy(arrays, allowed).items():
        np.testing.assert_allclose(getattr(worked, name).numpy(), expected, rtol=0, atol=1e-12)
    assert 0 <= worked.difference < 1e-13


def by_hand(allowed: list[list[bool]] | None = None) -> Worked:
    """Q = (log 3, 0), K = (1, 0), V = (8, 4): the scores of the first row are log 3 and 0."""
    queries, keys = torch.tensor([[[math.log(3)], [0.0]]]), torch.tensor([[[1.0], [0.0]]])
    values, output = torch.tensor([[[8.0], [4.0]]]), torch.tensor([[1.0, 2.0]])
    mask = None if allowed is None else torch.tensor(allowed)
    return work(torch.eye(2), torch.eye(2), Projections(queries, keys, values, output), mask)


def test_numbers_by_hand() -> None:
    worked = by_hand()
    assert worked.weights[0].numpy() == pytest.approx(np.array([[0.75, 0.25], [0.5, 0.5]]))
    assert worked.output.numpy() == pytest.approx(np.array([[7.0, 14.0], [6.0, 12.0]]))
    first = row_of(worked, 0, 0)
    assert first.exponentials == pytest.approx((3.0, 1.0))
    assert first.total == pytest.approx(4.0)
    assert [part for (part,) in first.parts] == pytest.approx([6.0, 1.0])
    assert first.output == pytest.approx((7.0,))


def test_under_a_causal_mask_the_first_word_sees_itself_alone() -> None:
    worked = by_hand([[True, False], [True, True]])
    assert worked.weights[0].tolist() == [[1.0, 0.0], [0.5, 0.5]]
    assert worked.Z[0].tolist() == [[8.0], [6.0]]
    assert row_of(worked, 0, 0).exponentials[1] == 0


def test_a_row_that_may_look_at_nothing_gives_nothing() -> None:
    worked = by_hand([[False, False], [True, True]])
    assert worked.weights[0, 0].tolist() == [0, 0]
    assert row_of(worked, 0, 0).output == (0.0,)
    assert worked.difference == 0


def test_scores_that_e_to_the_power_of_would_overflow(arrays: Arrays) -> None:
    worked = worked_of(arrays | {"W_Q": arrays["W_Q"] * 1e4})
    assert float(worked.scaled.abs().max()) > 710
    assert row_of(worked, 0, 0).lowered == pytest.approx(float(worked.scaled[0, 0].max()))
    assert worked.difference < 1e-10


def test_a_bias_by_distance_by_kernel_and_one_query_at_a_time(arrays: Arrays) -> None:
    relative = headloom.ALiBi(headloom.alibi_slopes(HEADS))
    worked = worked_of(arrays, relative=relative)
    expected = headloom.attention(worked.Q, worked.K, worked.V, relative=relative)
    assert float((worked.Z - expected).abs().max()) < 1e-6
    plain = headloom.attention(worked.Q, worked.K, worked.V)
    assert float((worked.Z - plain).abs().max()) > 1e-2
    assert worked.difference < 1e-12
    with pytest.raises(InputError, match="Shaw positions add vectors to keys or values"):
        worked_of(arrays, relative=headloom.Shaw(torch.randn(5, DEPTH), torch.randn(5, VALUE)))


def test_rotary_positions_turn_pairs_of_numbers_as_complex_ones(arrays: Arrays) -> None:
    worked = worked_of(arrays, turn=headloom.rotary)
    for made, turned in ((worked.Q, worked.Q_turned), (worked.K, worked.K_turned)):
        assert turned is not None
        numbers, half = made.numpy(), DEPTH // 2
        pairs = numbers[..., :half] + 1j * numbers[..., half:]
        angle = np.arange(made.shape[1])[:, None] * 10_000.0 ** (-np.arange(half) / half)
        pairs = pairs * np.exp(1j * angle)
        expected = np.concatenate((pairs.real, pairs.imag), -1)
        np.testing.assert_allclose(turned.numpy(), expected, atol=1e-12)
    assert worked.Q_turned is not None and worked.K_turned is not None
    product = worked.Q_turned @ worked.K_turned.transpose(1, 2)
    assert float((worked.scores - product).abs().max()) < 1e-12
    assert worked.difference < 1e-13
