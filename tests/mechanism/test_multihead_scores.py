"""Soft caps, learned sinks and norms of queries and keys in a layer, against their formulas."""

from __future__ import annotations

import copy
import itertools
import math
from typing import Any

import pytest
import torch
from torch import Tensor, nn
from torch.testing import assert_close

import headloom
from headloom.mechanism.attention_layer import RelativeKind
from headloom.mechanism.key_value_cache import KeyValueCache

WIDTH, HEADS, LENGTH = 12, 4, 7
CHOICES = [
    {"softcap": cap, "sinks": sinks, "query_key_norm": norm}
    for cap, sinks, norm in itertools.product((None, 1.5), (False, True), (False, True))
    if cap or sinks or norm
]


def layer_of(relative: RelativeKind = "none", **options: Any) -> headloom.MultiHeadAttention:
    """Its learned numbers are all drawn, so that each must be at its place."""
    torch.manual_seed(3)
    sizes: dict[str, Any] = {"kv_heads": 2, "depth": 6, "kind": "decoder", "relative": relative}
    layer = headloom.MultiHeadAttention(WIDTH, HEADS, **sizes | options).double()
    for parameter in layer.parameters():
        nn.init.normal_(parameter, std=0.8)
    return layer


def by_formula(layer: headloom.MultiHeadAttention, inputs: Tensor) -> tuple[Tensor, Tensor]:
    """The output, and the weights on the keys, head by head and row by row."""
    outputs, weights = [], torch.zeros(HEADS, LENGTH, LENGTH, dtype=torch.float64)
    for head in range(HEADS):
        shared = head // 2
        parts = []
        for linear, of, norm in (
            (layer.w_q, head, layer.query_norm), (layer.w_k, shared, layer.key_norm),
            (layer.w_v, shared, None),
        ):  # fmt: skip
            rows = slice(6 * of, 6 * of + 6)
            part = inputs @ linear.weight[rows].T + linear.bias[rows]
            if norm is not None:
                part = part / (part.square().mean(-1, keepdim=True) + 1e-6).sqrt() * norm.weight
            parts.append(part)
        queries, keys, values = parts
        if layer.relative == "rotary":
            queries, keys = headloom.rotary(queries), headloom.rotary(keys)
        for i in range(LENGTH):
            scores = queries[i] @ keys[: i + 1].T / math.sqrt(6)
            if layer.softcap is not None:
                scores = layer.softcap * torch.tanh(scores / layer.softcap)
            powers = scores.exp()
            total = powers.sum() + (0 if layer.sinks is None else layer.sinks[head].exp())
            weights[head, i, : i + 1] = (powers / total).detach()
            outputs.append(powers / total @ values[: i + 1])
    joined = torch.stack(outputs).view(HEADS, LENGTH, 6).transpose(0, 1).flatten(1)
    return joined @ layer.w_o.weight.T + layer.w_o.bias, weights


@pytest.mark.parametrize("relative", ["none", "rotary"])
@pytest.mark.parametrize("options", CHOICES, ids=str)
def test_a_layer_is_its_formula(options: dict[str, Any], relative: RelativeKind) -> None:
    """Outputs, gradients of every parameter, with a cache, and as traced."""
    layer = layer_of(relative, **options)
    inputs = torch.randn(1, LENGTH, WIDTH, dtype=torch.float64)
    expected, weights = by_formula(layer, inputs[0])
    output = layer(inputs, mask=headloom.causal())
    assert_close(output[0], expected, rtol=1e-9, atol=1e-10)
    by_output = torch.randn_like(expected)
    parameters = dict(layer.named_parameters())
    found = torch.autograd.grad(output[0], list(parameters.values()), by_output)
    wanted = torch.autograd.grad(expected, list(parameters.values()), by_output)
    for name, one, other in zip(parameters, found, wanted, strict=True):
        assert_close(one, other, rtol=1e-7, atol=1e-9, msg=name)
    cache = KeyValueCache()
    parts = [
        layer(part, mask=headloom.causal(offset=cache.length), cache=cache)
        for part in (inputs[:, :4], inputs[:, 4:])
    ]
    assert_close(torch.cat(parts, 1)[0], expected, rtol=1e-9, atol=1e-10)

    class Model(nn.Module):
        def __init__(self) -> None:
            super().__init__()
            self.layer = copy.deepcopy(layer).float()

        def forward(self, given: Tensor) -> Tensor:
            made: Tensor = self.layer(given, mask=headloom.causal())
            return made

    trace = headloom.trace(Model(), inputs.float(), keep=headloom.All())
    assert isinstance(trace, headloom.Trace)
    (traced,) = trace.layers
    assert_close(traced.graph.to_dense().double(), weights, rtol=0, atol=2e-5)
    assert traced.matrix is not None
    assert_close(traced.matrix.to_dense().double(), weights, rtol=0, atol=2e-5)
    assert trace.deviation is not None and trace.deviation < 1e-5
