from __future__ import annotations

import pytest
import torch

import headloom
from headloom.mechanism.masks import Mask

LENGTH = 300
MASKS: dict[str, Mask | None] = {
    "none": None,
    "causal": headloom.causal(),
    "window": headloom.window(40, 3),
    "behind": headloom.window(200, 0) & headloom.padding(torch.tensor([250])),
}


@pytest.mark.parametrize("mask", MASKS)
@pytest.mark.parametrize("size", [1, 2, 7, 16, 400])
def test_summaries_of_blocks_are_those_of_the_dense_matrix(mask: str, size: int) -> None:
    torch.manual_seed(len(mask) + size)
    queries, keys = torch.randn(4, LENGTH, 8), torch.randn(2, LENGTH, 8)
    matrix = headloom.AttentionMatrix(2 * queries, keys, mask=MASKS[mask])
    dense = matrix.dense()[3]
    blocks = -(-LENGTH // size)
    padded = torch.zeros(blocks * size, blocks * size)
    padded[:LENGTH, :LENGTH] = dense
    parts = padded.reshape(blocks, size, blocks, size)
    largest, sums = matrix.block_summaries(3, size)
    torch.testing.assert_close(largest, parts.amax((1, 3)), rtol=1e-5, atol=1e-7)
    torch.testing.assert_close(sums, parts.sum((1, 3)), rtol=1e-5, atol=1e-6)


def test_some_rows_and_columns() -> None:
    torch.manual_seed(3)
    queries, keys = torch.randn(1, LENGTH, 8), torch.randn(1, LENGTH, 8)
    matrix = headloom.AttentionMatrix(queries, keys, mask=headloom.causal())
    part = matrix.dense()[0, 50:290, 35:67]
    largest, sums = matrix.block_summaries(0, 16, slice(50, 290), slice(35, 67))
    parts = part.reshape(15, 16, 2, 16)
    torch.testing.assert_close(largest, parts.amax((1, 3)), rtol=1e-5, atol=1e-7)
    torch.testing.assert_close(sums, parts.sum((1, 3)), rtol=1e-5, atol=1e-6)
    ahead = matrix.block_summaries(0, 4, slice(0, 8), slice(100, 108))
    assert float(ahead[0].abs().sum()) == 0


def test_bias_and_rows_that_see_nothing() -> None:
    torch.manual_seed(0)
    queries = torch.randn(1, 40, 8)
    bias = torch.randn(1, 40, 40)
    biased = headloom.AttentionMatrix(queries, queries, bias=bias)
    torch.testing.assert_close(biased.block_summaries(0, 40)[1], torch.tensor([[40.0]]))
    # Queries before key 0 see nothing.
    blind = headloom.AttentionMatrix(queries, queries[:, :20], mask=headloom.window(None, 0, -20))
    assert float(blind.block_summaries(0, 20)[1][0].sum()) == 0
    torch.testing.assert_close(blind.block_summaries(0, 20)[1][1].sum(), torch.tensor(20.0))


def test_no_such_head_and_no_such_size() -> None:
    matrix = headloom.AttentionMatrix(torch.randn(2, 4, 8), torch.randn(2, 4, 8))
    with pytest.raises(headloom.InputError, match="no such head"):
        matrix.block_summaries(2, 2)
    with pytest.raises(headloom.InputError, match="slices of queries and keys without a step"):
        matrix.block_summaries(0, 2, slice(None, None, 2))
    with pytest.raises(headloom.InputError, match="side of a block"):
        matrix.block_summaries(0, 0)
