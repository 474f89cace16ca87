"""AttentionMatrix against the dense matrix, for every mask, bias and relative position."""

from __future__ import annotations

import math
from typing import Any

import numpy as np
import pytest
import torch
from hypothesis import given, settings
from hypothesis import strategies as st
from torch import Tensor

import headloom
from headloom.mechanism.masks import packed
from headloom.mechanism.matrix.attention_matrix import AttentionMatrix

KINDS = (
    "plain",
    "causal",
    "window",
    "lengths",
    "holes",
    "packed",
    "neighbours",
    "bool per head",
    "either",
)
RELATIVES = ("none", "shaw", "shaw per head", "alibi", "buckets")


@st.composite
def matrices(draw: st.DrawFn, square: bool = False) -> tuple[AttentionMatrix, Tensor]:
    """A matrix as an operator, and the same one dense, in float64."""
    generator = torch.Generator().manual_seed(draw(st.integers(0, 2**20), label="seed"))

    def random(*shape: int) -> Tensor:
        return torch.randn(*shape, dtype=torch.float64, generator=generator)

    kv_heads = draw(st.integers(1, 2), label="kv_heads")
    heads = kv_heads * draw(st.integers(1, 2), label="groups")
    rows = draw(st.sampled_from((1, 2, 7, 33, 70)), label="queries")
    length = rows if square else draw(st.sampled_from((1, 3, 40, 65)), label="keys")
    depth = draw(st.sampled_from((3, 8)), label="depth")
    kind = draw(st.sampled_from(KINDS), label="mask")
    relative = draw(st.sampled_from(RELATIVES), label="relative")
    dtype = draw(st.sampled_from((torch.float32, torch.float64)), label="dtype")
    queries, keys = random(heads, rows, depth), random(kv_heads, length, depth)
    some = torch.rand(rows, length, generator=generator) < 0.5
    cut = int(torch.randint(0, min(rows, length) + 1, (), generator=generator))
    masks: dict[str, Any] = {
        "plain": None,
        "causal": headloom.causal(offset=1),
        "window": headloom.window(2, None, -1),
        "lengths": headloom.padding([cut]),
        "holes": headloom.padding(some.any(0) & (torch.arange(length) % 2 == 0))
        & headloom.causal(),
        "packed": packed([cut, rows - cut], [cut, length - cut]),
        "neighbours": headloom.neighbours(some),
        "bool per head": torch.rand(heads, rows, length, generator=generator) < 0.7,
        "either": headloom.window(0, 0) | headloom.padding([cut]),
    }
    options: dict[str, Any] = {"mask": masks[kind]}
    if relative.startswith("shaw"):
        shape = (heads, 5, depth) if relative == "shaw per head" else (5, depth)
        options["relative"] = headloom.Shaw(random(*shape).to(dtype), offset=1)
    elif relative == "alibi":
        options["relative"] = headloom.ALiBi(random(heads).abs().to(dtype) / 16, offset=-1)
    elif relative == "buckets":
        options["relative"] = headloom.Buckets(random(8, heads).to(dtype), max_distance=6)
    if draw(st.booleans(), label="bias"):
        shapes = [(rows, length), (heads, 1, length), (heads, rows, 1)]
        options["bias"] = random(*draw(st.sampled_from(shapes), label="bias shape")).to(dtype)
    if draw(st.booleans(), label="own scale"):
        options["scale"] = 0.4
    if draw(st.booleans(), label="softcap"):
        options["softcap"] = 1.5
    if draw(st.booleans(), label="sinks"):
        options["sinks"] = random(heads).to(dtype)
    given = dict(options)
    if draw(st.booleans(), label="lse given"):
        values = keys.to(dtype)[..., :1]
        graph = headloom.attend(
            queries.to(dtype), keys.to(dtype), values, keep=headloom.Top(0), **options
        )[1]
        given["lse"] = graph.lse
    matrix = AttentionMatrix(queries.to(dtype), keys.to(dtype), **given)

    def wide(value: Any) -> Any:
        return value.double() if isinstance(value, Tensor) and value.dtype != torch.bool else value

    exact = {name: wide(value) for name, value in options.items()}
    if "relative" in exact:
        fields = vars(exact["relative"])
        exact["relative"] = type(exact["relative"])(**{n: wide(v) for n, v in fields.items()})
    ones = torch.ones(kv_heads, length, 1, dtype=torch.float64)
    _, dense = headloom.attend(
        queries.to(dtype).double(), keys.to(dtype).double(), ones, keep=headloom.All(), **exact
    )
    return matrix, dense


def close(found: Tensor, expected: Tensor) -> None:
    scale = float(expected.abs().max().clamp(min=1)) if expected.numel() else 1.0
    torch.testing.assert_close(found.double(), expected, rtol=0, atol=1e-5 * scale)


@settings(max_examples=40, deadline=None)
@given(matrices())
def test_every_question_is_answered_as_by_the_dense_matrix(
    pair: tuple[AttentionMatrix, Tensor],
) -> None:
    matrix, dense = pair
    heads, rows, length = matrix.shape
    generator = torch.Generator().manual_seed(0)
    x = torch.randn(length, 3, generator=generator).double()
    y = torch.randn(heads, rows, 2, generator=generator).double()
    close(matrix.to_dense(), dense)
    close(matrix @ x, dense @ x)
    close(matrix @ x[:, 0], dense @ x[:, 0])
    close(matrix.T @ y, dense.transpose(1, 2) @ y)
    close(matrix.received(), dense.sum(1))
    close(matrix.entropy(), -(dense * dense.clamp(min=1e-300).log()).sum(-1))
    close(matrix.sum_of_squares(), dense.square().sum(-1))
    close(matrix.mass([0, length - 1]), dense[..., sorted({0, length - 1})].sum(-1))
    for offset in (-1, 0, 2):
        expected = torch.zeros(heads, rows, dtype=torch.float64)
        for i in range(rows):
            if 0 <= i + offset < length:
                expected[:, i] = dense[:, i, i + offset]
        close(matrix.mass(offset), expected)
    close(matrix[heads - 1, : rows // 2 + 1, 1:], dense[heads - 1, : rows // 2 + 1, 1:])
    close(matrix[0, -1, 0], dense[0, -1, 0])
    size = 4
    padded = torch.nn.functional.pad(dense, (0, -length % size, 0, -rows % size))
    tiles = padded.unflatten(2, (-1, size)).unflatten(1, (-1, size))
    for h in range(heads):
        largest, sums = matrix.block_summaries(h, size)
        close(largest, tiles[h].amax((1, 3)))
        close(sums, tiles[h].sum((1, 3)))
    top = matrix.top(2)
    close(top.weights.sum(-1), dense.topk(min(2, length), -1).values.sum(-1))
    close(top.entropy, matrix.entropy().double())
    close(top.rest, (matrix.lse > -math.inf).double() - top.weights.sum(-1))
    assert matrix.count.shape == (heads, rows)


@settings(max_examples=60, deadline=None)
@given(matrices(square=True))
def test_reciprocity(pair: tuple[AttentionMatrix, Tensor]) -> None:
    matrix, dense = pair
    close(matrix.reciprocity(), (dense * dense.transpose(1, 2)).sum(-1))


@settings(max_examples=40, deadline=None)
@given(matrices(), st.data())
def test_a_head_is_a_linear_operator(
    pair: tuple[AttentionMatrix, Tensor], data: st.DataObject
) -> None:
    matrix, dense = pair
    h = data.draw(st.integers(0, matrix.shape[0] - 1))
    operator, expected = matrix.head(h), dense[h].numpy()
    x, y = np.random.default_rng(0).normal(size=(2, max(expected.shape)))
    x, y = x[: expected.shape[1]], y[: expected.shape[0]]
    np.testing.assert_allclose(operator @ x, expected @ x, rtol=1e-5, atol=1e-5)
    np.testing.assert_allclose(operator.T @ y, expected.T @ y, rtol=1e-5, atol=1e-5)
    both = np.stack([x, 2 * x], 1)
    np.testing.assert_allclose(operator @ both, expected @ both, rtol=1e-5, atol=1e-5)


def test_memory_is_linear_and_sizes_are_guarded() -> None:
    queries = torch.randn(2, 20_000, 4)
    matrix = AttentionMatrix(queries, queries)
    assert matrix.shape == (2, 20_000, 20_000)
    torch.testing.assert_close(matrix.received().sum(1), torch.full((2,), 20_000.0))
    with pytest.raises(headloom.InputError, match="to_dense: a matrix of 2 x 20000 x 20000 cells"):
        matrix.to_dense()
    assert matrix[1, 19_990:, 19_990:].shape == (10, 10)


def test_a_row_that_sees_nothing_is_zero() -> None:
    x = torch.randn(1, 3, 4)
    matrix = AttentionMatrix(x, x, mask=torch.tensor([[True] * 3, [False] * 3, [True] * 3]))
    assert matrix.lse[0, 1] == -math.inf
    assert matrix.received().sum() == pytest.approx(2)
    assert matrix.reciprocity()[0, 1] == 0 and matrix.sum_of_squares()[0, 1] == 0


@pytest.mark.parametrize("dtype", [torch.float16, torch.bfloat16])
def test_half_precision_does_not_overflow(dtype: torch.dtype) -> None:
    generator = torch.Generator().manual_seed(0)
    queries, keys = (300 * torch.randn(2, 2, 30, 64, generator=generator)).to(dtype)
    matrix = AttentionMatrix(queries, keys, scale=1e-5)
    wide = AttentionMatrix(queries.double(), keys.double(), scale=1e-5)
    assert matrix.to_dense().dtype == torch.float32
    close(matrix.to_dense(), wide.to_dense())
    close(matrix.T @ queries.new_ones(30), wide.received())


def test_more_columns_than_one_call_takes() -> None:
    x = torch.randn(1, 1100, 4, generator=torch.Generator().manual_seed(0))
    matrix = AttentionMatrix(x, x)
    dense = matrix.to_dense().double()
    close(matrix @ torch.eye(1100), dense)
    close(matrix.T @ torch.eye(1100), dense.transpose(1, 2))


def test_reciprocity_head_by_head(monkeypatch: pytest.MonkeyPatch) -> None:
    queries, keys = torch.randn(2, 4, 20, 4, generator=torch.Generator().manual_seed(0))
    whole = AttentionMatrix(queries, keys[:2]).reciprocity()
    monkeypatch.setattr("headloom.mechanism.matrix.attention_matrix.SIDE_BY_SIDE", 0)
    close(AttentionMatrix(queries, keys[:2]).reciprocity(), whole.double())


def test_rows_with_an_infinite_sink_are_no_numbers() -> None:
    queries, keys = torch.randn(2, 3, 4), torch.randn(2, 3, 4)
    matrix = AttentionMatrix(queries, keys, sinks=torch.tensor([torch.inf, 0.0]))
    rows = matrix.to_dense().sum(-1), matrix.lse, matrix.entropy(), matrix.top(2).rest
    for numbers in (*rows, matrix.received()):
        assert numbers.isnan().all(-1).tolist() == [True, False]
