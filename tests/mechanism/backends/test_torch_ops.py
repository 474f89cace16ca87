"""The plain torch backend: blocks of rows, and memory that is linear in the length."""

from __future__ import annotations

from typing import Any

import pytest
import torch

import headloom
from headloom.mechanism.backends import torch_blocks, torch_ops
from headloom.mechanism.call import checked_call


def call_of(*shape: int, score: Any = None) -> Any:
    inputs = torch.zeros(shape)
    return checked_call("test", inputs, inputs, inputs, score=score, keep=headloom.Top(4))


@pytest.mark.parametrize(
    ("cells", "expected"),
    [
        (1, [range(1), range(1, 2), range(2, 3), range(3, 4), range(4, 5)]),
        (2 * 3 * 5 * 2, [range(2), range(2, 4), range(4, 5)]),
        (2 * 3 * 5 * 5, [range(5)]),
    ],
)
def test_blocks_fit_the_cells(
    monkeypatch: pytest.MonkeyPatch, cells: int, expected: list[range]
) -> None:
    monkeypatch.setattr(torch_blocks, "BLOCK_CELLS", cells)
    assert torch_blocks.blocks(call_of(2, 3, 5, 4)) == expected


def test_more_than_one_block_is_recomputed_in_the_backward_pass(
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    calls = 0
    original = torch_ops.block_scores

    def counting(*arguments: Any) -> Any:
        nonlocal calls
        calls += 1
        return original(*arguments)

    monkeypatch.setattr(torch_ops, "block_scores", counting)
    queries = torch.randn(1, 4, 3).requires_grad_()
    output, _ = headloom.attend(queries, queries, queries, backend="torch")
    output.sum().backward()
    assert calls == 1  # one block keeps what it computed
    monkeypatch.setattr(torch_blocks, "BLOCK_CELLS", 8)
    output, _ = headloom.attend(queries, queries, queries, backend="torch")
    assert calls == 3
    output.sum().backward()
    assert calls == 5


def peak_of(run: Any) -> int:
    """Bytes of tensors that were alive at once while `run` ran, at most."""
    with torch.profiler.profile(
        activities=[torch.profiler.ProfilerActivity.CPU], profile_memory=True
    ) as profile:
        run()
    changes = [
        (event.start_ns(), event.nbytes())
        for event in profile.profiler.kineto_results.events()
        if event.name() == "[memory]"
    ]
    alive = peak = 0
    for _, change in sorted(changes, key=lambda pair: pair[0]):
        alive += change
        peak = max(peak, alive)
    return peak


@pytest.mark.parametrize("k", [0, 4])
@pytest.mark.parametrize("gradients", [False, True])
def test_memory_is_linear_in_the_length(
    monkeypatch: pytest.MonkeyPatch, gradients: bool, k: int
) -> None:
    """Twice the length takes about twice the memory, not four times, backward pass included."""
    monkeypatch.setattr(torch_blocks, "BLOCK_CELLS", 2**12)

    def run(length: int) -> None:
        inputs = torch.zeros(3, 1, length, 4, requires_grad=gradients)
        output, graph = headloom.attend(
            *inputs, keep=headloom.Top(k), score=headloom.Dot(), backend="torch"
        )
        if gradients:
            (output.sum() + graph.lse.sum()).backward()

    run(8)
    short, long = peak_of(lambda: run(250)), peak_of(lambda: run(500))
    assert long < 2.6 * short
    assert long < 500 * 500 * 4


@pytest.mark.parametrize("dtype", [torch.float16, torch.bfloat16])
@pytest.mark.parametrize("options", [{}, {"softcap": 50.0}, {"score": "bilinear"}, {"sinks": True}])
def test_half_precision_does_not_overflow(dtype: torch.dtype, options: dict[str, Any]) -> None:
    torch.manual_seed(0)
    queries, keys = (60 * torch.randn(2, 1, 2, 6, 64)).to(dtype)
    values = torch.randn(1, 2, 6, 64).to(dtype)
    matrix = (torch.eye(64) / 8).to(dtype)
    sinks = torch.zeros(2, dtype=dtype)

    def attend(keep: Any, exact: bool) -> Any:
        def as_(tensor: torch.Tensor) -> torch.Tensor:
            return tensor.double() if exact else tensor

        given = dict(options)
        if "score" in given:
            given["score"] = headloom.Bilinear(as_(matrix))
        if "sinks" in given:
            given["sinks"] = as_(sinks)
        return headloom.attend(
            as_(queries), as_(keys), as_(values), keep=keep, backend="torch", **given
        )

    tolerance = torch.finfo(dtype).eps
    expected, expected_weights = attend(headloom.All(), True)
    output, weights = attend(headloom.All(), False)
    assert output.dtype == weights.dtype == dtype
    assert torch.allclose(output.double(), expected, atol=4 * tolerance, rtol=tolerance)
    assert torch.allclose(weights.double(), expected_weights, atol=tolerance)
    if not options.get("sinks"):
        ones = torch.ones(1, 2, 6, dtype=torch.float64)
        assert torch.allclose(weights.double().sum(-1), ones, atol=tolerance)
    output, graph = attend(headloom.Top(6), False)
    _, expected_graph = attend(headloom.Top(6), True)
    assert output.dtype == graph.weights.dtype == dtype
    assert torch.allclose(graph.scores.double(), expected_graph.scores, rtol=1e-4, atol=1e-3)
    assert torch.allclose(graph.lse.double(), expected_graph.lse, rtol=1e-5)
    assert torch.allclose(graph.entropy.double(), expected_graph.entropy, atol=1e-3)


@pytest.mark.parametrize("keys", [3, 5, 7, 16])
@pytest.mark.parametrize("mask", [None, headloom.causal()], ids=["plain", "causal"])
def test_queries_that_are_no_numbers_give_none(keys: int, mask: Any) -> None:
    """torch's fused attention on the CPU gives 0 where keys are fewer than its vectors are long."""
    queries, others, values = torch.randn(3, 1, 2, keys, 8)
    queries[0, 1, 2, 0] = torch.nan
    output = headloom.attention(queries, others, values, mask=mask, backend="torch")
    expected = torch.zeros(1, 2, keys, 8).bool()
    expected[0, 1, 2] = True
    assert torch.equal(output.isnan(), expected)
