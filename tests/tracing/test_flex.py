"""`flex_attention`, whose rules are functions, against its formula in float64."""

from __future__ import annotations

from collections.abc import Callable
from typing import Any

import pytest
import torch
from tests.tracing.conftest import assert_dense, dense_weights
from tests.tracing.module_weights import TOLERANCE, by_heads, dense, traced
from torch import Tensor, nn

import headloom

# Of torch itself, when its compiler is loaded.
pytestmark = pytest.mark.filterwarnings("ignore:`torch.jit:DeprecationWarning")


class Flex(nn.Module):
    def __init__(self, compiled: bool, mask: Any = None, score: Any = None) -> None:
        super().__init__()
        from torch.nn.attention.flex_attention import flex_attention

        self.project, self.mask, self.score = nn.Linear(16, 48), mask, score
        self.function = torch.compile(flex_attention) if compiled else flex_attention

    def forward(self, hidden: Tensor) -> Tensor:
        from torch.nn.attention.flex_attention import create_block_mask

        parts = self.project(hidden).chunk(3, -1)
        queries, keys, values = (part.unflatten(-1, (2, 8)).transpose(1, 2) for part in parts)
        length = hidden.shape[1]
        block = self.mask and create_block_mask(self.mask, None, None, length, length, device="cpu")
        return self.function(queries, keys, values, score_mod=self.score, block_mask=block)


SLOPES = torch.tensor([0.5, 0.25])
FLEX: dict[str, tuple[Any, Any, Callable[[Tensor, Tensor], Tensor]]] = {
    "causal": (lambda b, h, i, j: i >= j, None, lambda s, d: s.masked_fill(d < 0, -torch.inf)),
    "window": (
        lambda b, h, i, j: (i >= j) & (i - j < 3),
        None,
        lambda s, d: s.masked_fill((d < 0) | (d > 2), -torch.inf),
    ),
    "alibi": (
        lambda b, h, i, j: i >= j,
        lambda s, b, h, i, j: s - SLOPES[h] * (i - j),
        lambda s, d: (s - SLOPES[:, None, None] * d).masked_fill(d < 0, -torch.inf),
    ),
    "mask in scores": (
        None,
        lambda s, b, h, i, j: torch.where(i >= j, s, -float("inf")),
        lambda s, d: s.masked_fill(d < 0, -torch.inf),
    ),
    "soft cap": (
        None,
        lambda s, b, h, i, j: 0.5 * torch.tanh(s / 0.5),
        lambda s, d: 0.5 * torch.tanh(s / 0.5),
    ),
}


@pytest.mark.parametrize("compiled", [False, True])
@pytest.mark.parametrize("rule", list(FLEX))
def test_flex_attention_whose_rules_can_be_read(rule: str, compiled: bool) -> None:
    mask, score, formula = FLEX[rule]
    model = Flex(compiled, mask, score).eval()
    hidden = 3 * torch.randn(1, 9, 16)
    trace = traced(model, hidden)
    queries, keys, _ = model.project(hidden).detach().chunk(3, -1)
    scores = by_heads(queries, 2) @ by_heads(keys, 2).mT / 8**0.5
    place = torch.arange(9)
    expected = formula(scores[0], place[:, None] - place).softmax(-1)
    assert float((dense(trace.layers[0]) - expected).abs().max()) <= TOLERANCE
    assert trace.layers[0].matrix.shape == (2, 9, 9)
    if rule in ("causal", "window"):
        assert trace.layers[0].mask == rule
    assert trace.layers[0].deviation <= TOLERANCE


def test_a_score_of_flex_attention_that_is_no_rule_is_refused() -> None:
    model = Flex(False, score=lambda s, b, h, i, j: s * s)
    with pytest.raises(headloom.InputError, match=r"neither a bias added .* nor a soft cap"):
        headloom.trace(model, torch.randn(1, 9, 16))


def test_a_model_of_transformers_with_a_soft_cap(family_named) -> None:
    """FlexAttention caps scores; torch's fused attention, which stands for it, does not."""
    model = family_named("Gemma 2").build()
    ids = torch.arange(12)[None] + 3
    expected = dense_weights(model, {"input_ids": ids, "use_cache": False})["all"]
    model.set_attn_implementation("flex_attention")
    trace = headloom.trace(model, ids, keep=headloom.All(), verify=False)
    assert trace.deviation < 1e-5
    assert_dense(trace.layers, expected)
