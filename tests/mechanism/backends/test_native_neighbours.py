"""The kernels over neighbours, and the formulas in torch, against a dense formula in float64."""

from __future__ import annotations

import math
from dataclasses import dataclass
from typing import Any

import pytest
import torch
from hypothesis import assume, given, settings
from hypothesis import strategies as st
from torch import Tensor

from headloom.mechanism import neighbour_call as by_torch
from headloom.mechanism import neighbours
from headloom.mechanism.backends import compiled
from headloom.mechanism.backends import native_neighbours as native
from headloom.mechanism.neighbour_call import Edges, NeighbourCall, NeighbourScore
from headloom.mechanism.neighbours import neighbour_attention, neighbour_graph, neighbour_weights

INSTRUCTION_SETS = compiled.instruction_sets()
needs_kernels = pytest.mark.skipif(not INSTRUCTION_SETS, reason="built without native kernels")


def random_parts(
    kind: int, nodes: tuple[int, int], heads: int, depths: tuple[int, int], edges: int,
    options: dict[str, bool], generator: torch.Generator,
) -> dict[str, Tensor]:  # fmt: skip
    """Every tensor of a call, in float64."""

    def random(*shape: int) -> Tensor:
        return torch.randn(*shape, dtype=torch.float64, generator=generator)

    (targets, sources), (depth, value_depth) = nodes, depths
    parts = {"values": random(sources, heads, value_depth)}
    if kind == 0:
        parts |= {"target_terms": random(targets, heads), "source_terms": random(sources, heads)}
    else:
        parts["queries"] = random(targets, heads, depth)
        parts["keys"] = random(sources, heads, depth)
    if kind == 1:
        parts["vector"] = random(heads, depth)
        if options["features"]:
            parts["edge_rows"] = random(edges, heads, depth)
    if options["terms"]:
        parts["edge_terms"] = random(edges, heads)
    return parts


@dataclass(repr=False)
class Case:
    """Kind, edge_index, nodes, tensors in float64, dropout's factors, gradient, slope."""

    kind: int
    edge_index: Tensor
    nodes: tuple[int, int]
    parts: dict[str, Tensor]
    kept: Tensor | None
    by_output: Tensor
    slope: float

    def __repr__(self) -> str:
        return (
            f"Case(kind={self.kind}, nodes={self.nodes}, parts={list(self.parts)}, "
            f"slope={self.slope})"
        )


@st.composite
def calls(draw: st.DrawFn) -> Case:
    """Around the sizes of vectors and blocks."""
    generator = torch.Generator().manual_seed(draw(st.integers(0, 2**20), label="seed"))
    kind = draw(st.sampled_from((0, 1, 2)), label="kind")
    nodes = draw(st.integers(1, 20), label="targets"), draw(st.integers(1, 20), label="sources")
    heads = draw(st.sampled_from((1, 2, 3, 8, 16, 17)), label="heads")
    depth = draw(st.sampled_from((1, 7, 8, 16, 32, 64)), label="depth")
    value_depth = depth if draw(st.booleans(), label="one depth") else 5
    edges = draw(st.sampled_from((0, 1, 30, 150)), label="edges")
    ends = [torch.randint(count, (edges,), generator=generator) for count in nodes]
    if draw(st.booleans(), label="a hub"):  # a row, and a column, of more edges than a block
        ends = [end * (torch.rand(edges, generator=generator) < 0.3) for end in ends]
    options = {name: draw(st.booleans(), label=name) for name in ("features", "terms")}
    parts = random_parts(kind, nodes, heads, (depth, value_depth), edges, options, generator)
    kept = None
    if draw(st.booleans(), label="dropout"):
        kept = torch.rand(edges, heads, generator=generator) < 0.6
    by_output = torch.randn(nodes[0], heads, value_depth, dtype=torch.float64, generator=generator)
    slope = draw(st.sampled_from((0.2, 0.0, -0.1, -1.0)), label="slope")
    return Case(kind, torch.stack((ends[1], ends[0])), nodes, parts, kept, by_output, slope)


def sums(kind: int, edge_index: Tensor, parts: dict[str, Tensor]) -> Tensor:
    """What a LeakyReLU takes of each edge, or the products of queries and keys."""
    j, i = edge_index
    if kind == 0:
        term = parts.get("edge_terms", torch.zeros(()))
        return parts["target_terms"][i] + parts["source_terms"][j] + term
    q, k = parts["queries"][i], parts["keys"][j]
    return q * k if kind == 2 else q + k + parts.get("edge_rows", torch.zeros(()))


def dense_output(
    kind: int, edge_index: Tensor, targets: int, parts: dict[str, Tensor], slope: float,
    scale: float, factors: Tensor | None,
) -> Tensor:  # fmt: skip
    """The output, (targets, heads, depth), row by row; factors: of weights, after the softmax."""
    z, values = sums(kind, edge_index, parts), parts["values"]
    leaky = torch.where(z > 0, z, slope * z)
    scores = leaky if kind == 0 else (scale * z if kind == 2 else parts["vector"] * leaky).sum(-1)
    if kind != 0:
        scores = scores + parts.get("edge_terms", torch.zeros(()))
    rows = []
    for i in range(targets):
        mine = edge_index[1] == i
        weights = scores[mine].softmax(0) * (1 if factors is None else factors[mine])
        rows.append(torch.einsum("nh,nhd->hd", weights, values[edge_index[0, mine]]))
    return torch.stack(rows)


def with_gradients(output: Tensor, by_output: Tensor, parts: dict[str, Tensor]) -> list[Tensor]:
    gradients: list[Tensor | None] = [None] * len(parts)
    if output.requires_grad:  # without an edge it need not
        gradients = list(
            torch.autograd.grad(
                output, list(parts.values()), by_output.to(output), allow_unused=True
            )
        )
    return [
        output.detach(),
        *(
            torch.zeros_like(part) if gradient is None else gradient
            for part, gradient in zip(parts.values(), gradients, strict=True)
        ),
    ]


def leaves(parts: dict[str, Tensor], dtype: torch.dtype) -> dict[str, Tensor]:
    return {name: part.to(dtype, copy=True).requires_grad_() for name, part in parts.items()}


@needs_kernels
@pytest.mark.parametrize("instruction_set", INSTRUCTION_SETS)
@settings(max_examples=40, deadline=None)
@given(case=calls())
def test_output_and_gradients_are_those_of_the_dense_formula(
    instruction_set: str, case: Case
) -> None:
    kind, edge_index, parts, kept, by_output = (
        case.kind, case.edge_index, case.parts, case.kept, case.by_output,
    )  # fmt: skip
    targets, sources = case.nodes
    # Nearer than the rounding of float32, one of the two may be on the other side of the kink.
    assume(kind == 2 or not (sums(kind, edge_index, parts).abs() <= 2e-6).any())
    edges = Edges.of_index(edge_index, targets, sources)
    factors = None if kept is None else edges.by_number(kept).double() / 0.6
    exact = leaves(parts, torch.float64)
    expected = with_gradients(
        dense_output(kind, edge_index, targets, exact, case.slope, 0.3, factors), by_output, exact
    )

    def run(dtype: torch.dtype, function: Any) -> list[Tensor]:
        own = leaves(parts, dtype)
        call = NeighbourCall(
            edges,
            NeighbourScore(kind),
            **own,
            slope=case.slope,
            scale=0.3,
            kept=kept,
            kept_factor=1 / 0.6,
        )
        return with_gradients(function(call), by_output, own)

    for mine, theirs in zip(run(torch.float64, by_torch.output), expected, strict=True):
        torch.testing.assert_close(mine, theirs, rtol=1e-10, atol=1e-10)
    if "edge_rows" in parts:
        return  # torch's alone
    with pytest.MonkeyPatch.context() as patch:
        patch.setattr(native, "INSTRUCTION_SET", instruction_set)
        for mine, theirs in zip(run(torch.float32, native.output), expected, strict=True):
            scale = 1 + float(theirs.abs().max()) if theirs.numel() else 1
            torch.testing.assert_close(mine.double(), theirs, rtol=1e-4, atol=1e-4 * scale)


@needs_kernels
@pytest.mark.parametrize("kind", [0, 1, 2])
def test_results_do_not_depend_on_the_number_of_threads(kind: int) -> None:
    generator = torch.Generator().manual_seed(0)
    edge_index = torch.randint(500, (2, 20_000), generator=generator)
    edges = Edges.of_index(edge_index, 500, 500)
    options = {"features": False, "terms": True}
    parts = random_parts(kind, (500, 500), 4, (8, 8), 20_000, options, generator)
    by_output = torch.randn(500, 4, 8, generator=generator)
    results, before = [], torch.get_num_threads()
    try:
        for threads in (1, 2, 3):
            torch.set_num_threads(threads)
            own = leaves(parts, torch.float32)
            call = NeighbourCall(edges, NeighbourScore(kind), **own)
            results.append(with_gradients(native.output(call), by_output, own))
    finally:
        torch.set_num_threads(before)
    for others in results[1:]:
        assert all(torch.equal(*pair) for pair in zip(results[0], others, strict=True))


@needs_kernels
@pytest.mark.parametrize("kind", [0, 1, 2])
def test_second_derivatives_are_those_of_the_formula(kind: int) -> None:
    generator = torch.Generator().manual_seed(1)
    edge_index = torch.randint(9, (2, 40), generator=generator)
    edges = Edges.of_index(edge_index, 9, 9)
    options = {"features": False, "terms": True}
    parts = random_parts(kind, (9, 9), 2, (4, 4), 40, options, generator)

    def penalty(function: Any, dtype: torch.dtype) -> tuple[Tensor, ...]:
        own = leaves(parts, dtype)
        output = function(NeighbourCall(edges, NeighbourScore(kind), **own))
        first = torch.autograd.grad(output.square().sum(), list(own.values()), create_graph=True)
        total = torch.stack([gradient.square().sum() for gradient in first]).sum()
        return torch.autograd.grad(total, list(own.values()))

    exact = penalty(lambda call: by_torch.output(call), torch.float64)
    for mine, theirs in zip(penalty(native.output, torch.float32), exact, strict=True):
        torch.testing.assert_close(
            mine.double(), theirs, rtol=1e-3, atol=1e-4 * float(theirs.abs().max())
        )


@needs_kernels
@pytest.mark.parametrize("size", [1e4, 1e30])
def test_huge_scores_are_exact(size: float) -> None:
    edges = Edges.of_index(torch.tensor([[0, 1, 2], [0, 0, 0]]), 1, 3)
    values = torch.eye(3)[:, None].requires_grad_()
    terms = torch.tensor([[size], [size], [-size]], requires_grad=True)
    call = NeighbourCall(
        edges, NeighbourScore.ADDITIVE, values, target_terms=torch.zeros(1, 1), source_terms=terms
    )
    output = native.output(call)
    assert output[0, 0].tolist() == [0.5, 0.5, 0.0]
    output[0, 0, 0].backward()
    assert terms.grad is not None and terms.grad[:, 0].tolist() == [0.25, -0.25, 0.0]


@needs_kernels
def test_an_edge_of_score_minus_infinity_does_not_count() -> None:
    edges = Edges.of_index(torch.tensor([[0, 1, 0], [0, 0, 1]]), 3, 2)
    terms = torch.tensor([[0.0], [-torch.inf], [-torch.inf]])
    call = NeighbourCall(
        edges,
        NeighbourScore.DOT,
        torch.tensor([[[2.0]], [[3.0]]]),
        queries=torch.ones(3, 1, 1),
        keys=torch.ones(2, 1, 1),
        edge_terms=terms,
    )
    for output in (native.output(call), by_torch.output(call)):
        assert output.flatten().tolist() == [2.0, 0.0, 0.0]  # row 2 has no edge at all
    graph = neighbour_graph(call)
    assert graph.count.tolist() == [[1, 0, 0]]
    assert graph.keys[0].tolist() == [[0, -1], [-1, -1], [-1, -1]]
    assert graph.rest.tolist() == [[0, 0, 0]]


def test_the_graph_keeps_every_edge_strongest_first() -> None:
    # Row 0 has three edges, two of one score: the lower key goes first. Row 1 has none.
    edges = Edges.of_index(torch.tensor([[2, 1, 0], [0, 0, 0]]), 2, 3)
    terms = torch.tensor([[1.0], [1.0], [2.0]])
    call = NeighbourCall(
        edges, NeighbourScore.ADDITIVE, torch.zeros(3, 1, 1),
        target_terms=torch.zeros(2, 1), source_terms=terms,
    )  # fmt: skip
    graph = neighbour_graph(call)
    assert graph.keys.tolist() == [[[2, 0, 1], [-1, -1, -1]]]
    assert graph.shape == (1, 2, 3)
    expected = torch.tensor([2.0, 1.0, 1.0]).softmax(0)
    torch.testing.assert_close(graph.weights[0, 0], expected)
    assert graph.lse[0].tolist() == pytest.approx([torch.logsumexp(terms, 0).item(), -torch.inf])
    assert graph.entropy[0, 0].item() == pytest.approx(-(expected * expected.log()).sum().item())
    assert graph.rest.tolist() == [[0.0, 0.0]]
    assert neighbour_graph(call, 1).rest[0, 0].item() == pytest.approx(1 - expected[0].item())
    weights = neighbour_weights(call)  # in the caller's order
    torch.testing.assert_close(weights[:, 0], expected)


@needs_kernels
@pytest.mark.parametrize("dtype", [torch.float32, torch.float64, torch.bfloat16])
def test_the_kernels_have_what_they_serve_and_torch_the_rest(
    dtype: torch.dtype, monkeypatch: pytest.MonkeyPatch
) -> None:
    """Row 0 weighs 2 and 4 by 1/4 and 3/4, row 1 sees 4 alone."""
    ran: list[str] = []
    for name, module, what in (("native", native, "output"), ("torch", neighbours, "by_torch")):
        real = getattr(module, what)
        monkeypatch.setattr(
            module, what, lambda call, name=name, real=real: ran.append(name) or real(call)
        )
    edges = Edges.of_index(torch.tensor([[0, 1, 1], [0, 0, 1]]), 2, 2)
    call = NeighbourCall(
        edges, NeighbourScore.ADDITIVE, torch.tensor([[[2.0]], [[4.0]]], dtype=dtype),
        target_terms=torch.zeros(2, 1, dtype=dtype),
        source_terms=torch.tensor([[0.0], [math.log(3)]], dtype=dtype),
    )  # fmt: skip
    output = neighbour_attention(call)
    assert output.dtype == dtype
    close = 1e-2 if dtype == torch.bfloat16 else 1e-6
    assert output.flatten().tolist() == pytest.approx([3.5, 4.0], rel=close)
    assert ran == ["torch" if dtype == torch.float64 else "native"]
