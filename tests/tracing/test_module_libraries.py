"""Models of timm, diffusers, x-transformers and PyTorch Geometric, traced as they are.

Queries and keys are taken by hooks from the projections of each library's own layers, and the
weights computed from them in float64, without headloom.
"""

from __future__ import annotations

from typing import Any

import pytest
import torch
from tests.tracing.module_weights import (
    TOLERANCE,
    assert_weights,
    by_heads,
    check_unchanged,
    dense,
    of_projections,
    outputs,
    run,
    traced,
    weights_of,
)
from tests.tracing.without_torchvision import timm
from torch import Tensor, nn

import headloom

# Of torch itself, when its compiler is loaded.
pytestmark = pytest.mark.filterwarnings("ignore:`torch.jit:DeprecationWarning")


def of_qkv(model: nn.Module, image: Tensor) -> dict[str, Tensor]:
    with outputs(model, ("attn.qkv",)) as seen:
        run(model, image)
    expected = {}
    for path, (qkv,) in seen.items():
        layer = model.get_submodule(path.removesuffix(".qkv"))
        queries, keys, _ = qkv.chunk(3, -1)
        heads = layer.num_heads
        expected[path.removesuffix(".qkv")] = weights_of(
            by_heads(queries, heads), by_heads(keys, heads)
        )[0]
    return expected


@pytest.mark.parametrize("name", ["vit_tiny_patch16_224", "deit_tiny_distilled_patch16_224"])
def test_the_transformers_of_timm(name: str) -> None:
    model = timm().create_model(name, img_size=32, patch_size=8, depth=2).eval()
    image = torch.randn(1, 3, 32, 32)
    trace = traced(model, image)
    assert_weights(trace, of_qkv(model, image))
    before = 1 + name.startswith("deit")
    assert trace.sequences["patches"][before : before + 2] == ["patch 0,0", "patch 0,1"]
    assert trace.positions["patches"]["columns"][before:] == [0, 1, 2, 3] * 4
    check_unchanged(model, image)
    both = headloom.trace(model, image.repeat(2, 1, 1, 1))
    assert isinstance(both, list) and len(both) == 2


# diffusers


def test_a_dit_of_diffusers() -> None:
    diffusers = pytest.importorskip("diffusers")
    model = diffusers.DiTTransformer2DModel(
        num_attention_heads=2, attention_head_dim=8, in_channels=4, num_layers=2, sample_size=8,
        patch_size=2, norm_num_groups=4, num_embeds_ada_norm=10,
    ).eval()  # fmt: skip
    inputs = {
        "hidden_states": torch.randn(1, 4, 8, 8),
        "timestep": torch.tensor([3]),
        "class_labels": torch.tensor([1]),
    }
    trace = traced(model, inputs)
    assert_weights(trace, of_projections(model, inputs, ("to_q", "to_k")))
    assert trace.sequences["patches"][5] == "patch 1,1"
    check_unchanged(model, inputs)


# x-transformers


def of_x_transformers(model: nn.Module, inputs: Any) -> dict[str, Tensor]:
    return of_projections(model, inputs, ("to_q", "to_k"), ".attend")


@pytest.mark.parametrize("options", [{}, {"attn_one_kv_head": True}])
def test_a_decoder_of_x_transformers(options: dict[str, bool]) -> None:
    library = pytest.importorskip("x_transformers")
    model = library.TransformerWrapper(
        num_tokens=20,
        max_seq_len=16,
        attn_layers=library.Decoder(
            dim=32, depth=2, heads=4, attn_flash=True, attn_dim_head=8, **options
        ),
    ).eval()
    ids = torch.randint(0, 20, (1, 10))
    trace = traced(model, ids)
    assert_weights(trace, of_x_transformers(model, ids))
    assert {layer.kind for layer in trace.layers} == {"decoder"}
    assert all(layer.mask == "causal" for layer in trace.layers)
    assert trace.sequences["tokens"] == [f"#{number}" for number in ids[0].tolist()]
    check_unchanged(model, ids)


# PyTorch Geometric

EDGES = torch.tensor([[0, 1, 2, 3, 4, 5, 0, 2], [1, 2, 3, 4, 5, 0, 3, 0]])


class Nodes(nn.Module):
    def __init__(self, kind: Any) -> None:
        super().__init__()
        self.first, self.second = kind(8, 4, heads=2), kind(8, 4, heads=1)

    def forward(self, x: Tensor, edge_index: Tensor) -> Tensor:
        return self.second(self.first(x, edge_index).relu(), edge_index)


@pytest.mark.parametrize("kind", ["GATConv", "GATv2Conv", "TransformerConv"])
def test_the_attention_layers_of_pytorch_geometric(kind: str) -> None:
    library = pytest.importorskip("torch_geometric")
    model = Nodes(getattr(library.nn, kind)).eval()
    nodes = torch.randn(6, 8)
    trace = traced(model, (nodes, EDGES))
    hidden = nodes
    for layer, module in zip(trace.layers, (model.first, model.second), strict=True):
        with torch.no_grad():
            output, (edges, weights) = module.double()(
                hidden.double(), EDGES, return_attention_weights=True
            )
            module.float()
        expected = torch.zeros(layer.shape, dtype=torch.float64)
        expected[:, edges[1], edges[0]] = weights.mT
        assert float((dense(layer) - expected).abs().max()) <= TOLERANCE
        assert bool((layer.graph.count[0] == torch.bincount(edges[1], minlength=6)).all())
        hidden = output.relu()
    assert [layer.name for layer in trace.layers] == ["first", "second"]
    check_unchanged(model, (nodes, EDGES))
    assert not model.first._propagate_forward_hooks


def test_layers_of_pytorch_geometric_that_give_no_weights_are_named() -> None:
    library = pytest.importorskip("torch_geometric")
    model = library.nn.SuperGATConv(8, 4).eval()
    with pytest.raises(headloom.InputError, match="does not return the weights"):
        headloom.trace(model, (torch.randn(6, 8), EDGES))
