"""headloom.attention under a graph's mask: along the edges, and what it must equal."""

from __future__ import annotations

from typing import Any

import pytest
import torch
from torch import Tensor

import headloom
from headloom.mechanism.backends import compiled

pytestmark = pytest.mark.skipif(not compiled.instruction_sets(), reason="built without kernels")


def scores(heads: int, depth: int, generator: torch.Generator) -> dict[str, Any]:
    def random(*shape: int) -> Tensor:
        return torch.randn(*shape, generator=generator)

    return {
        "dot": headloom.Dot(),
        "scaled dot": headloom.ScaledDot(),
        "bilinear": headloom.Bilinear(random(depth, depth)),
        "GAT": headloom.GraphAttention(random(heads, depth), random(depth)),
        "GATv2": headloom.GraphAttentionV2(random(heads, depth)),
    }


@pytest.mark.parametrize("name", ["dot", "scaled dot", "bilinear", "GAT", "GATv2"])
def test_going_along_the_edges_equals_forming_every_score(name: str) -> None:
    generator = torch.Generator().manual_seed(0)
    heads, nodes, depth = 3, 40, 5
    score = scores(heads, depth, generator)[name]
    x = torch.randn(2, heads, nodes, depth, generator=generator)
    edge_index = torch.randint(nodes - 1, (2, 90), generator=generator)  # the last has no edge
    mask = headloom.neighbours(edge_index, nodes=nodes)
    call = {"mask": mask, "score": score}
    leaves = [x.clone().requires_grad_() for _ in range(3)]
    output = headloom.attention(*leaves, **call)
    gradients = torch.autograd.grad(output.square().sum(), leaves)
    dense = [x.clone().requires_grad_() for _ in range(3)]
    expected = headloom.attention(*dense, **call, backend="torch")
    torch.testing.assert_close(output, expected, rtol=1e-4, atol=1e-5)
    for mine, theirs in zip(
        gradients, torch.autograd.grad(expected.square().sum(), dense), strict=True
    ):
        torch.testing.assert_close(mine, theirs, rtol=1e-3, atol=1e-4)
    both = [
        headloom.attend(x, x, x, **call, keep=headloom.Top(4), backend=b)
        for b in ("native", "torch")
    ]
    (_, mine_graph), (_, their_graph) = both
    assert torch.equal(mine_graph.keys, their_graph.keys)
    assert torch.equal(mine_graph.count, their_graph.count)
    for field in ("scores", "weights", "lse", "entropy", "rest"):
        torch.testing.assert_close(
            getattr(mine_graph, field), getattr(their_graph, field), rtol=1e-4, atol=1e-5
        )


def test_the_graph_of_a_call_is_differentiable() -> None:
    generator = torch.Generator().manual_seed(0)
    x = torch.randn(2, 20, 4, generator=generator)
    mask = headloom.neighbours(torch.randint(20, (2, 30), generator=generator), nodes=20)

    def entropy_gradient(backend: Any) -> Tensor:
        leaf = x.clone().requires_grad_()
        _, graph = headloom.attend(
            leaf, leaf, leaf, mask=mask, keep=headloom.Top(2), backend=backend
        )
        total = graph.entropy.sum() + graph.weights.square().sum() + graph.rest.sum()
        return torch.autograd.grad(total, leaf)[0]

    torch.testing.assert_close(entropy_gradient(None), entropy_gradient("torch"))


@pytest.mark.parametrize("nodes", [0, 3])
def test_a_graph_without_edges_has_gradients_of_zero(nodes: int) -> None:
    mask = headloom.neighbours(torch.zeros(2, 0, dtype=torch.int64), nodes=nodes)
    tokens = torch.randn(2, nodes, 4, requires_grad=True)
    _, graph = headloom.attend(tokens, tokens, tokens, mask=mask, keep=headloom.Top(2))
    for tensor in (graph.scores.exp(), graph.weights, graph.rest, graph.entropy):
        (gradient,) = torch.autograd.grad(tensor.sum(), tokens, retain_graph=True)
        assert not gradient.any()


def test_dropout_leaves_each_weight_with_its_probability() -> None:
    torch.manual_seed(0)
    x = torch.zeros(1, 2000, 4)
    values = torch.ones(1, 2000, 1)
    mask = headloom.neighbours(torch.eye(2000))
    output = headloom.attention(x, x, values, mask=mask, dropout=0.25)
    kept = output > 0
    assert 0.7 < float(kept.float().mean()) < 0.8
    torch.testing.assert_close(output[kept], torch.full_like(output[kept], 1 / 0.75))


@pytest.mark.parametrize("name", ["dot", "bilinear", "GAT", "GATv2"])
def test_a_batch_of_no_inputs(name: str) -> None:
    score = scores(2, 5, torch.Generator().manual_seed(0))[name]
    mask, x = headloom.neighbours(torch.eye(40)), torch.zeros(0, 2, 40, 5)
    assert headloom.attention(x, x, x, mask=mask, score=score).shape == (0, 2, 40, 5)
    output, graph = headloom.attend(x, x, x, mask=mask, score=score, keep=headloom.Top(3))
    assert output.shape == (0, 2, 40, 5)
    assert graph.shape == (0, 2, 40, 40)
