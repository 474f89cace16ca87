"""Any module of torch: its weights against a computation in float64, without headloom."""

from __future__ import annotations

from collections.abc import Callable
from typing import Any

import pytest
import torch
from tests.tracing.module_weights import (
    TOLERANCE,
    assert_weights,
    by_heads,
    check_unchanged,
    dense,
    encoder,
    run,
    traced,
    weights_of,
)
from torch import Tensor, nn
from torch.nn import functional

import headloom

# Of torch itself, when its compiler is loaded, and of what is compiled by torch.jit.
pytestmark = pytest.mark.filterwarnings("ignore:`torch.jit:DeprecationWarning")


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
@pytest.mark.usefixtures("without_fast_paths")
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


@pytest.mark.filterwarnings("ignore:The PyTorch API of nested tensors")
def test_an_encoder_on_the_fast_path_of_torch_is_seen() -> None:
    model = encoder()
    hidden = torch.tensor([[False] * 6, [False] * 4 + [True] * 2])
    inputs = {"src": torch.randn(2, 6, 16), "src_key_padding_mask": hidden}
    # The fast path makes nested tensors of it, and calls nothing that could be seen.
    assert not run(model, inputs)[1, 4:].any()
    traces = headloom.trace(model, inputs, keep=headloom.All())
    added = torch.zeros(2, 1, 1, 6, dtype=torch.float64).masked_fill(
        hidden[:, None, None], -torch.inf
    )
    paths = [f"layers.{layer}.self_attn" for layer in range(2)]
    expected = of_multihead_attention(model, inputs, dict.fromkeys(paths, added))
    for sample, trace in enumerate(traces):
        assert_weights(trace, {path: weights[sample] for path, weights in expected.items()})
    fast = run(model, inputs)
    # In a block nothing may change, so the fast path cannot be left there.
    with (
        pytest.raises(headloom.InputError, match=r"set_fastpath_enabled\(False\)"),
        headloom.watch(model),
    ):
        raise AssertionError("the block runs")
    assert torch.equal(run(model, inputs), fast)


@pytest.mark.parametrize("need_weights", [True, False])
@pytest.mark.parametrize("batch_first", [True, False])
@pytest.mark.parametrize("options", [{}, {"add_bias_kv": True, "add_zero_attn": True}])
def test_multihead_attention_alone(
    need_weights: bool, batch_first: bool, options: dict[str, bool]
) -> None:
    model = nn.MultiheadAttention(16, 4, batch_first=batch_first, **options).eval()
    query, key = torch.randn(2, 5, 16), torch.randn(2, 7, 16)
    mask = torch.rand(5, 7) > 0.7
    mask[:, 0] = False  # no query without a key, whose output is NaN
    if not batch_first:
        query, key = query.transpose(0, 1), key.transpose(0, 1)
    inputs = {"query": query, "key": key, "value": key, "attn_mask": mask}
    # Torch's own weights.
    with torch.no_grad():
        expected = model.double()(
            query.double(), key.double(), key.double(), attn_mask=mask, average_attn_weights=False
        )[1]
        model.float()
    traces = headloom.trace(model, {**inputs, "need_weights": need_weights}, keep=headloom.All())
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
        added = torch.zeros(4, length, length, dtype=self.project.weight.dtype)
        if self.masked in ("causal", "window"):
            added = added.masked_fill(distance < 0, -torch.inf)
        if self.masked == "window":
            added = added.masked_fill(distance > 2, -torch.inf)
        if self.masked == "alibi":
            slopes = added.new_tensor([0.5, 0.25, 0.125, 0.0625])[:, None, None]
            added = (-slopes * distance.abs()).masked_fill(distance < 0, -torch.inf)
        return added

    def forward(self, ids: Tensor) -> Tensor:
        parts = self.project(self.embedding(ids)).chunk(3, -1)
        queries, keys, values = (part.unflatten(-1, (4, 4)).transpose(1, 2) for part in parts)
        added = self.scores_added(ids.shape[1])
        if self.how == "headloom":
            rules = {
                "none": {},
                "causal": {"mask": headloom.causal()},
                "window": {"mask": headloom.window(2, 0)},
                "alibi": {"mask": headloom.causal(), "bias": added.nan_to_num(neginf=0)[None]},
            }
            output = headloom.attention(queries, keys, values, **rules[self.masked])
        elif self.how == "headloom numbers":
            output = headloom.attention(queries, keys, values, bias=added[None])
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
@pytest.mark.parametrize("how", ["headloom", "headloom numbers", "numbers", "five", "flag"])
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
    with headloom.watch(model):
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
    with headloom.watch(model, keep=headloom.All(), verify=False) as watched, torch.no_grad():
        assert torch.equal(model(IDS), expected)
    assert float(dense(watched.trace.layers[0]).sum(-1).sub(1).abs().max()) <= TOLERANCE


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
    with pytest.raises(headloom.InputError, match=r"it \(ByHand\) computes its softmax by hand"):
        headloom.trace(ByHand(), hidden)
    model = ByHand().eval()
    with (
        pytest.warns(UserWarning, match="watch: ByHand ran on, .* by hand, which cannot be traced"),
        headloom.watch(model) as watched,
    ):
        model(hidden)
    assert watched.traces == []
    model = Both().eval()
    with pytest.warns(UserWarning, match=r"unseen \(ByHand\): it computes attention itself"):
        trace = traced(model, IDS)
    assert [entry["name"] for entry in trace.not_traced] == ["unseen"]
    assert [layer.name for layer in trace.layers] == ["seen"]
    for module, inputs, options, line in (
        (torch.jit.script(nn.Linear(2, 2)), torch.randn(1, 2), {}, r"compiled by torch\.jit"),
        (model, (IDS, IDS, IDS), {}, "does not take these"),
        (model, "a text", {}, "reads tensors"),
        (model, IDS, {"generate": 3}, "generate= is for models of Transformers"),
    ):
        with pytest.raises(headloom.InputError, match=line):
            headloom.trace(module, inputs, **options)


def test_layers_that_run_outside_of_the_model_are_named() -> None:
    model = nn.Sequential(Own("numbers")).eval()
    with (
        pytest.warns(UserWarning, match=r"ran outside Sequential\.forward"),
        headloom.watch(model),
    ):
        model[0](IDS)
