"""How many threads there are changes no bit of attention, whatever the rows of the last block."""

from __future__ import annotations

import sys
from collections.abc import Iterator
from concurrent.futures import ThreadPoolExecutor

import pytest
import torch

import headloom
from headloom.mechanism.backends import compiled, native


@pytest.fixture(autouse=True)
def threads_as_before(monkeypatch: pytest.MonkeyPatch) -> Iterator[None]:
    before = torch.get_num_threads()
    # However little there is to do.
    monkeypatch.setattr(native, "LITTLE", 0)
    yield
    torch.set_num_threads(before)


def test_a_thread_beside_another_leaves_it_a_processor() -> None:
    torch.set_num_threads(3)
    with compiled.beside_a_thread():
        ours = torch.get_num_threads()
        with ThreadPoolExecutor(1) as other:
            theirs = other.submit(torch.get_num_threads).result()
    # Where torch's threads are not those of a libgomp, nothing changes.
    assert ours == (2 if sys.platform == "linux" else 3)
    assert theirs == torch.get_num_threads() == 3
    torch.set_num_threads(1)
    with compiled.beside_a_thread():
        assert torch.get_num_threads() == 1
    assert torch.get_num_threads() == 1


@pytest.mark.parametrize("dtype", [torch.float32, torch.bfloat16])
# Blocks of 64, 48 or 24 queries, of which the last has one row or a few; steps of decoding.
@pytest.mark.parametrize("queries", [1, 2, 4, 5, 49, 50, 65, 66, 130, 195, 258])
def test_threads_change_no_bit(instruction_set: str, dtype: torch.dtype, queries: int) -> None:
    generator = torch.Generator().manual_seed(queries)
    shapes = ((2, 4, queries, 36), (2, 2, 300, 36), (2, 2, 300, 36))
    tensors = [torch.randn(shape, generator=generator).to(dtype) for shape in shapes]
    found = []
    for threads in (1, 2, 3, 16):
        torch.set_num_threads(threads)
        leaves = [tensor.requires_grad_() for tensor in tensors]
        output, graph = headloom.attend(
            *leaves, mask=headloom.causal(300 - queries), keep=headloom.Top(8), backend="native"
        )
        total = output.float().sum() + graph.entropy.sum()
        by_leaves = torch.autograd.grad(total, leaves)
        rows = (graph.lse, graph.entropy, graph.scores, graph.keys, graph.weights)
        found.append((output, *rows, *by_leaves))
    for other in found[1:]:
        assert all(torch.equal(a, b) for a, b in zip(found[0], other, strict=True))


def test_the_kernels_that_run_are_those_that_were_chosen_else_the_widest(
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    monkeypatch.setattr(compiled, "INSTRUCTION_SET", "baseline")
    assert compiled.chosen_instruction_set() == "baseline"
    monkeypatch.setattr(compiled, "INSTRUCTION_SET", "")
    assert compiled.chosen_instruction_set() == compiled.instruction_sets()[0]


@pytest.mark.parametrize(("little", "expected"), [(8 * 4 * 4 * 64 + 1, 1), (8 * 4 * 4 * 64, 2)])
def test_one_thread_computes_what_is_little(
    monkeypatch: pytest.MonkeyPatch, little: int, expected: int
) -> None:
    asked: list[int] = []

    class Kernels:
        @staticmethod
        def forward(call: object, results: object, threads: int) -> None:
            asked.append(threads)

    monkeypatch.setattr(native, "kernels", Kernels)
    monkeypatch.setattr(native, "LITTLE", little)
    torch.set_num_threads(2)
    tensors = [torch.zeros(1, 8, 4, 32) for _ in range(3)]
    headloom.attention(*tensors, backend="native")
    headloom.attend(*tensors, backend="native")
    assert asked == [expected, expected]
