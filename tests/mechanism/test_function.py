"""attention() and attend() against the reference, over every option of a call."""

from __future__ import annotations

import math
from collections.abc import Callable
from dataclasses import dataclass, field
from typing import Any
from unittest.mock import patch

import torch
from hypothesis import given, settings
from hypothesis import strategies as st
from torch import Tensor

import headloom
from headloom.mechanism.backends import torch_blocks
from headloom.mechanism.reference import positions
from headloom.mechanism.reference import scores as formulas
from headloom.mechanism.reference.call import Attended, scores_of_heads
from headloom.mechanism.reference.call import attend as reference_attend

MASKS = (
    "none", "causal", "window", "lengths", "left padding", "neighbours", "bool 2d", "bool 3d",
    "bool 4d", "causal & padding", "window | neighbours", "nothing allowed",
)  # fmt: skip
RELATIVES = ("none", "shaw", "shaw per head", "shaw keys only", "alibi", "buckets", "one-way")


def scores(random: Any, heads: int, depth: int) -> dict[str, Callable[[], tuple[Any, Any]]]:
    """Each score of headloom, and its formula for the queries and keys of a head."""

    def bilinear(*shape: int) -> tuple[Any, Any]:
        A = random(*shape, depth, depth)
        own = A.double().expand(heads, depth, depth)
        return headloom.Bilinear(A), lambda q, k, head: formulas.bilinear(q, k, own[head])

    def symmetric() -> tuple[Any, Any]:
        A = random(depth, depth)
        score = headloom.Bilinear(A, symmetric=True)
        return score, lambda q, k, head: formulas.symmetric_bilinear(q, k, A.double())

    def additive() -> tuple[Any, Any]:
        W, U, v = random(3, depth), random(3, depth), random(3)
        exact = W.double(), U.double(), v.double()
        return headloom.Additive(W, U, v), lambda q, k, head: formulas.additive(q, k, *exact)

    def graph() -> tuple[Any, Any]:
        a_1, a_2 = random(heads, depth), random(heads, depth)
        both = torch.cat((a_1, a_2), 1).double()
        score = headloom.GraphAttention(a_1, a_2)
        return score, lambda q, k, head: formulas.graph_attention(q, k, both[head])

    def graph_v2() -> tuple[Any, Any]:
        a = random(heads, depth)
        score = headloom.GraphAttentionV2(a)
        return score, lambda q, k, head: formulas.graph_attention_v2(q, k, a[head].double())

    def dot(q: Tensor, k: Tensor, head: int) -> Tensor:
        return formulas.dot(q, k)

    return {
        "default": lambda: (None, dot), "dot": lambda: (headloom.Dot(), dot),
        "bilinear": bilinear, "bilinear per head": lambda: bilinear(heads),
        "bilinear symmetric": symmetric, "additive": additive,
        "graph attention": graph, "graph attention v2": graph_v2,
    }  # fmt: skip


@dataclass(repr=False)
class Case:
    """One attention call, in headloom's words and in those of the reference."""

    queries: Tensor
    keys: Tensor
    values: Tensor
    options: dict[str, Any]
    #: Everything that has a gradient.
    leaves: list[Tensor]
    reference: dict[str, Any]
    pair_scores: Any
    k: int
    batched: bool
    cells: int
    description: str = field(default="")

    def __repr__(self) -> str:
        return self.description

    def expected(self) -> Attended:
        """What the reference says, in float64."""
        queries, keys, values = (
            tensor if self.batched else tensor[None]
            for tensor in (self.queries, self.keys, self.values)
        )
        raw = scores_of_heads(queries.double(), keys.double(), self.pair_scores)
        return reference_attend(raw, values.double(), k=self.k, **self.reference)

    def inputs(self) -> tuple[Tensor, Tensor, Tensor]:
        return self.queries, self.keys, self.values

    def graph(self) -> tuple[Tensor, headloom.AttentionGraph]:
        output, graph = headloom.attend(*self.inputs(), keep=headloom.Top(self.k), **self.options)
        if self.batched:
            return output, graph
        return output[None], graph._map(lambda tensor: tensor[None])


@st.composite
def cases(draw: st.DrawFn, dtype: torch.dtype = torch.float64, sizes: bool = False) -> Case:
    """Calls of every kind; `sizes` draws huge and tiny scores too."""
    seed = draw(st.integers(0, 2**20), label="seed")
    generator = torch.Generator().manual_seed(seed)
    leaves: list[Tensor] = []

    def random(*shape: int, factor: float = 1.0) -> Tensor:
        tensor = torch.randn(*shape, dtype=torch.float64, generator=generator) * factor
        leaves.append(tensor.to(dtype).requires_grad_())
        return leaves[-1]

    def coin(*shape: int) -> Tensor:
        return torch.rand(*shape, generator=generator) < 0.6

    batched = draw(st.booleans(), label="batched")
    batch = draw(st.integers(1, 2), label="batch") if batched else 1
    kv_heads = draw(st.integers(1, 2), label="kv_heads")
    heads = kv_heads * draw(st.integers(1, 2), label="groups")
    rows, length = draw(st.integers(0, 5), label="queries"), draw(st.integers(0, 5), label="keys")
    depth, value_depth = draw(st.integers(1, 4)), draw(st.integers(1, 4))
    kinds = scores(random, heads, depth)
    kind = draw(st.sampled_from(list(kinds)), label="score")
    mask_kind = draw(st.sampled_from(MASKS), label="mask")
    relative_kind = draw(st.sampled_from(RELATIVES), label="relative")
    size = draw(st.sampled_from((1e4, 1e-4, 1.0)), label="size") if sizes else 1.0

    queries = random(batch, heads, rows, depth, factor=size)
    keys = random(batch, kv_heads, length, depth)
    values = random(batch, kv_heads, length, value_depth)
    options: dict[str, Any] = {}
    reference: dict[str, Any] = {}

    options["score"], pair_scores = kinds[kind]()
    scale = 1 / math.sqrt(depth) if kind == "default" else 1.0
    if draw(st.booleans(), label="own scale"):
        scale = options["scale"] = draw(st.sampled_from((0.0, 0.3, -1.0)))
    reference["scale"] = scale

    offset = draw(st.integers(-1, 2), label="offset")
    positions_of_pairs = [[(i + offset, j) for j in range(length)] for i in range(rows)]

    def rule(allow: Any) -> Tensor:
        pairs = [[bool(allow(i, j)) for i, j in row] for row in positions_of_pairs]
        return torch.tensor(pairs, dtype=torch.bool).reshape(rows, length)

    lengths = torch.randint(0, length + 1, (batch,), generator=generator)
    real = torch.stack([torch.arange(length) < n for n in lengths])[:, None, None, :]
    adjacency = coin(rows, length)
    left, right = draw(st.integers(0, 3)), draw(st.one_of(st.none(), st.integers(0, 3)))
    near = rule(lambda i, j: i - left <= j and (right is None or j <= i + right))
    before = rule(lambda i, j: j <= i)
    chosen: dict[str, tuple[Any, Any]] = {
        "none": (None, None),
        "causal": (headloom.causal(offset), before),
        "window": (headloom.window(left, right, offset), near),
        "lengths": (headloom.padding(lengths), real),
        "left padding": (headloom.padding(real[:, 0, 0].flip(1)), real.flip(3)),
        "neighbours": (headloom.neighbours(adjacency), adjacency),
        "bool 2d": (adjacency, adjacency),
        "causal & padding": (headloom.causal(offset) & headloom.padding(lengths), before & real),
        "window | neighbours": (
            headloom.window(left, right, offset) | headloom.neighbours(adjacency),
            near | adjacency,
        ),
        "nothing allowed": (headloom.padding(0), torch.zeros(rows, length, dtype=torch.bool)),
    }
    if mask_kind in ("bool 3d", "bool 4d"):
        lead = (heads,) if mask_kind == "bool 3d" else (batch, 1)
        options["mask"] = reference["allowed"] = coin(*lead, rows, length)
    else:
        options["mask"], reference["allowed"] = chosen[mask_kind]

    if relative_kind.startswith("shaw"):
        clip = draw(st.integers(0, 2), label="clip")
        table_shape = (heads, 2 * clip + 1) if relative_kind == "shaw per head" else (2 * clip + 1,)
        key_table = random(*table_shape, depth)
        value_table = None
        if relative_kind != "shaw keys only":
            value_table = random(*table_shape, value_depth)
        options["relative"] = headloom.Shaw(key_table, value_table, offset)

        def of_head(table: Tensor, head: int) -> Tensor:
            own = table[head] if table.ndim == 3 else table
            return positions.shaw_embeddings(own.double(), rows, length, offset)

        a_K = torch.stack([of_head(key_table, head) for head in range(heads)])
        full = queries.double()
        reference["relative_scores"] = torch.einsum("bhid,hijd->bhij", full, a_K)
        if value_table is not None:
            reference["relative_values"] = torch.stack(
                [of_head(value_table, head) for head in range(heads)]
            )
    elif relative_kind == "alibi":
        slopes = random(heads)
        options["relative"] = headloom.ALiBi(slopes, offset)
        reference["relative_bias"] = positions.alibi_bias(slopes.double(), rows, length, offset)
    elif relative_kind in ("buckets", "one-way"):
        table, both = random(8, heads), relative_kind == "buckets"
        options["relative"] = headloom.Buckets(table, both, max_distance=6, offset=offset)
        reference["relative_bias"] = positions.bucket_bias(
            table.double(), rows, length, bidirectional=both, max_distance=6, offset=offset
        )

    if draw(st.booleans(), label="bias"):
        shapes = [(rows, length), (heads, 1, length), (batch, 1, rows, 1)]
        bias = random(*draw(st.sampled_from(shapes), label="bias shape"))
        options["bias"], reference["bias"] = bias, bias.double()
    if draw(st.booleans(), label="softcap"):
        options["softcap"] = reference["softcap"] = 2.5
    if draw(st.booleans(), label="sinks"):
        sinks = random(heads)
        options["sinks"], reference["sinks"] = sinks, sinks.double()

    cells = draw(st.sampled_from((torch_blocks.BLOCK_CELLS, 1, 40)), label="cells in a block")
    k = draw(st.integers(0, 7), label="k")
    if not batched:
        queries, keys, values = queries[0], keys[0], values[0]
    description = (
        f"{kind}, mask {mask_kind}, relative {relative_kind}, size {size}, k {k}, cells {cells}, "
        f"seed {seed}, {tuple(queries.shape)} {tuple(keys.shape)} {tuple(values.shape)}, "
        f"{sorted(options)}"
    )
    return Case(
        queries, keys, values, options, leaves, reference, pair_scores, k, batched, cells,
        description,
    )  # fmt: skip


def check_against_reference(case: Case, tolerance: float) -> None:
    expected = case.expected()

    def close(ours: Tensor, theirs: Tensor, what: str) -> None:
        assert ours.shape == theirs.shape, what
        torch.testing.assert_close(
            ours.detach().double(), theirs.detach(), rtol=tolerance, atol=tolerance,
            msg=lambda text: f"{what}: {text}",
        )  # fmt: skip

    with patch.object(torch_blocks, "BLOCK_CELLS", case.cells):
        plain = headloom.attention(*case.inputs(), **case.options)
        output, graph = case.graph()
        dense_output, weights = headloom.attend(*case.inputs(), keep=headloom.All(), **case.options)
    if not case.batched:
        plain, dense_output, weights = plain[None], dense_output[None], weights[None]

    assert plain.dtype == output.dtype == case.queries.dtype
    close(plain, expected.output, "attention")
    close(output, expected.output, "attend")
    close(dense_output, expected.output, "attend, All")
    close(weights, expected.weights, "weights")
    for name in ("lse", "entropy", "rest"):
        close(getattr(graph, name), getattr(expected, name), name)
    for name in ("scores", "weights"):
        close(getattr(graph, name), getattr(expected, f"kept_{name}"), f"kept {name}")
    assert torch.equal(graph.count.long(), expected.count)
    assert graph.shape == tuple(expected.scores.shape)

    # The keys themselves. Two scores that differ by a rounding error may change places.
    kept = graph.keys >= 0
    assert torch.equal(kept, expected.kept_keys >= 0)
    if expected.scores.shape[-1]:
        there = expected.scores.gather(-1, graph.keys.clamp(min=0).long())
        close(there.masked_fill(~kept, -math.inf), expected.kept_scores, "scores at kept keys")
    for row in graph.keys.flatten(0, 2):
        chosen = row[row >= 0].tolist()
        assert len(set(chosen)) == len(chosen)

    if "sinks" not in case.options:
        mass = (expected.count > 0).double()
        torch.testing.assert_close(weights.detach().double().sum(-1), mass, rtol=0, atol=1e-5)


@settings(max_examples=150, deadline=None)
@given(cases(sizes=True))
def test_every_call_equals_the_reference_in_float64(case: Case) -> None:
    check_against_reference(case, 1e-9)


@settings(max_examples=50, deadline=None)
@given(cases(dtype=torch.float32))
def test_every_call_equals_the_reference_in_float32(case: Case) -> None:
    check_against_reference(case, 2e-5)


@settings(max_examples=80, deadline=None)
@given(cases())
def test_gradients_equal_those_of_the_reference(case: Case) -> None:
    expected = case.expected()
    generator = torch.Generator().manual_seed(1)

    def objective(parts: list[Tensor]) -> Tensor:
        total = torch.zeros((), dtype=torch.float64)
        for part in parts:
            finite = part.masked_fill(part == -math.inf, 0)
            direction = torch.randn(part.shape, dtype=torch.float64, generator=generator)
            total = total + (finite * direction).sum()
        return total

    theirs = objective(
        [
            *(expected.output, expected.lse, expected.entropy, expected.kept_scores),
            *(expected.kept_weights, expected.rest, expected.output, expected.weights),
        ]
    )
    generator.manual_seed(1)
    with patch.object(torch_blocks, "BLOCK_CELLS", case.cells):
        output, graph = case.graph()
        plain = headloom.attention(*case.inputs(), **case.options)
        _, weights = headloom.attend(*case.inputs(), keep=headloom.All(), **case.options)
        if not case.batched:
            plain, weights = plain[None], weights[None]
        ours = objective(
            [
                *(output, graph.lse, graph.entropy, graph.scores),
                *(graph.weights, graph.rest, plain, weights),
            ]
        )
        torch.testing.assert_close(ours, theirs, rtol=1e-9, atol=1e-9)
        our_gradients = torch.autograd.grad(ours, case.leaves, allow_unused=True)
    their_gradients = torch.autograd.grad(theirs, case.leaves, allow_unused=True)
    for leaf, our, their in zip(case.leaves, our_gradients, their_gradients, strict=True):
        zero = torch.zeros_like(leaf)
        torch.testing.assert_close(
            zero if our is None else our, zero if their is None else their, rtol=1e-7, atol=1e-8
        )


@settings(max_examples=60, deadline=None)
@given(cases(), st.sampled_from(("output", "lse", "entropy", "scores", "weights", "rest")))
def test_gradients_of_one_result_do_not_depend_on_blocks(case: Case, name: str) -> None:
    """A loss may use one result alone; hidden rows and keys leave no NaN behind."""
    gradients = []
    for cells in (torch_blocks.BLOCK_CELLS, 1):
        with patch.object(torch_blocks, "BLOCK_CELLS", cells):
            output, graph = case.graph()
            result = output if name == "output" else getattr(graph, name)
            loss = result.masked_fill(result == -math.inf, 0).square().sum()
            gradients.append(torch.autograd.grad(loss, case.leaves, allow_unused=True))
    for leaf, whole, blocks in zip(case.leaves, *gradients, strict=True):
        whole, blocks = (torch.zeros_like(leaf) if g is None else g for g in (whole, blocks))
        assert bool(whole.isfinite().all())
        torch.testing.assert_close(blocks, whole, rtol=1e-9, atol=1e-9)
