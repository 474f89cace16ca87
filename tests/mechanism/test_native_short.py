"""Short padded sequences, which the native kernels serve on a path of their own."""

from __future__ import annotations

import math
from dataclasses import replace

import pytest
import torch

import weft
from weft.mechanism.backends import native
from weft.mechanism.backends import native_request as native_call

INSTRUCTION_SETS = native.instruction_sets()
pytestmark = pytest.mark.skipif(not INSTRUCTION_SETS, reason="built without the native kernels")


@pytest.mark.parametrize("instruction_set", INSTRUCTION_SETS)
@pytest.mark.parametrize("rows", [16, 33, 64])
@pytest.mark.parametrize("length", [1, 31, 32, 65, 128])
@pytest.mark.parametrize("depth", [5, 32])
def test_short_padded_sequences(
    instruction_set: str, rows: int, length: int, depth: int, monkeypatch: pytest.MonkeyPatch
) -> None:
    """The output alone, without and with gradients: one for each way of asking for lse."""
    prepare = native_call.prepare
    chosen = lambda call: replace(prepare(call), instruction_set=instruction_set)  # noqa: E731
    monkeypatch.setattr(native, "prepare", chosen)
    torch.manual_seed(rows + length)
    queries = torch.randn(5, rows, 4, depth).transpose(1, 2)
    keys, values = (torch.randn(5, length, 2, width).transpose(1, 2) for width in (depth, 48))
    lengths = torch.tensor([0, 1, length // 2, length - 1, length])
    left = torch.arange(length) >= length - lengths[:, None]
    for mask in (None, weft.padding(lengths), weft.padding(left), weft.padding(length // 2)):
        inputs = [x.clone().requires_grad_() for x in (queries, keys, values)]
        exact_inputs = [x.double().detach().requires_grad_() for x in (queries, keys, values)]
        with torch.no_grad():
            alone = weft.attention(*inputs, mask=mask, backend="native")
        output = weft.attention(*inputs, mask=mask, backend="native")
        exact = weft.attention(*exact_inputs, mask=mask, backend="torch")
        assert torch.equal(alone, output)
        torch.testing.assert_close(output.double(), exact, rtol=0, atol=1e-5)
        direction = torch.randn_like(output)
        gradients = torch.autograd.grad(output, inputs, direction)
        expected = torch.autograd.grad(exact, exact_inputs, direction.double())
        for found, wanted in zip(gradients, expected, strict=True):
            torch.testing.assert_close(found.double(), wanted, rtol=1e-4, atol=1e-4)


@pytest.mark.parametrize("instruction_set", INSTRUCTION_SETS)
@pytest.mark.parametrize("bad", [math.nan, math.inf])
def test_a_bad_query_of_a_short_sequence_stays_in_its_row(
    instruction_set: str, bad: float, monkeypatch: pytest.MonkeyPatch
) -> None:
    prepare = native_call.prepare
    chosen = lambda call: replace(prepare(call), instruction_set=instruction_set)  # noqa: E731
    monkeypatch.setattr(native, "prepare", chosen)
    queries, keys, values = torch.randn(3, 1, 2, 40, 32).unbind(0)
    clean = weft.attention(queries, keys, values, mask=weft.padding(30), backend="native")
    queries[0, 1, 7, 3] = bad
    keys[0, :, 30:] = math.nan  # hidden: never read
    found = weft.attention(queries, keys, values, mask=weft.padding(30), backend="native")
    assert found[0, 1, 7].isnan().all()
    found[0, 1, 7] = clean[0, 1, 7]
    assert torch.equal(found, clean)
