"""Modules of torch that do something unusual: parts, latents, half precision, counters, threads."""

from __future__ import annotations

import pytest
import torch
from packaging.version import Version
from tests.tracing.module_weights import traced
from torch import Tensor, nn

import headloom
from headloom.analysis.graphs.flow import attention_flow
from headloom.analysis.graphs.rollout import passed_over


class Axial(nn.Module):
    """Attention along the rows of a square, then along its columns."""

    def __init__(self) -> None:
        super().__init__()
        self.rows = nn.MultiheadAttention(16, 2, batch_first=True)
        self.columns = nn.MultiheadAttention(16, 2, batch_first=True)

    def forward(self, square: Tensor) -> Tensor:
        (parts,) = square
        parts = parts + self.rows(parts, parts, parts)[0]
        turned = parts.transpose(0, 1)
        return turned + self.columns(turned, turned, turned)[0]


def test_layers_that_cut_their_input_into_other_parts_are_not_multiplied() -> None:
    torch.manual_seed(0)
    model, square = Axial().eval(), torch.randn(1, 5, 5, 16)
    trace = traced(model, square)
    assert {layer.queries_from for layer in trace.layers} == {"positions-5x5"}
    assert trace.positions["positions-5x5"]["parts"][:7] == [0, 0, 0, 0, 0, 1, 1]
    for analysis in (trace.rollout, lambda: attention_flow(trace, 0, 1)):
        with pytest.raises(headloom.InputError, match=r"2 layers read positions-5x5 in parts"):
            analysis()
    alone = headloom.trace(model, square, layers=["rows"])
    assert isinstance(alone, headloom.Trace)
    # Of one layer, a position holds what its own part gives it: a fifth of the square.
    with pytest.warns(UserWarning, match="not through 1 that ran and are not in the trace"):
        assert ((alone.rollout() > 0).sum(-1) == 5).all()
    assert [dict(entry) for entry in alone.not_traced] == [
        {"name": "columns", "class": "MultiheadAttention", "reason": "it was not requested"}
    ]
    assert "not through 1 that ran and are not in the trace: columns" in str(passed_over(alone))


def test_latents_as_many_as_the_tokens_are_no_tokens() -> None:
    class Latents(nn.Module):
        def __init__(self) -> None:
            super().__init__()
            self.embedding = nn.Embedding(50, 16)
            self.latents = nn.Parameter(torch.randn(4, 16))
            self.reads = nn.MultiheadAttention(16, 2, batch_first=True)
            self.thinks = nn.MultiheadAttention(16, 2, batch_first=True)

        def forward(self, input_ids: Tensor) -> Tensor:
            x = self.embedding(input_ids)
            latents = self.latents.expand(len(x), -1, -1)
            latents = latents + self.reads(latents, x, x)[0]
            return latents + self.thinks(latents, latents, latents)[0]

    trace = traced(Latents().eval(), torch.tensor([[3, 9, 27, 31]]))
    assert [layer.kind for layer in trace.layers] == ["cross", "encoder"]
    names = {name for layer in trace.layers for name in (layer.queries_from, layer.keys_from)}
    assert names == {"positions-4", "source-4"}
    assert "#3" not in trace.layers[1].query_tokens


class Both(nn.Module):
    """A call with a mask and `is_causal`: torch applies both."""

    def __init__(self, mask: Tensor, is_causal: bool = True) -> None:
        super().__init__()
        self.project, self.mask, self.is_causal = nn.Linear(8, 24), mask, is_causal

    def forward(self, tokens: Tensor) -> Tensor:
        parts = self.project(tokens).unflatten(-1, (3, 2, 4)).unbind(-3)
        return nn.functional.scaled_dot_product_attention(
            *(part.transpose(1, 2) for part in parts), attn_mask=self.mask, is_causal=self.is_causal
        )


@pytest.mark.skipif(
    Version(torch.__version__) >= Version("2.14"), reason="torch refuses both from 2.14 on"
)
@pytest.mark.parametrize("kind", ["cells", "numbers"])
def test_a_mask_and_is_causal_together_hide_what_either_hides(kind: str) -> None:
    torch.manual_seed(0)
    cells = torch.rand(6, 6) > 0.3
    cells[:, 0] = True
    model = Both(cells if kind == "cells" else torch.randn(6, 6)).eval()
    tokens = torch.randn(1, 6, 8)
    queries, keys, _ = model.project(tokens)[0].unflatten(-1, (3, 2, 4)).transpose(0, 1)
    scores = torch.einsum("qhd,khd->hqk", queries, keys) / 2
    scores = scores.masked_fill(~cells, -torch.inf) if kind == "cells" else scores + model.mask
    expected = scores.masked_fill(torch.ones(6, 6).triu(1).bool(), -torch.inf).softmax(-1)
    trace = headloom.trace(model, tokens)
    torch.testing.assert_close(trace.layers[0].graph.to_dense(), expected, rtol=1e-4, atol=1e-6)


class Grouped(nn.Module):
    """Given queries, keys and values, the heads of which are grouped."""

    def forward(self, q: Tensor, k: Tensor, v: Tensor, added: Tensor | None = None) -> Tensor:
        return nn.functional.scaled_dot_product_attention(q, k, v, added, enable_gqa=True)


@pytest.mark.parametrize(
    ("queries", "keys", "values"),
    [((4, 6, 8), (2, 5, 8), (2, 5, 3)), ((1, 6, 6, 8), (1, 3, 5, 8), (1, 2, 5, 3)),
     ((1, 4, 6, 8), (1, 2, 5, 8), (1, 1, 5, 3))],
)  # fmt: skip
@pytest.mark.parametrize("masked", [False, True])
def test_heads_are_grouped_as_torch_groups_them(queries, keys, values, masked) -> None:
    torch.manual_seed(0)
    q, k, v = torch.randn(queries), torch.randn(keys), torch.randn(values)
    added = torch.randn(*queries[:-1], 5) if masked else None
    model = Grouped().eval()
    heads = queries[-3]
    shared = k.repeat_interleave(heads // keys[-3], -3)
    scores = q @ shared.mT / 8**0.5 + (0 if added is None else added)
    with headloom.watch(model, keep=headloom.All()) as watched:
        output = model(q, k, v, added)
    weights = scores.softmax(-1)
    torch.testing.assert_close(output, weights @ v.repeat_interleave(heads // values[-3], -3))
    layer = watched.trace.layers[0]
    torch.testing.assert_close(layer.graph.to_dense(), weights.reshape(heads, 6, 5))
    torch.testing.assert_close(layer.matrix.to_dense(), weights.reshape(heads, 6, 5))
