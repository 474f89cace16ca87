"""How many threads there are changes no bit of attention, whatever the rows of the last block."""

from __future__ import annotations

from collections.abc import Iterator

import pytest
import torch

import headloom
from headloom.mechanism.backends import native


@pytest.fixture(autouse=True)
def threads_as_before(monkeypatch: pytest.MonkeyPatch) -> Iterator[None]:
    before = torch.get_num_threads()
    # However little there is to do.
    monkeypatch.setattr(native, "LITTLE", 0)
    yield
    torch.set_num_threads(before)


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
