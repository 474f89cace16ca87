"""A layer with T5's buckets: against headloom.Buckets, the formula, and Transformers'
T5Attention."""

from __future__ import annotations

import math
from typing import Any

import pytest
import torch
from torch import Tensor, nn
from torch.testing import assert_close

import headloom
from headloom.mechanism.attention_layer import PositionSizes
from headloom.mechanism.key_value_cache import KeyValueCache
from headloom.mechanism.multihead import MultiHeadAttention

LENGTH = 40


def inputs_of(length: int = LENGTH, width: int = 12) -> Tensor:
    generator = torch.Generator().manual_seed(1)
    return torch.randn(2, length, width, dtype=torch.float64, generator=generator)


def t5_of(kind: str, **options: Any) -> Any:
    """A layer of Transformers with a table of large numbers."""
    t5 = pytest.importorskip("transformers.models.t5.modeling_t5")
    torch.manual_seed(3)
    config = t5.T5Config(
        d_model=12, d_kv=4, num_heads=3, dropout_rate=0.0, is_decoder=kind == "decoder", **options
    )
    config._attn_implementation = "eager"
    theirs = t5.T5Attention(config, has_relative_attention_bias=True, layer_idx=0)
    theirs = theirs.double().eval()
    nn.init.normal_(theirs.relative_attention_bias.weight)
    return theirs


def ours_of(theirs: Any, kind: Any) -> MultiHeadAttention:
    """The same layer of headloom, as the docstring says: T5 does not divide by sqrt(depth)."""
    layer = MultiHeadAttention(
        12, 3, depth=4, bias=False, relative="buckets", kind=kind,
        positions=PositionSizes(
            buckets=theirs.relative_attention_num_buckets,
            max_distance=theirs.relative_attention_max_distance,
        ),
    ).double()  # fmt: skip
    layer.load_state_dict(
        {
            "w_q.weight": theirs.q.weight * math.sqrt(4),
            "w_k.weight": theirs.k.weight,
            "w_v.weight": theirs.v.weight,
            "w_o.weight": theirs.o.weight,
            "bucket_table": theirs.relative_attention_bias.weight,
        }
    )
    return layer.eval()


SIZES = [
    {},
    {"relative_attention_num_buckets": 8, "relative_attention_max_distance": 20},
]


@torch.no_grad()
@pytest.mark.parametrize("kind", ["encoder", "decoder"])
@pytest.mark.parametrize("sizes", SIZES)
def test_as_t5_has_it(kind: str, sizes: dict[str, int]) -> None:
    """Its bias, number by number, and its outputs."""
    theirs = t5_of(kind, **sizes)
    ours = ours_of(theirs, kind)
    for offset in (0, 5, 300):
        queries, keys = 200, 200 + offset
        bias = theirs.compute_bias(queries, keys, past_seen_tokens=offset)[0]
        relative = ours.relative_positions(offset)
        assert relative is not None
        assert torch.equal(relative.bias(range(queries), keys, torch.device("cpu")), bias)
    inputs = inputs_of(200)
    hidden = torch.zeros(200, 200, dtype=torch.float64)
    if kind == "decoder":
        hidden = torch.full_like(hidden, -torch.inf).triu(1)
    expected = theirs(inputs, mask=hidden[None, None])[0]
    mask = headloom.causal() if kind == "decoder" else None
    assert_close(ours(inputs, mask=mask), expected, rtol=0, atol=1e-10)


@torch.no_grad()
@pytest.mark.parametrize("sizes", SIZES)
def test_as_t5_writes_with_its_cache(sizes: dict[str, int]) -> None:
    transformers = pytest.importorskip("transformers")
    theirs = t5_of("decoder", **sizes)
    ours = ours_of(theirs, "decoder")
    cache, own = transformers.DynamicCache(), KeyValueCache()
    inputs = inputs_of(60)
    for first, end in ((0, 50), (50, 51), (51, 60)):
        part = inputs[:, first:end]
        hidden = torch.full((end - first, end), -torch.inf, dtype=torch.float64).triu(first + 1)
        expected = theirs(part, mask=hidden[None, None], cache=cache)[0]
        output = ours(part, mask=headloom.causal(offset=first), cache=own)
        assert_close(output, expected, rtol=0, atol=1e-10)
