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


def _timm() -> Any:
    try:
        return timm()
    except ImportError:
        pytest.skip("timm is not installed")


# timm


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
    model = _timm().create_model(name, img_size=32, patch_size=8, depth=2).eval()
    image = torch.randn(1, 3, 32, 32)
    trace = traced(model, image)
    assert_weights(trace, of_qkv(model, image))
    before = 1 + name.startswith("deit")
    assert trace.sequences["patches"][before : before + 2] == ["patch 0,0", "patch 0,1"]
    assert trace.positions["patches"]["columns"][before:] == [0, 1, 2, 3] * 4
    check_unchanged(model, image)
    both = headloom.trace(model, image.repeat(2, 1, 1, 1))
    assert isinstance(both, list) and len(both) == 2


def test_the_windows_of_swin_are_parts_of_one_image() -> None:
    library = _timm()
    library.layers.set_fused_attn(True, experimental=True)
    try:
        model = library.create_model(
            "swin_tiny_patch4_window7_224",
            img_size=56, embed_dim=16, depths=(2, 2), num_heads=(2, 4),
        ).eval()  # fmt: skip
    finally:
        library.layers.set_fused_attn(True)
    for name, parameter in model.named_parameters():
        if "relative_position_bias" in name:
            nn.init.normal_(parameter)
    image = torch.randn(1, 3, 56, 56)
    trace = traced(model, image)
    with outputs(model, ("attn.qkv",)) as seen:
        run(model, image)
    expected = {}
    for path, (qkv,) in seen.items():
        block = model.get_submodule(path.removesuffix(".attn.qkv"))
        heads, places = block.attn.num_heads, block.attn.relative_position_index.flatten()
        bias = block.attn.relative_position_bias_table[places].double()
        bias = bias.reshape(49, 49, heads).permute(2, 0, 1)
        mask = block.attn_mask
        added = bias if mask is None else bias + mask.double()[:, None]
        queries, keys, _ = (by_heads(part, heads) for part in qkv.chunk(3, -1))
        windows = weights_of(queries, keys, added).detach()
        # Side by side: no window looks into another.
        expected[path.removesuffix(".qkv")] = torch.stack(
            [torch.block_diag(*windows[:, head]) for head in range(heads)]
        )
    assert_weights(trace, expected)
    first = trace.layers[0]
    assert first.queries_from == "positions-4x49"
    assert trace.sequences["positions-4x49"][50] == "part 1, position 1"
    check_unchanged(model, image)


def test_windows_of_several_images_are_not_guessed() -> None:
    library = _timm()
    library.layers.set_fused_attn(True, experimental=True)
    model = library.create_model(
        "swin_tiny_patch4_window7_224", img_size=56, embed_dim=16, depths=(1, 1), num_heads=(2, 2)
    ).eval()
    library.layers.set_fused_attn(True)
    with pytest.warns(UserWarning, match="a batch of 8 for 2 inputs, and nothing says which"):
        traces = headloom.trace(model, torch.randn(2, 3, 56, 56))
    assert [[layer.name for layer in trace.layers] for trace in traces] == [
        ["layers.1.blocks.0.attn"]
    ] * 2
    assert traces[0].not_traced[0]["name"] == "layers.0.blocks.0.attn"


# diffusers


@pytest.mark.slow
def test_a_unet_of_diffusers() -> None:
    diffusers = pytest.importorskip("diffusers")
    model = diffusers.UNet2DConditionModel(
        sample_size=8, block_out_channels=(32, 64), layers_per_block=1, cross_attention_dim=24,
        attention_head_dim=8, norm_num_groups=8,
        down_block_types=("CrossAttnDownBlock2D", "DownBlock2D"),
        up_block_types=("UpBlock2D", "CrossAttnUpBlock2D"),
    ).eval()  # fmt: skip
    inputs = {
        "sample": torch.randn(1, 4, 8, 8),
        "timestep": torch.tensor([3]),
        "encoder_hidden_states": torch.randn(1, 7, 24),
    }
    trace = traced(model, inputs)
    assert_weights(trace, of_projections(model, inputs, ("to_q", "to_k")))
    kinds = {layer.name.rpartition(".")[2]: layer.kind for layer in trace.layers}
    assert kinds == {"attn1": "encoder", "attn2": "cross"}
    ends = {(layer.queries_from, layer.keys_from) for layer in trace.layers}
    text = "encoder_hidden_states"
    assert ends == {
        ("positions-64", "positions-64"), ("positions-64", text),
        ("positions-16", "positions-16"), ("positions-16", text),
    }  # fmt: skip
    check_unchanged(model, inputs)


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


def test_source_and_target_of_one_length_are_told_apart() -> None:
    library = pytest.importorskip("x_transformers")
    options = {"num_tokens": 20, "depth": 1, "heads": 4, "max_seq_len": 16, "attn_flash": True}
    sides = {f"{side}_{name}": value for side in ("enc", "dec") for name, value in options.items()}
    model = library.XTransformer(dim=32, **sides).eval()
    inputs = {"src": torch.randint(0, 20, (1, 9)), "tgt": torch.randint(0, 20, (1, 9))}
    trace = traced(model, inputs)
    assert [(layer.kind, layer.queries_from, layer.keys_from) for layer in trace.layers] == [
        ("encoder", "source", "source"), ("decoder", "target", "target"),
        ("cross", "target", "source"),
    ]  # fmt: skip


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
    with pytest.raises(headloom.InputError, match="gives its weights to nobody"):
        headloom.trace(model, (torch.randn(6, 8), EDGES))
