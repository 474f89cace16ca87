"""The graph attention network, against its formulas worked out here."""

from __future__ import annotations

from typing import Any

import pytest
import torch
from torch import Tensor

from headloom.models.graph_attention import GraphAttentionNetwork


def edges(nodes: int, seed: int = 0) -> Tensor:
    generator = torch.Generator().manual_seed(seed)
    return torch.randint(nodes, (2, 3 * nodes), generator=generator).unique(dim=1)


def dense_layer(x: Tensor, edge_index: Tensor, W: Tensor, dst: Tensor, src: Tensor) -> Tensor:
    """One head of Velickovic et al. 2018, equations 1 to 4, with all scores."""
    h = x @ W.T
    scores = (h @ dst)[:, None] + (h @ src)[None]
    scores = torch.where(scores > 0, scores, 0.2 * scores)
    seen = torch.eye(len(x), dtype=torch.bool)
    seen[edge_index[1], edge_index[0]] = True
    return scores.masked_fill(~seen, -torch.inf).softmax(-1) @ h


def test_two_layers_are_the_papers_formulas() -> None:
    torch.manual_seed(0)
    model = GraphAttentionNetwork(6, 3, heads=2, width=8, output_heads=2).eval()
    for parameter in model.parameters():
        torch.nn.init.normal_(parameter)
    x, edge_index = torch.randn(9, 6), edges(9)
    first, last = model.convolutions
    heads = [
        dense_layer(x, edge_index, W, dst, src)
        for W, dst, src in zip(
            first.lin.weight.view(2, 4, 6), first.att_dst[0], first.att_src[0], strict=True
        )
    ]
    hidden = torch.nn.functional.elu(torch.cat(heads, 1) + first.bias)
    outputs = [
        dense_layer(hidden, edge_index, W, dst, src)
        for W, dst, src in zip(
            last.lin.weight.view(2, 3, 8), last.att_dst[0], last.att_src[0], strict=True
        )
    ]
    expected = sum(outputs) / 2 + last.bias
    torch.testing.assert_close(model(x, edge_index), expected, rtol=1e-4, atol=1e-4)


@pytest.mark.parametrize("version", [1, 2])
def test_uniform_weights_are_the_mean_of_the_neighbours_and_stay_so(version: int) -> None:
    torch.manual_seed(0)
    options: Any = {"layers": 1, "weights": "uniform", "version": version}
    model = GraphAttentionNetwork(6, 3, **options)
    model.eval()
    x, edge_index = torch.randn(5, 6), torch.tensor([[1, 2], [0, 0]])
    (layer,) = model.convolutions
    projection = layer.lin if version == 1 else layer.lin_l
    h = projection(x)
    expected = h.clone()
    expected[0] = h[:3].mean(0)
    torch.testing.assert_close(model(x, edge_index), expected + layer.bias)
    learned = {name for name, parameter in model.named_parameters() if parameter.requires_grad}
    assert not any("att" in name for name in learned) and learned


def test_a_residual_leads_around_a_layer_between_two_others() -> None:
    torch.manual_seed(0)
    model = GraphAttentionNetwork(6, 3, layers=3, heads=2, width=8, residual=True).eval()
    x, edge_index = torch.randn(9, 6), edges(9)
    with torch.no_grad():
        for name, parameter in model.convolutions[1].named_parameters():
            if "lin" in name or "bias" in name:
                parameter.zero_()  # the layer in the middle gives nothing
        hidden = torch.nn.functional.elu(model.convolutions[0](x, edge_index))
        torch.testing.assert_close(model(x, edge_index), model.convolutions[2](hidden, edge_index))
