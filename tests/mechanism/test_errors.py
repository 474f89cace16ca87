"""Errors of attention calls: one line, which names the operation and the remedy.

Above all the inputs that would otherwise give other numbers in silence.
"""

from __future__ import annotations

from collections.abc import Callable
from typing import Any

import pytest
import torch
from torch import nn, zeros

import headloom
from headloom.mechanism.multihead import MultiHeadAttention

untyped: Any = headloom
QUERIES, KEYS, VALUES = (2, 4, 5, 8), (2, 2, 7, 8), (2, 2, 7, 3)


def call(
    queries: tuple[int, ...] = QUERIES,
    keys: tuple[int, ...] = KEYS,
    values: tuple[int, ...] = VALUES,
    **options: object,
) -> object:
    return untyped.attention(zeros(*queries), zeros(*keys), zeros(*values), **options)


def attend(**options: object) -> Any:
    return untyped.attend(*[zeros(1, 3, 4)] * 3, **options)


def batch_of_graphs() -> headloom.AttentionGraph:
    tokens = zeros(5, 2, 3, 4)
    return headloom.attend(tokens, tokens, tokens)[1]


def matrix(*shape: int, **options: Any) -> headloom.AttentionMatrix:
    return headloom.AttentionMatrix(zeros(*shape), zeros(*shape), **options)


def layer(**options: Any) -> MultiHeadAttention:
    return MultiHeadAttention(8, 2, **options)


def compiled(lengths: list[int]) -> object:
    """A program that is given lengths: there are none to look at while it is compiled."""

    def padded(real: torch.Tensor) -> torch.Tensor:
        return headloom.attention(*[zeros(2, 2, 7, 8)] * 3, mask=headloom.padding(real))

    return torch.compile(padded, fullgraph=True, backend="eager")(torch.tensor(lengths))


class Own(headloom.Score):
    def __call__(self, queries: torch.Tensor, keys: torch.Tensor) -> torch.Tensor:
        return queries.sum(-1)


#: What is done; what the message begins with; what must be in it.
CASES: list[tuple[Callable[[], object], str, str]] = [
    # queries, keys and values
    (lambda: call((5, 8)), "attention", "(batch, heads, positions, depth)"),
    (lambda: untyped.attention(None, zeros(1), zeros(1)), "attention", "a tensor"),
    (lambda: untyped.attention(*[zeros(1, 2, 3).int()] * 3), "attention", "queries.float()"),
    (lambda: untyped.attend(zeros(1, 2, 3), *[zeros(1, 2, 3).double()] * 2), "attend", "one type"),
    (
        lambda: headloom.attention(zeros(1, 2, 3), *[zeros(1, 2, 3, device="meta")] * 2),
        "attention",
        "one device",
    ),
    (lambda: untyped.attention(*[zeros(1, 2, 3).to_sparse()] * 3), "attention", "a dense tensor"),
    (lambda: call((3, 4, 5, 8)), "attention", "same batch"),
    (lambda: call(values=(2, 1, 7, 3)), "attention", "the same number"),
    (lambda: call((2, 3, 5, 8)), "attention", "must divide"),
    (lambda: call(keys=(2, 0, 7, 8), values=(2, 0, 7, 3)), "attention", "must divide"),
    (lambda: call(values=(2, 2, 6, 3)), "attention", "one value"),
    (lambda: call((2, 4, 5, 6)), "attention", "depth 6, keys 8, from (2, 4, 5, 6)"),
    # what else a call takes
    (lambda: call(bias=zeros(5, 7).bool()), "attention", "mask="),
    (lambda: call(bias=zeros(5, 6)), "attention", "(2, 4, 5, 7)"),
    (lambda: call(bias=zeros(1, 2, 4, 5, 7)), "attention", "broadcast"),
    (lambda: call(bias=zeros(5, 7, device="meta")), "attention", "one device"),
    (lambda: call(bias=zeros(5, 7).to(torch.complex64)), "attention", "real numbers"),
    (lambda: call(sinks=zeros(3)), "attention", "(4,)"),
    (lambda: call(softcap=0.0), "attention", "above 0"),
    (lambda: call(softcap=float("nan")), "attention", "finite number"),
    (lambda: call(scale=float("inf")), "attention", "finite number"),
    (lambda: call(scale=1e39), "attention", "float64"),
    (lambda: call(dropout=1.0), "attention", "from 0 to below 1"),
    (lambda: call(score=headloom.Dot), "attention", "headloom.Dot()"),
    (lambda: call(relative="alibi"), "attention", "headloom.ALiBi"),
    (lambda: call(backend="cuda"), "attention", '"native"'),
    (lambda: call(backend="triton"), "attention", 'backend="torch"'),
    (lambda: call(backend="native", score=Own()), "attention", 'backend="torch"'),
    (lambda: attend(keep=headloom.All(), backend="triton"), "attend", 'backend="torch"'),
    (lambda: attend(keep="most"), "attend", '"all"'),
    (lambda: attend(keep=True), "attend", "a number of edges, as 32"),
    (lambda: attend(received=64), "attend", "headloom.LastQueries(n)"),
    (lambda: attend(keep=headloom.All(), received=True), "attend", "weights.sum(-2)"),
    (lambda: untyped.LastQueries(0), "LastQueries", "1 or more"),
    (lambda: untyped.Top(True), "Top", "whole number"),
    (lambda: untyped.Top(2.5), "Top", "whole number"),
    # masks
    (lambda: call(mask=zeros(5, 7)), "mask", "bias="),
    (lambda: call(mask=[[True]]), "mask", "bool tensor"),
    (lambda: call(mask="casual"), "mask", '"causal"'),
    (lambda: call(mask=zeros(7).bool()), "mask", "(queries, keys)"),
    (lambda: call(mask=zeros(2, 7).bool()), "mask", "headloom.padding"),
    (lambda: untyped.window(-1, 0), "window", "0 or more"),
    (lambda: untyped.causal(0.5), "causal", "whole number"),
    (lambda: call(mask=headloom.padding([1, 2, 3])), "padding", "for each"),
    (lambda: call(mask=headloom.padding(zeros(2, 6).bool())), "padding", "column"),
    (lambda: call(mask=headloom.padding([8, 1])), "padding", "or fewer"),
    (lambda: headloom.padding([2, -1]), "padding", "0 or more"),
    (lambda: untyped.padding([2.0]), "padding", "integers"),
    (lambda: compiled([8, 7]), "mask", "from 0 to 7"),
    (lambda: untyped.packed([1.5]), "packed", "whole numbers"),
    (lambda: headloom.packed([1], [1, 2]), "packed", "Give both for each sequence"),
    (lambda: call(mask=headloom.packed([4], [7])), "ranges", "must fill the call"),
    (
        lambda: call((1, 2, 9, 8), *[(1, 2, 9, 8)] * 2, mask=headloom.packed([4, 5], [8, 9])),
        "packed",
        "must fill the call",
    ),
    # scores
    (lambda: call(score=headloom.Bilinear(zeros(8, 8).double())), "Bilinear", "of their type"),
    (lambda: call(score=headloom.Bilinear(zeros(3, 8, 8))), "Bilinear", "each of 4"),
    (lambda: call(score=headloom.Bilinear(zeros(8, 7), True)), "Bilinear", "a square one"),
    (lambda: call(score=headloom.Bilinear(zeros(8, 7))), "Bilinear", "(query depth, key depth)"),
    (
        lambda: call(score=headloom.Additive(zeros(3, 8), zeros(3, 7), zeros(3))),
        "Additive",
        "(hidden, key depth)",
    ),
    (
        lambda: call(score=headloom.GraphAttention(zeros(7), zeros(8))),
        "GraphAttention",
        "(heads, depth)",
    ),
    (
        lambda: call(score=headloom.GraphAttentionV2(zeros(7))),
        "GraphAttentionV2",
        "(heads, depth)",
    ),
    (lambda: call(score=Own()), "Own", "one for each query and key"),
    # positions
    (lambda: headloom.sinusoidal(4, 3), "sinusoidal", "pairs"),
    (lambda: headloom.rotary(zeros(4, 3)), "rotary", "pairs"),
    (lambda: headloom.rotary(zeros(4, 4), dims=6), "rotary", "the depth, 4"),
    (lambda: headloom.rotary(zeros(4, 4), base=0), "rotary", "above 0"),
    (lambda: headloom.RotaryScaling("linear", 0.5), "RotaryScaling", "1 or more"),
    (lambda: headloom.RotaryScaling("linear", 2, slow=1), "RotaryScaling", "which has none"),
    (lambda: headloom.RotaryScaling("yarn", 2), "RotaryScaling", "original_length="),
    (lambda: call(relative=headloom.Shaw(zeros(3, 7))), "Shaw", "(2 clip + 1, 8)"),
    (lambda: call(relative=headloom.Shaw(zeros(4, 8))), "Shaw", "2 clip + 1"),
    (lambda: call(relative=headloom.Shaw(zeros(3, 8), zeros(5, 3))), "Shaw", "one clip"),
    (lambda: call(relative=headloom.Shaw(zeros(3, 3, 8))), "Shaw", "(4, 2 clip + 1, 8)"),
    (lambda: call(relative=headloom.ALiBi(zeros(3))), "ALiBi", "(4,)"),
    (lambda: call(relative=headloom.Buckets(zeros(32, 3))), "Buckets", "(buckets, 4)"),
    (lambda: call(relative=headloom.Buckets(zeros(3, 4))), "Buckets", "4 buckets"),
    # graphs and matrices
    (lambda: attend()[1][0], "graph[0]", "graph[head, query]"),
    (lambda: batch_of_graphs()[0, 0], "graph[head, query]", "graph[0]"),
    (lambda: batch_of_graphs().adjacency(0), "adjacency", "graph[0]"),
    (lambda: attend()[1].adjacency(1), "adjacency", "heads 0 to 0"),
    (lambda: attend()[1].adjacency(0, of="keys"), "adjacency", '"scores"'),
    (lambda: matrix(2, 2, 3, 4).received(), "AttentionMatrix", "matrix[0]"),
    (lambda: matrix(2, 2, 3, 4)[2], "matrix[b]", "inputs 0 to 1"),
    (lambda: matrix(3, 4), "AttentionMatrix", "(batch, heads, positions, depth)"),
    (lambda: matrix(2, 3, 4, lse=zeros(3)), "AttentionMatrix", "each head and query, (2, 3)"),
    (lambda: matrix(2, 3, 4) @ zeros(4), "@", "(3, columns)"),
    (lambda: matrix(2, 3, 4)[0, 0, 0, 0], "matrix[0, 0, 0, 0]", "matrix[head, queries, keys]"),
    (lambda: matrix(2, 3, 4)[0, 3, 0], "matrix[0, 3, 0]", "no such cells"),
    (lambda: matrix(2, 3, 4)[0, 0.5, 0], "matrix[0, 0.5, 0]", "no such cells"),
    (lambda: matrix(2, 3, 4).above(2), "above", "above 0, at most 1"),
    (lambda: matrix(2, 3, 4).head(2), "head", "heads 0 to 1"),
    (lambda: matrix(1, 20_000, 1).to_dense(), "to_dense", "force=True"),
    (
        lambda: headloom.AttentionMatrix(zeros(1, 2, 4), zeros(1, 3, 4)).reciprocity(),
        "reciprocity",
        "a square one",
    ),
    # layers
    (lambda: layer(kv_heads=3), "MultiHeadAttention", "divide"),
    (lambda: MultiHeadAttention(8, 3), "MultiHeadAttention", "depth="),
    (lambda: layer(batch_first=False), "MultiHeadAttention", "x.transpose(0, 1)"),
    (lambda: MultiHeadAttention(embed_dim=8), "MultiHeadAttention", "heads is None"),
    (lambda: layer(relative="learned"), "MultiHeadAttention", '"rotary"'),
    (lambda: layer(weights="uniform", softcap=5.0), "MultiHeadAttention", '"learned"'),
    (lambda: layer()(zeros(1, 2, 7)), "MultiHeadAttention", "(batch, positions, 8)"),
    (
        lambda: MultiHeadAttention.from_torch(nn.MultiheadAttention(4, 2, add_bias_kv=True)),
        "from_torch",
        "add_bias_kv",
    ),
]


@pytest.mark.parametrize(("run", "operation", "remedy"), CASES)
def test_an_error_is_one_line_with_operation_and_remedy(
    run: Callable[[], object], operation: str, remedy: str
) -> None:
    with pytest.raises(headloom.InputError) as caught:
        run()
    message = str(caught.value)
    assert message.startswith(operation + ":")
    assert remedy in message
    assert "\n" not in message


def test_kinds_of_errors() -> None:
    with pytest.raises(headloom.ShapeError):
        call((2, 4, 5, 6))
    with pytest.raises(headloom.BackendError):
        call(backend="native", score=headloom.GraphAttentionV2(zeros(8)))
    assert issubclass(headloom.ShapeError, ValueError)


def test_a_mask_that_is_changed_before_backward() -> None:
    tokens, mask = torch.zeros(1, 5, 4, requires_grad=True), torch.ones(5, 5, dtype=torch.bool)
    output = headloom.attention(tokens, tokens, tokens, mask=mask)
    mask.tril_()
    with pytest.raises(RuntimeError, match="modified by an inplace operation"):
        output.sum().backward()
