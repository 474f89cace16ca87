"""Short padded sequences, which the native kernels serve on a path of their own."""

from __future__ import annotations

import math
from dataclasses import replace

import pytest
import torch

import headloom
from headloom.mechanism.backends import native
from headloom.mechanism.backends import native_request as native_call

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


@pytest.mark.parametrize("instruction_set", INSTRUCTION_SETS)
@pytest.mark.parametrize("bad", [math.nan, math.inf])
def test_a_bad_query_of_a_short_sequence_stays_in_its_row(
    instruction_set: str, bad: float, monkeypatch: pytest.MonkeyPatch
) -> None:
    prepare = native_call.prepare
    chosen = lambda call: replace(prepare(call), instruction_set=instruction_set)  # noqa: E731
    monkeypatch.setattr(native, "prepare", chosen)
    queries, keys, values = torch.randn(3, 1, 2, 40, 32).unbind(0)
    clean = headloom.attention(queries, keys, values, mask=headloom.padding(30), backend="native")
    queries[0, 1, 7, 3] = bad
    keys[0, :, 30:] = math.nan  # hidden: never read
    found = headloom.attention(queries, keys, values, mask=headloom.padding(30), backend="native")
    assert found[0, 1, 7].isnan().all()
    found[0, 1, 7] = clean[0, 1, 7]
    assert torch.equal(found, clean)


@pytest.mark.parametrize("instruction_set", INSTRUCTION_SETS)
@pytest.mark.parametrize("length", [5, 17, 33, 128])
@pytest.mark.parametrize("k", [1, 7, 32])
def test_the_strongest_of_short_rows_are_in_order(
    instruction_set: str, length: int, k: int, monkeypatch: pytest.MonkeyPatch
) -> None:
    """Zeros of both signs, smallest and largest numbers, last bits, ties: by score, then
    by key. What is sorted is a part of a score's bits and its place."""
    prepare = native_call.prepare
    chosen = lambda call: replace(prepare(call), instruction_set=instruction_set)  # noqa: E731
    monkeypatch.setattr(native, "prepare", chosen)
    generator = torch.Generator().manual_seed(length + k)
    random = torch.randn(length, generator=generator)
    places = torch.arange(length)
    kinds = {
        "normal": random,
        "zeros": torch.where(places % 2 == 0, 0.0, -0.0),
        "zeros and smallest": torch.where(places % 3 == 0, -0.0, random.sign() * 2e-38),
        "smallest differences": torch.where(random > 0, 1.5e-38, 1.6e-38),
        "ties": (random * 2).round(),
        "last bits": 1 + 1e-7 * torch.randperm(length, generator=generator),
        "last bits, negative": -1 - 1e-7 * torch.randperm(length, generator=generator),
        "far from 0": 1e6 + torch.randperm(length, generator=generator),
        "largest": random.sign() * torch.where(places % 2 == 0, 3.4e38, 2e38),
        "largest beside minus infinity": torch.where(
            places == 2, 3e38, torch.where(places % 3 == 0, -math.inf, -2e38)
        ),
        "all sizes": random.sign() * 10.0 ** (random * 12).clamp(-36, 37),
        "minus infinity": torch.where(places % 4 == 0, -math.inf, random),
        "low beside minus infinity": torch.where(places % 2 == 0, -math.inf, -2e38),
    }
    for name, scores in kinds.items():
        keys, ones = scores.reshape(1, 1, length, 1), torch.ones(1, 1, 40, 1)
        values = torch.ones(1, 1, length, 16)
        with torch.no_grad():
            _, graph = headloom.attend(
                ones, keys, values, scale=1.0, keep=headloom.Top(k), backend="native"
            )
        found = graph.keys[0, 0, 17]
        edges = [j for j in range(length) if scores[j] > -math.inf]
        order = sorted(edges, key=lambda j: (-float(scores[j]), j))[:k]
        assert found[: len(order)].tolist() == order, name
        assert found[len(order) :].eq(-1).all(), name
        assert torch.equal(graph.scores[0, 0, 17, : len(order)], scores[order]), name
