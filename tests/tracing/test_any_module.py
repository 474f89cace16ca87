"""Any module of torch: its weights against a computation in float64 that shares no code with weft.

Queries and keys are taken by hooks from the projections of each library's own layers.
"""

from __future__ import annotations

import importlib.util
import sys
from collections.abc import Callable, Iterator
from contextlib import contextmanager
from pathlib import Path
from typing import Any

import pytest
import torch
from torch import Tensor, nn
from torch.nn import functional

import weft

TOLERANCE = 2e-6
# Of torch itself, when its compiler is loaded, and of what is compiled by torch.jit.
pytestmark = pytest.mark.filterwarnings("ignore:`torch.jit:DeprecationWarning")


def _timm() -> Any:
    spec = importlib.util.spec_from_file_location(
        "without_torchvision", Path(__file__).with_name("without_torchvision.py")
    )
    assert spec is not None and spec.loader is not None
    module = importlib.util.module_from_spec(spec)
    spec.loader.exec_module(module)
    try:
        return module.timm()
    except ImportError:
        pytest.skip("timm is not installed")


@contextmanager
def outputs(model: nn.Module, ends: tuple[str, ...]) -> Iterator[dict[str, list[Tensor]]]:
    """What the modules gave whose paths end so, while the block runs, by their paths."""
    seen: dict[str, list[Tensor]] = {}
    hooks = [
        module.register_forward_hook(
            lambda _, __, output, path=path: seen.setdefault(path, []).append(output.detach())
        )
        for path, module in model.named_modules()
        if path.endswith(ends)
    ]
    yield seen
    for hook in hooks:
        hook.remove()


def by_heads(tensor: Tensor, heads: int) -> Tensor:
    """(batch, positions, width) as (batch, heads, positions, depth) in float64."""
    return tensor.double().unflatten(-1, (heads, -1)).transpose(1, 2)


def weights_of(queries: Tensor, keys: Tensor, added: Tensor | float = 0.0) -> Tensor:
    """softmax(Q K^T / sqrt(depth) + added), in float64."""
    keys = keys.repeat_interleave(queries.shape[1] // keys.shape[1], 1)
    return (queries @ keys.mT / queries.shape[-1] ** 0.5 + added).softmax(-1)


def dense(layer: weft.TraceLayer) -> Tensor:
    """The weights of a layer's kept edges in their places, 0 elsewhere: (heads, queries, keys)."""
    graph = layer.graph
    places = graph.keys.long()
    whole = torch.zeros(graph.shape, dtype=torch.float64)
    kept = torch.where(places >= 0, graph.weights.double(), 0)
    return whole.scatter_add(-1, places.clamp(min=0), kept)


def traced(model: nn.Module, inputs: Any, **options: Any) -> weft.Trace:
    trace = weft.trace(model, inputs, keep=weft.All(), **options)
    assert isinstance(trace, weft.Trace)
    return trace


def run(model: nn.Module, inputs: Any) -> Any:
    with torch.no_grad():
        if isinstance(inputs, dict):
            return model(**inputs)
        return model(*inputs) if isinstance(inputs, tuple) else model(inputs)


def first_tensor(output: Any) -> Tensor:
    return output if isinstance(output, Tensor) else first_tensor(output[0])


def check_unchanged(model: nn.Module, inputs: Any) -> None:
    """Trace and watch a model: afterwards it gives the same bits, and holds nothing of weft."""
    before = first_tensor(run(model, inputs)).clone()
    state = {name: tensor.clone() for name, tensor in model.state_dict().items()}
    attributes = [dict(vars(module)) for module in model.modules()]
    weft.trace(model, inputs)
    with weft.watch(model) as watched:
        during = first_tensor(run(model, inputs))
    assert watched.traces
    torch.testing.assert_close(during, before, atol=1e-5, rtol=1e-5)
    assert torch.equal(first_tensor(run(model, inputs)), before)
    assert all(torch.equal(state[name], value) for name, value in model.state_dict().items())
    for module, own in zip(model.modules(), attributes, strict=True):
        assert not module._forward_hooks and not module._forward_pre_hooks
        assert vars(module).keys() == own.keys()
    assert not torch._C._is_torch_function_mode_enabled()


def assert_weights(trace: weft.Trace, expected: dict[str, Tensor]) -> None:
    """Hold every layer against (heads, queries, keys) of its path."""
    assert [layer.name for layer in trace.layers] == list(expected)
    for layer in trace.layers:
        difference = (dense(layer) - expected[layer.name]).abs().max()
        assert difference <= TOLERANCE, (layer.name, float(difference))
        assert layer.deviation is not None and layer.deviation <= TOLERANCE


def of_projections(
    model: nn.Module, inputs: Any, names: tuple[str, str], inside: str = ""
) -> dict[str, Tensor]:
    """The weights of layers that have a projection for queries and one for keys.

    inside: the part of such a layer in which its attention runs.
    """
    with outputs(model, names) as seen:
        run(model, inputs)
    expected = {}
    for path in [path for path in seen if path.endswith(names[0])]:
        layer = path.removesuffix(f".{names[0]}")
        module = model.get_submodule(layer)
        heads = module.heads
        queries = by_heads(seen[path][0], heads)
        keys = by_heads(seen[f"{layer}.{names[1]}"][0], getattr(module, "kv_heads", heads))
        causal = getattr(module, "causal", False)
        shape = queries.shape[2], keys.shape[2]
        ahead = torch.full(shape, -torch.inf).triu(1) if causal else torch.zeros(shape)
        expected[layer + inside] = weights_of(queries, keys, ahead.double())[0]
    return expected


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
    both = weft.trace(model, image.repeat(2, 1, 1, 1))
    assert isinstance(both, list) and len(both) == 2


def test_the_windows_of_swin_are_parts_of_one_image() -> None:
    timm = _timm()
    timm.layers.set_fused_attn(True, experimental=True)
    try:
        model = timm.create_model(
            "swin_tiny_patch4_window7_224",
            img_size=56, embed_dim=16, depths=(2, 2), num_heads=(2, 4),
        ).eval()  # fmt: skip
    finally:
        timm.layers.set_fused_attn(True)
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
    timm = _timm()
    timm.layers.set_fused_attn(True, experimental=True)
    model = timm.create_model(
        "swin_tiny_patch4_window7_224", img_size=56, embed_dim=16, depths=(1, 1), num_heads=(2, 2)
    ).eval()
    timm.layers.set_fused_attn(True)
    with pytest.warns(UserWarning, match="a batch of 8 for 2 inputs, and nothing says which"):
        traces = weft.trace(model, torch.randn(2, 3, 56, 56))
    assert [[layer.name for layer in trace.layers] for trace in traces] == [
        ["layers.1.blocks.0.attn"]
    ] * 2
    assert traces[0].not_traced[0]["name"] == "layers.0.blocks.0.attn"


# diffusers


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


def test_softmax_by_hand_in_x_transformers_is_named() -> None:
    library = pytest.importorskip("x_transformers")
    model = library.TransformerWrapper(
        num_tokens=20, max_seq_len=16, attn_layers=library.Decoder(dim=32, depth=1, heads=4)
    ).eval()
    with pytest.raises(weft.InputError, match=r"0\.1\.attend \(Attend\) computes its softmax by"):
        weft.trace(model, torch.randint(0, 20, (1, 10)))


# torch.nn


def of_multihead_attention(model: nn.Module, inputs: Any, added: dict[str, Tensor]) -> Any:
    """The weights of every `nn.MultiheadAttention`, from what it is given."""
    expected: dict[str, Tensor] = {}

    def note(path: str, layer: nn.MultiheadAttention) -> Callable[..., None]:
        def hook(module: nn.Module, args: Any, keywords: Any) -> None:
            first = layer.batch_first or args[0].ndim == 2
            query, key = (part if first else part.transpose(0, 1) for part in args[:2])
            heads, width = layer.num_heads, layer.embed_dim
            weight, bias = layer.in_proj_weight.double(), layer.in_proj_bias.double()
            queries = query.double() @ weight[:width].mT + bias[:width]
            keys = key.double() @ weight[width : 2 * width].mT + bias[width : 2 * width]
            expected[path] = weights_of(
                by_heads(queries, heads), by_heads(keys, heads), added.get(path, 0.0)
            ).detach()

        return hook

    hooks = [
        module.register_forward_pre_hook(note(path, module), with_kwargs=True)
        for path, module in model.named_modules()
        if isinstance(module, nn.MultiheadAttention)
    ]
    fast = torch.backends.mha.get_fastpath_enabled()
    torch.backends.mha.set_fastpath_enabled(False)
    run(model, inputs)
    torch.backends.mha.set_fastpath_enabled(fast)
    for hook in hooks:
        hook.remove()
    return expected


@pytest.mark.filterwarnings("ignore:enable_nested_tensor is True")
def test_the_transformer_of_torch() -> None:
    model = nn.Transformer(16, 2, 2, 2, 32).eval()
    # Longer than the batch is large, and first, as torch has it.
    inputs = {
        "src": torch.randn(7, 1, 16),
        "tgt": torch.randn(5, 1, 16),
        "tgt_mask": nn.Transformer.generate_square_subsequent_mask(5),
        "tgt_is_causal": True,
    }
    ahead = torch.full((5, 5), -torch.inf).triu(1).double()
    added = {f"decoder.layers.{layer}.self_attn": ahead for layer in range(2)}
    trace = traced(model, inputs)
    expected = of_multihead_attention(model, inputs, added)
    assert_weights(trace, {path: weights[0] for path, weights in expected.items()})
    assert [(layer.kind, layer.queries_from, layer.keys_from) for layer in trace.layers] == [
        *[("encoder", "src", "src")] * 2,
        *[("decoder", "tgt", "tgt"), ("cross", "tgt", "src")] * 2,
    ]
    check_unchanged(model, inputs)


def encoder(batch_first: bool = True) -> nn.TransformerEncoder:
    layer = nn.TransformerEncoderLayer(16, 4, 32, batch_first=batch_first)
    return nn.TransformerEncoder(layer, 2, enable_nested_tensor=batch_first).eval()


@pytest.mark.filterwarnings("ignore:The PyTorch API of nested tensors")
def test_an_encoder_on_the_fast_path_of_torch_is_seen() -> None:
    model = encoder()
    hidden = torch.tensor([[False] * 6, [False] * 4 + [True] * 2])
    inputs = {"src": torch.randn(2, 6, 16), "src_key_padding_mask": hidden}
    # The fast path makes nested tensors of it, and calls nothing that could be seen.
    assert not run(model, inputs)[1, 4:].any()
    traces = weft.trace(model, inputs, keep=weft.All())
    added = torch.zeros(2, 1, 1, 6, dtype=torch.float64).masked_fill(
        hidden[:, None, None], -torch.inf
    )
    paths = [f"layers.{layer}.self_attn" for layer in range(2)]
    expected = of_multihead_attention(model, inputs, dict.fromkeys(paths, added))
    for sample, trace in enumerate(traces):
        assert_weights(trace, {path: weights[sample] for path, weights in expected.items()})
    fast = run(model, inputs)
    with weft.watch(model) as watched:
        torch.testing.assert_close(run(model, inputs)[~hidden], fast[~hidden])
    assert len(watched.traces) == 2
    assert torch.equal(run(model, inputs), fast)


def test_nested_tensors_are_refused_in_one_line() -> None:
    nested = torch.nested.nested_tensor([torch.randn(3, 16), torch.randn(5, 16)])
    with pytest.raises(weft.InputError, match="does not support NestedTensor outside of its fast"):
        weft.trace(encoder(), nested)


@pytest.mark.parametrize("need_weights", [True, False])
@pytest.mark.parametrize("batch_first", [True, False])
@pytest.mark.parametrize("options", [{}, {"add_bias_kv": True, "add_zero_attn": True}])
def test_multihead_attention_alone(
    need_weights: bool, batch_first: bool, options: dict[str, bool]
) -> None:
    model = nn.MultiheadAttention(16, 4, batch_first=batch_first, **options).eval()
    query, key = torch.randn(2, 5, 16), torch.randn(2, 7, 16)
    mask = torch.rand(5, 7) > 0.7
    if not batch_first:
        query, key = query.transpose(0, 1), key.transpose(0, 1)
    inputs = {"query": query, "key": key, "value": key, "attn_mask": mask}
    # Torch's own weights.
    with torch.no_grad():
        expected = model.double()(
            query.double(), key.double(), key.double(), attn_mask=mask, average_attn_weights=False
        )[1]
        model.float()
    traces = weft.trace(model, {**inputs, "need_weights": need_weights}, keep=weft.All())
    for sample, trace in enumerate(traces):
        assert_weights(trace, {"MultiheadAttention": expected[sample]})
        assert trace.layers[0].kind == "cross"


# Somebody's own


class Own(nn.Module):
    """A hand-written layer."""

    def __init__(self, how: str, masked: str = "none") -> None:
        super().__init__()
        self.how, self.masked = how, masked
        self.embedding, self.project = nn.Embedding(30, 16), nn.Linear(16, 48)

    def scores_added(self, length: int) -> Tensor:
        """What is added to the scores, (heads, queries, keys)."""
        place = torch.arange(length)
        distance = place[:, None] - place
        added = torch.zeros(4, length, length)
        if self.masked in ("causal", "window"):
            added = added.masked_fill(distance < 0, -torch.inf)
        if self.masked == "window":
            added = added.masked_fill(distance > 2, -torch.inf)
        if self.masked == "alibi":
            slopes = torch.tensor([0.5, 0.25, 0.125, 0.0625])[:, None, None]
            added = (-slopes * distance.abs()).masked_fill(distance < 0, -torch.inf)
        return added

    def forward(self, ids: Tensor) -> Tensor:
        parts = self.project(self.embedding(ids)).chunk(3, -1)
        queries, keys, values = (part.unflatten(-1, (4, 4)).transpose(1, 2) for part in parts)
        added = self.scores_added(ids.shape[1])
        if self.how == "weft":
            rules = {
                "none": {},
                "causal": {"mask": weft.causal()},
                "window": {"mask": weft.window(2, 0)},
                "alibi": {"mask": weft.causal(), "bias": added.nan_to_num(neginf=0)[None]},
            }
            output = weft.attention(queries, keys, values, **rules[self.masked])
        elif self.how == "numbers":
            output = functional.scaled_dot_product_attention(queries, keys, values, added)
        elif self.how == "five":
            # A dimension more in front, as of axial attention.
            five = (part[:, None] for part in (queries, keys, values))
            output = functional.scaled_dot_product_attention(*five, added[None, None])[:, 0]
        else:
            flag = {"attn_mask": added[0] == 0} if self.masked != "causal" else {"is_causal": True}
            output = functional.scaled_dot_product_attention(queries, keys, values, **flag)
        return output.transpose(1, 2).flatten(2)

    def expected(self, ids: Tensor) -> Tensor:
        """Its weights, (heads, queries, keys)."""
        queries, keys, _ = self.project(self.embedding(ids)).detach().chunk(3, -1)
        added = self.scores_added(ids.shape[1]).double()
        return weights_of(by_heads(queries, 4), by_heads(keys, 4), added)[0]


IDS = torch.tensor([[5, 3, 8, 8, 1, 29, 0]])


@pytest.mark.parametrize("masked", ["none", "causal", "window", "alibi"])
@pytest.mark.parametrize("how", ["weft", "numbers", "five", "flag"])
def test_somebodys_own_layer(how: str, masked: str) -> None:
    if (how, masked) == ("flag", "alibi"):
        return
    model = Own(how, masked).eval()
    trace = traced(model, IDS)
    layer = trace.layers[0]
    difference = (dense(layer) - model.expected(IDS)).abs().max()
    assert difference <= TOLERANCE
    assert trace.not_traced == ()
    assert (layer.name, layer.kind) == ("Own", "encoder" if masked == "none" else "decoder")
    assert trace.tokens == [f"#{number}" for number in IDS[0].tolist()]
    # Queries and keys are kept, and everything else that enters the scores is known.
    for head in range(4):
        whole = layer.matrix[head, :, :].double()
        torch.testing.assert_close(whole, model.expected(IDS)[head], atol=TOLERANCE, rtol=0)
    check_unchanged(model, IDS)


def test_gradients_flow_through_a_watched_module() -> None:
    model = Own("numbers", "causal").eval()
    model(IDS).square().sum().backward()
    own = model.project.weight.grad.clone()
    model.zero_grad()
    with weft.watch(model):
        model(IDS).square().sum().backward()
    torch.testing.assert_close(model.project.weight.grad, own)


def test_what_is_dropped_is_drawn_by_torch() -> None:
    class Dropping(Own):
        def forward(self, ids: Tensor) -> Tensor:
            parts = self.project(self.embedding(ids)).chunk(3, -1)
            return functional.scaled_dot_product_attention(*parts, dropout_p=0.5)

    model = Dropping("numbers").eval()
    torch.manual_seed(3)
    with torch.no_grad():
        expected = model(IDS)
    torch.manual_seed(3)
    with weft.watch(model, keep=weft.All(), verify=False) as watched, torch.no_grad():
        assert torch.equal(model(IDS), expected)
    assert float(dense(watched.trace.layers[0]).sum(-1).sub(1).abs().max()) <= TOLERANCE


def test_a_row_that_hides_every_key_by_a_finite_number_looks_at_all_of_them() -> None:
    class Hidden(Own):
        def scores_added(self, length: int) -> Tensor:
            added = torch.zeros(4, length, length)
            added[:, 2] = torch.finfo(torch.float32).min
            return added

    model = Hidden("numbers").eval()
    layer = traced(model, IDS).layers[0]
    torch.testing.assert_close(layer.graph.weights[:, 2], torch.full((4, 7), 1 / 7))


def test_a_model_in_float64_keeps_its_digits() -> None:
    model = Own("numbers").double().eval()
    with torch.no_grad():
        expected = model(IDS)
        with weft.watch(model):
            assert torch.equal(model(IDS), expected)


def test_what_cannot_be_seen_is_named() -> None:
    class ByHand(nn.Module):
        def forward(self, hidden: Tensor) -> Tensor:
            return (hidden @ hidden.mT).softmax(-1) @ hidden

    class Both(nn.Module):
        def __init__(self) -> None:
            super().__init__()
            self.seen, self.unseen = Own("numbers"), ByHand()

        def forward(self, ids: Tensor) -> Tensor:
            return self.unseen(self.seen(ids))

    hidden = torch.randn(2, 5, 16)
    with pytest.raises(weft.InputError, match=r"it \(ByHand\) computes its softmax by hand"):
        weft.trace(ByHand(), hidden)
    model = ByHand().eval()
    with (
        pytest.warns(UserWarning, match="watch: ByHand: .* by hand, which is not seen"),
        weft.watch(model) as watched,
    ):
        model(hidden)
    assert watched.traces == []
    model = Both().eval()
    with pytest.warns(UserWarning, match=r"unseen \(ByHand\): it takes attention by itself"):
        trace = traced(model, IDS)
    assert [entry["name"] for entry in trace.not_traced] == ["unseen"]
    assert [layer.name for layer in trace.layers] == ["seen"]
    with pytest.raises(weft.InputError, match="Linear called no attention function"):
        weft.trace(nn.Linear(2, 2), torch.randn(1, 2))
    with pytest.raises(weft.InputError, match=r"compiled by torch\.jit"):
        weft.trace(torch.jit.script(nn.Linear(2, 2)), torch.randn(1, 2))
    with pytest.raises(weft.InputError, match="does not take 3 inputs"):
        weft.trace(Both(), (IDS, IDS, IDS))
    with pytest.raises(weft.InputError, match="reads tensors"):
        weft.trace(Both(), "a text")
    with pytest.raises(weft.InputError, match="generate= is for models of Transformers"):
        weft.trace(Both(), IDS, generate=3)


def test_layers_that_run_outside_of_the_model_are_named() -> None:
    model = nn.Sequential(Own("numbers")).eval()
    with pytest.warns(UserWarning, match=r"ran outside of Sequential\.forward"), weft.watch(model):
        model[0](IDS)


def test_a_watch_gives_a_trace_for_each_call() -> None:
    model = Own("numbers", "causal").eval()
    with weft.watch(model, keep=weft.All()) as watched:
        model(IDS)
        model(ids=IDS[:, :3])
    assert [trace.layers[0].shape for trace in watched.traces] == [(4, 7, 7), (4, 3, 3)]
    torch.testing.assert_close(
        dense(watched.traces[1].layers[0]), model.expected(IDS[:, :3]), atol=TOLERANCE, rtol=0
    )
    assert watched.traces[0].verification["difference"] < 1e-6
    assert "on another text" in watched.traces[1].verification["unverified"]


# flex_attention


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
    "causal": (
        lambda b, h, i, j: i >= j,
        None,
        lambda s, d: s.masked_fill(d < 0, -torch.inf),
    ),
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
    with pytest.raises(weft.InputError, match=r"neither a bias that is added .* nor a soft cap"):
        weft.trace(model, torch.randn(1, 9, 16))


def test_the_modules_of_timm_leave_no_stand_in_behind() -> None:
    _timm()
    assert "torchvision" not in sys.modules or sys.modules["torchvision"].__file__
