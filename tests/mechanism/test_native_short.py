"""Short padded sequences, which the native kernels serve on a path of their own."""

from __future__ import annotations

import math

import pytest
import torch

import headloom


@pytest.mark.parametrize("rows", [16, 33, 64])
@pytest.mark.parametrize("length", [1, 31, 32, 65, 128])
@pytest.mark.parametrize("depth", [5, 32])
def test_short_padded_sequences(instruction_set: str, rows: int, length: int, depth: int) -> None:
    """The output alone, without and with gradients: one for each way of asking for lse."""
    torch.manual_seed(rows + length)
    queries = torch.randn(5, rows, 4, depth).transpose(1, 2)
    keys, values = (torch.randn(5, length, 2, width).transpose(1, 2) for width in (depth, 48))
    lengths = torch.tensor([0, 1, length // 2, length - 1, length])
    left = torch.arange(length) >= length - lengths[:, None]
    for mask in (
        None,
        headloom.padding(lengths),
        headloom.padding(left),
        headloom.padding(length // 2),
    ):
        inputs = [x.clone().requires_grad_() for x in (queries, keys, values)]
        exact_inputs = [x.double().detach().requires_grad_() for x in (queries, keys, values)]
        with torch.no_grad():
            alone = headloom.attention(*inputs, mask=mask, backend="native")
        output = headloom.attention(*inputs, mask=mask, backend="native")
        exact = headloom.attention(*exact_inputs, mask=mask, backend="torch")
        assert torch.equal(alone, output)
        torch.testing.assert_close(output.double(), exact, rtol=0, atol=1e-5)
        direction = torch.randn_like(output)
        gradients = torch.autograd.grad(output, inputs, direction)
        expected = torch.autograd.grad(exact, exact_inputs, direction.double())
        for found, wanted in zip(gradients, expected, strict=True):
            torch.testing.assert_close(found.double(), wanted, rtol=1e-4, atol=1e-4)


@pytest.mark.parametrize("bad", [math.nan, math.inf])
def test_a_bad_query_of_a_short_sequence_stays_in_its_row(instruction_set: str, bad: float) -> None:
    queries, keys, values = torch.randn(3, 1, 2, 40, 32).unbind(0)
    clean = headloom.attention(queries, keys, values, mask=headloom.padding(30), backend="native")
    queries[0, 1, 7, 3] = bad
    keys[0, :, 30:] = math.nan  # hidden: never read
    found = headloom.attention(queries, keys, values, mask=headloom.padding(30), backend="native")
    assert found[0, 1, 7].isnan().all()
    found[0, 1, 7] = clean[0, 1, 7]
    assert torch.equal(found, clean)
