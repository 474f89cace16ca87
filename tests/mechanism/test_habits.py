"""What people write who come from torch's attention: the same numbers, or an error that helps."""

from __future__ import annotations

from collections.abc import Callable
from typing import Any

import numpy as np
import pytest
import torch
from torch.nn.functional import scaled_dot_product_attention

import headloom

untyped: Any = headloom
CAUSAL = [{"is_causal": True}, {"mask": "causal"}, {"is_causal": True, "mask": "causal"}]


def qkv(*shape: int) -> Any:
    return torch.randn(3, *shape, generator=torch.Generator().manual_seed(0))


@pytest.mark.parametrize("options", CAUSAL)
def test_causal_by_either_name_is_causal(options: dict[str, Any]) -> None:
    queries, keys, values = qkv(2, 4, 9, 8)
    expected = headloom.attention(queries, keys, values, mask=headloom.causal())
    theirs = scaled_dot_product_attention(queries, keys, values, is_causal=True)
    output = headloom.attention(queries, keys, values, **options)
    assert torch.equal(output, expected)
    assert torch.allclose(output, theirs, atol=1e-5)
    _, weights = headloom.attend(queries, keys, values, keep="all", **options)
    assert not weights.triu(1).any()
    matrix = headloom.AttentionMatrix(queries[0], keys[0], **options)
    assert torch.allclose(matrix.to_dense(), weights[0], atol=1e-6)
    trace = headloom.from_queries_keys(queries[0], keys[0], **options)
    assert trace.layers[0].mask == "causal"
    compiled = torch.compile(headloom.attention, fullgraph=True, backend="eager")
    assert torch.allclose(compiled(queries, keys, values, **options), expected, atol=1e-6)


def test_of_a_mask_and_is_causal_both_hide() -> None:
    queries, keys, values = qkv(2, 4, 9, 8)
    real = headloom.padding([9, 5])
    both = headloom.attention(queries, keys, values, mask=headloom.causal() & real)
    output = headloom.attention(queries, keys, values, mask=real, is_causal=True)
    assert torch.equal(output, both)


def test_a_number_of_edges_is_top_and_all_is_all() -> None:
    inputs = qkv(2, 4, 9, 8)
    _, graph = headloom.attend(*inputs, keep=3)
    _, top = headloom.attend(*inputs, keep=headloom.Top(3))
    assert torch.equal(graph.keys, top.keys)
    assert headloom.attend(*inputs)[1].k == 32
    _, weights = headloom.attend(*inputs, keep="all")
    assert torch.equal(weights, headloom.attend(*inputs, keep=headloom.All())[1])
    layer = headloom.MultiHeadAttention(8, 2)
    for keep, k in ((3, 3), ("all", 9)):
        assert headloom.trace(layer, inputs[0, :1, 0], keep=keep).layers[0].graph.k == k
        with headloom.watch(layer.eval(), keep=keep) as watched:
            layer(inputs[0, :1, 0])
        assert watched.trace.layers[0].graph.k == k
        given = headloom.from_queries_keys(*inputs[:2, 0], keep=keep)
        assert given.layers[0].graph.k == k
        assert headloom.from_weights(weights[0], keep=keep).layers[0].graph.k == k


def test_a_traced_module_may_write_causal_either_way() -> None:
    class Model(torch.nn.Module):
        def forward(self, x: torch.Tensor) -> torch.Tensor:
            first = headloom.attention(x, x, x, is_causal=True)
            return headloom.attention(first, x, x, mask="causal")

    trace = headloom.trace(Model(), torch.randn(1, 2, 6, 4))
    assert [layer.mask for layer in trace.layers] == ["causal", "causal"]


@pytest.mark.parametrize(
    ("run", "remedy"),
    [
        (lambda x: untyped.attention(*x, return_weights=True), r'headloom.attend(..., keep="all")'),
        (lambda x: untyped.attend(*x, need_weights=True), r'headloom.attend(..., keep="all")'),
        (lambda x: untyped.attention(*x, attn_mask=None), "mask="),
        (lambda x: untyped.attention(*x, dropout_p=0.1), "dropout="),
        (lambda x: untyped.attend(*x, is_casual=True), "use is_causal="),
        (lambda x: untyped.attend(*x, other=1), "received"),
        (lambda x: headloom.MultiHeadAttention(4, 2)(x[0], attn_mask=None), "mask=~attn_mask"),
    ],
)
def test_a_keyword_of_another_library_names_ours(run: Callable[[Any], Any], remedy: str) -> None:
    with pytest.raises(TypeError) as caught:
        run(qkv(1, 2, 3, 4))
    assert remedy in str(caught.value)


def test_a_matrix_of_a_batch_has_one_for_each_input() -> None:
    queries, keys, _ = qkv(2, 4, 9, 8)
    allowed = torch.rand(2, 4, 9, 9) < 0.7
    bias = torch.randn(2, 1, 9, 9)
    for options in (
        {}, {"is_causal": True}, {"mask": headloom.padding([9, 5]), "is_causal": True},
        {"mask": allowed}, {"mask": allowed[:1, :1], "bias": bias}, {"sinks": torch.zeros(4)},
    ):  # fmt: skip
        _, weights = untyped.attend(queries, keys, keys, keep="all", **options)
        matrix = untyped.AttentionMatrix(queries, keys, **options)
        assert matrix.shape == (2, 4, 9, 9)
        assert len(matrix) == 2
        for b, one in enumerate(matrix):
            assert torch.allclose(one.to_dense(), weights[b], atol=1e-6)
            assert torch.allclose(one.received(), weights[b].sum(1), atol=1e-5)
        assert torch.allclose(torch.as_tensor(np.asarray(matrix)), weights, atol=1e-6)
        assert torch.allclose(matrix[1][2], weights[1, 2], atol=1e-6)
        assert torch.allclose(matrix[1, 2, :3, -1], weights[1, 2, :3, -1], atol=1e-6)
    lse = torch.stack([one.lse for one in matrix])
    again = headloom.AttentionMatrix(queries, keys, sinks=torch.zeros(4), lse=lse)
    assert torch.allclose(again.to_dense(), weights, atol=1e-6)
    rules = headloom.AttentionMatrix(queries, keys, mask=headloom.padding([9, 5]), is_causal=True)
    assert rules[1]._call.mask.bounds(9, 9).rest is None  # not cell by cell


def test_a_head_of_a_matrix_is_its_weights() -> None:
    queries, keys, _ = qkv(4, 9, 8)
    matrix = headloom.AttentionMatrix(queries, keys)
    assert torch.allclose(matrix[2], matrix.to_dense()[2], atol=1e-6)
    assert np.asarray(matrix[2]).shape == (9, 9)
    assert torch.allclose(matrix[2, 3], matrix.to_dense()[2, 3], atol=1e-6)
    assert torch.allclose(torch.stack(list(matrix)), matrix.to_dense(), atol=1e-6)
    with pytest.raises(AttributeError, match=r"use numpy\.asarray\(matrix\)"):
        untyped.AttentionMatrix(queries, keys).numpy()
