"""Multi-head attention against the paper, against torch's layer, and step by step."""

from __future__ import annotations

from copy import copy, deepcopy
from typing import Any

import pytest
import torch
from hypothesis import given, settings
from hypothesis import strategies as st
from torch import Tensor, nn

import headloom
from headloom.mechanism.attention_layer import PositionSizes, RelativeKind
from headloom.mechanism.key_value_cache import KeyValueCache
from headloom.mechanism.multihead import MultiHeadAttention
from headloom.mechanism.reference import attention as reference

RELATIVES: list[RelativeKind] = ["none", "shaw", "shaw-keys", "alibi", "buckets", "rotary"]


def layer_of(*arguments: Any, seed: int = 0, **options: Any) -> MultiHeadAttention:
    torch.manual_seed(seed)
    layer = MultiHeadAttention(*arguments, **options).double()
    for linear in (layer.w_q, layer.w_k, layer.w_v, layer.w_o):
        if linear.bias is not None:
            nn.init.normal_(linear.bias)  # zero biases would hide a mistake
    return layer


def random(*shape: int, seed: int = 1) -> Tensor:
    generator = torch.Generator().manual_seed(seed)
    return torch.randn(*shape, dtype=torch.float64, generator=generator)


@settings(max_examples=25, deadline=None)
@given(
    st.sampled_from(((1, 1), (4, 4), (4, 2), (6, 1))),
    st.integers(1, 3),
    st.integers(1, 5),
    st.integers(1, 5),
    st.booleans(),
)
def test_the_formula_of_the_paper(
    heads: tuple[int, int], depth: int, rows: int, length: int, causal: bool
) -> None:
    """Self, encoder-decoder and grouped-query attention from the matrices of each head."""
    query_heads, kv_heads = heads
    layer = layer_of(5, query_heads, kv_heads=kv_heads, depth=depth, bias=False, source_width=7)
    group_size = query_heads // kv_heads
    matrices = layer.matrices()
    W_Q, W_O = matrices["W_Q"], matrices["W_O"].flatten(0, 1)
    W_K, W_V = (matrices[name][::group_size] for name in ("W_K", "W_V"))
    assert W_Q.shape == (query_heads, 5, depth)
    assert W_K.shape == W_V.shape == (kv_heads, 7, depth)
    assert W_O.shape == (query_heads * depth, 5)

    decoder, encoder = random(2, rows, 5), random(2, length, 7, seed=2)
    allowed = torch.ones(rows, length).tril().bool() if causal else None
    mask = headloom.causal() if causal else None
    output = layer(decoder, encoder, mask=mask)
    for b in range(2):
        expected = reference.multi_head(decoder[b], encoder[b], W_Q, W_K, W_V, W_O, allowed)
        torch.testing.assert_close(output[b], expected, rtol=0, atol=1e-12)

    own = layer_of(5, query_heads, kv_heads=kv_heads, depth=depth, bias=False)
    matrices = own.matrices()
    shared = {name: matrices[name][::group_size] for name in ("W_K", "W_V")}
    for b in range(2):
        expected = reference.multi_head(
            decoder[b], decoder[b], matrices["W_Q"], shared["W_K"], shared["W_V"],
            matrices["W_O"].flatten(0, 1),
        )  # fmt: skip
        torch.testing.assert_close(own(decoder)[b], expected, rtol=0, atol=1e-12)


class TestTorch:
    """torch.nn.MultiheadAttention."""

    @pytest.mark.parametrize("bias", [True, False])
    @pytest.mark.parametrize("source_width", [8, 6])
    @pytest.mark.parametrize("dtype", [torch.float32, torch.float64])
    def test_outputs_agree(self, bias: bool, source_width: int, dtype: torch.dtype) -> None:
        torch.manual_seed(0)
        theirs = nn.MultiheadAttention(
            8, 4, bias=bias, kdim=source_width, vdim=source_width, batch_first=True
        ).to(dtype)
        if bias:
            nn.init.normal_(theirs.in_proj_bias)
            nn.init.normal_(theirs.out_proj.bias)
        ours = MultiHeadAttention(
            embed_dim=8, num_heads=4, batch_first=True, bias=bias, source_width=source_width
        ).to(dtype)
        before = ours.state_dict().keys()
        ours.load_state_dict(theirs.state_dict())
        assert ours.state_dict().keys() == before
        again = MultiHeadAttention.from_torch(theirs)
        assert all(map(torch.equal, ours.state_dict().values(), again.state_dict().values()))
        tolerance = {"rtol": 0, "atol": 1e-6 if dtype == torch.float32 else 1e-12}
        x, y = random(2, 5, 8).to(dtype), random(2, 7, source_width, seed=2).to(dtype)
        hidden = torch.arange(7) >= torch.tensor([[7], [4]])
        ahead = torch.ones(5, 7).triu(1).bool()
        cases: list[tuple[dict[str, Any], dict[str, Any]]] = [
            ({}, {}),
            ({"mask": headloom.padding(~hidden)}, {"key_padding_mask": hidden}),
            ({"is_causal": True}, {"attn_mask": ahead}),
            ({"mask": "causal"}, {"attn_mask": ahead, "is_causal": True}),
            ({"mask": ~ahead}, {"attn_mask": ahead}),
        ]
        for own, torchs in cases:
            alone = ours(x, y, **own)
            for average in (True, False):
                kinds = {"need_weights": True, "average_attn_weights": average}
                output, weights = ours(x, y, y, **own, **kinds)
                expected, their_weights = theirs(x, y, y, **torchs, **kinds)
                assert torch.equal(alone, output)
                torch.testing.assert_close(output, expected, **tolerance)
                torch.testing.assert_close(weights, their_weights, **tolerance)

    def test_a_model_takes_the_state_dict_of_one_of_torchs(self) -> None:
        theirs = nn.ModuleDict({"self_attn": nn.MultiheadAttention(8, 2)})
        ours = nn.ModuleDict({"self_attn": MultiHeadAttention(8, 2)})
        assert str(ours.load_state_dict(theirs.state_dict())) == "<All keys matched successfully>"
        with pytest.raises(RuntimeError, match=r'Unexpected key.*"bias_k"'):
            ours["self_attn"].load_state_dict(
                nn.MultiheadAttention(8, 2, add_bias_kv=True).state_dict()
            )

    @pytest.mark.parametrize("relative", ["none", "shaw", "alibi", "buckets", "rotary"])
    def test_weights_are_those_of_the_output(self, relative: RelativeKind) -> None:
        layer = layer_of(8, 2, relative=relative, softcap=5.0, sinks=True, bias=False)
        x, cache = random(2, 5, 8), KeyValueCache()
        for part in (x[:, :3], x[:, 3:]):
            _, weights = layer(
                part, is_causal=True, cache=cache, need_weights=True, average_attn_weights=False
            )
        whole, every = layer(x, is_causal=True, need_weights=True, average_attn_weights=False)
        torch.testing.assert_close(weights, every[:, :, 3:], rtol=0, atol=1e-6)
        assert not every.triu(1).any()
        if relative != "shaw":  # which adds values of its own
            values = layer.w_v(x).view(2, 5, 2, 4).transpose(1, 2)
            output = layer.w_o((every @ values).transpose(1, 2).flatten(2))
            torch.testing.assert_close(whole, output, rtol=0, atol=1e-5)

    def test_a_layer_that_returns_its_weights_is_traced_once(self) -> None:
        class Model(nn.Module):
            def __init__(self) -> None:
                super().__init__()
                self.attention = MultiHeadAttention(8, 2)

            def forward(self, x: torch.Tensor) -> torch.Tensor:
                output, self.weights = self.attention(
                    x, x, x, need_weights=True, average_attn_weights=False
                )
                return output

        model = Model().eval()
        trace = headloom.trace(model, random(1, 5, 8).float())
        (layer,) = trace.layers
        torch.testing.assert_close(layer.matrix.to_dense(), model.weights[0], rtol=0, atol=1e-6)


@pytest.mark.parametrize("assign", (False, True))
def test_slopes_are_there_after_a_start_on_meta_and_weights_that_are_loaded(assign: bool) -> None:
    torch.manual_seed(0)
    layer = MultiHeadAttention(8, 4, relative="alibi")
    with torch.device("meta"):
        other = MultiHeadAttention(8, 4, relative="alibi")
    if not assign:
        other.to_empty(device="cpu")
        other.slopes.fill_(7.0)
    other.load_state_dict(layer.state_dict(), assign=assign)
    tokens = torch.randn(2, 5, 8)
    assert torch.equal(other(tokens), layer(tokens))
    assert torch.equal(deepcopy(other)(tokens), layer(tokens))


class TestCache:
    @pytest.mark.parametrize("relative", RELATIVES)
    @pytest.mark.parametrize("kv_heads", [4, 2])
    @pytest.mark.parametrize("steps", [[1] * 6, [3, 1, 2]])
    def test_steps_equal_the_whole(
        self, relative: RelativeKind, kv_heads: int, steps: list[int]
    ) -> None:
        layer = layer_of(
            8, 4, kv_heads=kv_heads, relative=relative, positions=PositionSizes(clip=2)
        )
        inputs = random(3, 6, 8)
        whole = layer(inputs, mask=headloom.causal())
        cache, outputs, done = KeyValueCache(), [], 0
        for step in steps:
            mask = headloom.causal(offset=cache.length)
            outputs.append(layer(inputs[:, done : done + step], mask=mask, cache=cache))
            done += step
            assert cache.length == done
        torch.testing.assert_close(torch.cat(outputs, 1), whole, rtol=0, atol=1e-12)

    @pytest.mark.parametrize("relative", RELATIVES)
    def test_beams_that_change_places(self, relative: RelativeKind) -> None:
        layer = layer_of(8, 2, relative=relative, positions=PositionSizes(clip=2))
        inputs = random(3, 5, 8)
        order = torch.tensor([2, 0, 0, 1])
        cache = KeyValueCache()
        layer(inputs[:, :3], mask=headloom.causal(), cache=cache)
        cache.reorder(order)
        more = random(4, 2, 8, seed=5)
        output = layer(more, mask=headloom.causal(offset=3), cache=cache)
        whole = layer(torch.cat((inputs[order, :3], more), 1), mask=headloom.causal())
        torch.testing.assert_close(output, whole[:, 3:], rtol=0, atol=1e-12)

    def test_cross_attention_fills_it_once(self) -> None:
        layer = layer_of(8, 2, kind="cross")
        source, cache = random(2, 4, 8), KeyValueCache()
        x = random(2, 1, 8, seed=3)
        first = layer(x, source, cache=cache)
        assert cache.length == 4
        again = layer(x, torch.full_like(source, torch.nan), cache=cache)
        assert torch.equal(first, again)
        assert cache.length == 4
        torch.testing.assert_close(first, layer(x, source), rtol=0, atol=1e-12)

    @pytest.mark.parametrize("seed", range(8))
    @torch.no_grad()
    def test_what_it_holds(self, seed: int) -> None:
        """Against tensors that are joined and taken anew at every step."""
        generator = torch.Generator().manual_seed(seed)

        def number(low: int, high: int) -> int:
            return int(torch.randint(low, high, (), generator=generator))

        cache, batch = KeyValueCache(), 6
        whole, kept = [torch.zeros(batch, 2, 0, 3), torch.zeros(batch, 2, 0, 5)], []
        for _ in range(40):
            new = [torch.randn(batch, 2, number(1, 4), 3, generator=generator)]
            new.append(torch.randn(*new[0].shape[:3], 5, generator=generator))
            whole = [torch.cat(pair, 2) for pair in zip(whole, new, strict=True)]
            held = number(0, 5) == 0
            given = cache.append(new[0], new[1], kept=held)
            assert all(map(torch.equal, given, whole))
            if held:
                kept.append((given, [tensor.clone() for tensor in given]))
            count = number(max(1, batch - 1), batch + (2 if number(0, 8) == 0 else 1))
            order = torch.arange(count) % batch
            changed = torch.randperm(count, generator=generator)[: number(0, count + 1)]
            order[changed] = torch.randint(0, batch, (len(changed),), generator=generator)
            cache.reorder(order)
            whole, batch = [tensor[order] for tensor in whole], count
            assert cache.keys is not None
            assert cache.values is not None
            assert torch.equal(cache.keys, whole[0])
            assert torch.equal(cache.values, whole[1])
        assert all(torch.equal(a, b) for then, now in kept for a, b in zip(then, now, strict=True))

    def test_gradients_of_queries_alone_outlive_later_steps(self) -> None:
        """Keys that need no gradient are still what the derivative by the queries is made of."""
        keys = random(1, 1, 5, 4)
        queries, cache = random(1, 1, 1, 4, seed=2).requires_grad_(), KeyValueCache()
        total = torch.zeros((), dtype=keys.dtype)
        for place in range(5):
            own = keys[:, :, place : place + 1]
            held, _ = cache.append(own, own)
            total = total + (queries @ held.mT).square().sum()
            cache.reorder(torch.tensor([0]))
        (found,) = torch.autograd.grad(total, queries)
        expected = sum(
            (2 * (queries.detach() @ keys[:, :, : place + 1].mT)) @ keys[:, :, : place + 1]
            for place in range(5)
        )
        torch.testing.assert_close(found, expected, rtol=0, atol=1e-12)

    @pytest.mark.parametrize("how", ["copied", "cut", "other keys"])
    @torch.no_grad()
    def test_branches_do_not_see_each_other(self, how: str) -> None:
        cache, keys = KeyValueCache(), random(1, 2, 6, 4)
        for place in range(0, 6, 2):
            cache.append(keys[:, :, place : place + 2], keys[:, :, place : place + 2])
        assert cache.keys is not None
        held, start = cache.keys, keys
        other = copy(cache)
        if how == "cut":
            start = keys[:, :, :3]
            other.keys = other.values = cache.keys[:, :, :3]
            cache.keys, cache.values = other.keys, other.keys
        if how == "other keys":
            start = random(1, 2, 4, 4, seed=9)
            cache.keys = cache.values = other.keys = other.values = start
        new = [random(1, 2, 1, 4, seed=seed) for seed in (3, 4)]
        for branch, own in zip((cache, other), new, strict=True):
            branch.append(own, own)
        for branch, own in zip((cache, other), new, strict=True):
            assert branch.keys is not None
            assert torch.equal(branch.keys, torch.cat((start, own), 2))
        assert torch.equal(held, keys)


@pytest.mark.parametrize("order", [[-1, 0, 1], [3, 0, 1]])
def test_a_cache_has_no_sequence_but_its_own(order: list[int]) -> None:
    cache = KeyValueCache()
    with torch.no_grad():
        for _ in range(2):
            cache.append(torch.randn(3, 2, 1, 4), torch.randn(3, 2, 1, 4))
        with pytest.raises(IndexError, match="out of range"):
            cache.reorder(torch.tensor(order))
