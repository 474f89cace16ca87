"""Modules of torch that do something unusual: parts, latents, half precision, counters, threads."""

from __future__ import annotations

import sys
import threading
from typing import Any

import pytest
import torch
from packaging.version import Version
from tests.tracing.module_weights import encoder, traced
from torch import Tensor, nn
from torch.utils.checkpoint import checkpoint

import headloom
from headloom.analysis.graphs.flow import attention_flow
from headloom.analysis.graphs.rollout import passed_over
from headloom.tracing.model_state import as_written
from headloom.tracing.modules import fast_paths_off


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
        {"name": "columns", "class": "MultiheadAttention", "reason": "it was not asked for"}
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


@pytest.mark.parametrize("dtype", [torch.bfloat16, torch.float16])
def test_half_precision_inside_is_no_difference(dtype: torch.dtype) -> None:
    """By autocast, or by casts; what the model gives is float32."""

    class Casts(nn.Module):
        def __init__(self) -> None:
            super().__init__()
            self.inner = encoder().to(dtype)

        def forward(self, x: Tensor) -> Tensor:
            return self.inner(x.to(dtype)).float()

    torch.manual_seed(0)
    x = torch.randn(2, 9, 16)
    headloom.trace(Casts().eval(), x)
    with torch.autocast("cpu", dtype=dtype):
        headloom.trace(encoder(), x)


def test_a_buffer_that_counts_calls_counts_one() -> None:
    class Counts(nn.Module):
        def __init__(self) -> None:
            super().__init__()
            self.inner = encoder()
            self.calls: Tensor
            self.register_buffer("calls", torch.zeros((), dtype=torch.int64))

        def forward(self, x: Tensor) -> Tensor:
            self.calls += 1
            return self.inner(x)

    model = Counts().eval()
    trace = traced(model, torch.randn(1, 5, 16))
    assert trace.verification is not None
    assert int(model.calls) == 1


def test_two_threads_leave_the_fast_path_as_it_was() -> None:
    models, x = [encoder(), encoder()], torch.randn(2, 6, 16)
    assert torch.backends.mha.get_fastpath_enabled()
    interval = sys.getswitchinterval()
    sys.setswitchinterval(1e-5)
    try:
        for _ in range(4):
            threads = [threading.Thread(target=headloom.trace, args=(model, x)) for model in models]
            for thread in threads:
                thread.start()
            for thread in threads:
                thread.join()
            assert torch.backends.mha.get_fastpath_enabled()
    finally:
        sys.setswitchinterval(interval)


def test_the_fast_path_stays_off_until_the_last_trace_has_ended() -> None:
    first, second = fast_paths_off.on(), fast_paths_off.on()
    enabled = torch.backends.mha.get_fastpath_enabled
    first.__enter__()
    second.__enter__()
    first.__exit__(None, None, None)
    still_off = not enabled()
    second.__exit__(None, None, None)
    assert still_off and enabled()


def test_what_is_compiled_is_compiled_again_after_traces_that_overlapped() -> None:
    """It was left as it is written for good: the second put back what it had found."""
    calls = []

    def backend(module: torch.fx.GraphModule, _: list[Tensor]) -> Any:
        calls.append(module)
        return module.forward

    first, second = as_written(), as_written()
    torch.compile(lambda x: x + 1, backend=backend)(torch.zeros(2))
    first.__enter__()
    second.__enter__()
    first.__exit__(None, None, None)
    torch.compile(lambda x: x + 2, backend=backend)(torch.zeros(2))
    second.__exit__(None, None, None)
    torch.compile(lambda x: x + 3, backend=backend)(torch.zeros(2))
    assert len(calls) == 2


def test_a_row_that_is_no_number_is_none_in_the_dense_graph() -> None:
    x = torch.randn(1, 5, 16)
    x[0, 2] = torch.nan
    with pytest.warns(UserWarning, match="NaN"):
        trace = traced(encoder(), x)
    assert trace.layers[0].graph.dense().isnan().all()


def test_a_mask_with_nan_is_refused_by_name() -> None:
    class Masked(nn.Module):
        def forward(self, x: Tensor) -> Tensor:
            mask = torch.zeros(4, 4)
            mask[1, 2] = torch.nan
            return nn.functional.scaled_dot_product_attention(x, x, x, attn_mask=mask)

    with (
        pytest.warns(UserWarning, match="NaN"),
        pytest.raises(headloom.InputError, match=r"of Masked .*its mask holds .* \(NaN\)"),
    ):
        headloom.trace(Masked().eval(), torch.randn(1, 2, 4, 8))


def test_a_watch_without_a_trace_says_why() -> None:
    class ByHand(nn.Module):
        def forward(self, x: Tensor) -> Tensor:
            return (x @ x.mT).softmax(-1) @ x

    model = ByHand().eval()
    with pytest.warns(UserWarning, match="by hand"), headloom.watch(model) as watched:
        model(torch.randn(1, 3, 4))
    with pytest.raises(headloom.InputError, match="there is no trace; expected one"):
        _ = watched.trace


@pytest.mark.parametrize("kv_heads", [4, 2])
def test_masks_of_calls_with_more_dimensions_and_fewer_heads_of_keys(kv_heads: int) -> None:
    """Five dimensions, (1, inputs, heads, positions, depth), and a mask for each input."""
    masks = torch.rand(1, 3, 1, 5, 5, generator=torch.Generator().manual_seed(5)) > 0.4
    masks = masks | torch.eye(5, dtype=torch.bool)
    seen: list[Tensor] = []

    class Grouped(nn.Module):
        def forward(self, x: Tensor) -> Tensor:
            queries = x.reshape(1, 3, 5, 4, 8).transpose(2, 3)
            keys = queries[:, :, :kv_heads].flip(-1)
            seen[:] = [queries, keys]
            if kv_heads == 4:
                made = nn.functional.scaled_dot_product_attention(queries, keys, keys, masks)
            else:
                made = nn.functional.scaled_dot_product_attention(
                    queries[0], keys[0], keys[0], masks[0], enable_gqa=True
                )[None]
            return made.transpose(2, 3).reshape(3, 5, 32)

    traces = headloom.trace(Grouped().eval(), torch.randn(3, 5, 32), keep=headloom.All())
    queries, keys = (part[0].double() for part in seen)
    scores = queries @ keys.repeat_interleave(4 // kv_heads, 1).mT / 8**0.5
    weights = scores.masked_fill(~masks[0], -torch.inf).softmax(-1)
    for trace, expected in zip(traces, weights, strict=True):
        (layer,) = trace.layers
        assert torch.allclose(layer.graph.dense().double(), expected, atol=2e-6)
        assert trace.deviation < 1e-5


class Remembering(nn.Module):
    """Attention over what it read before too, in a list; it adds to its input in place."""

    def __init__(self) -> None:
        super().__init__()
        self.project = nn.Linear(8, 24)
        self.read: list[Tensor] = []

    def forward(self, tokens: Tensor) -> Tensor:
        tokens += 0.5
        queries, keys, values = self.project(tokens).unflatten(-1, (3, 2, 4)).unbind(-3)
        self.read.append(keys)
        held = torch.cat(self.read, 1)
        parts = (part.transpose(1, 2) for part in (queries, held, held + values[:, :1]))
        return nn.functional.scaled_dot_product_attention(*parts)


def test_what_a_module_writes_into_lists_and_its_input_is_as_after_one_call() -> None:
    torch.manual_seed(0)
    model, tokens = Remembering().eval(), torch.randn(1, 5, 8)
    before = tokens.clone()
    trace = headloom.trace(model, tokens)
    assert trace.layers[0].shape == (2, 5, 5)
    assert len(model.read) == 1  # as one call without headloom leaves it
    torch.testing.assert_close(tokens, before + 0.5)
    model.read.clear()
    with headloom.watch(model) as watched, torch.no_grad():
        model(tokens)
    assert watched.trace.layers[0].shape == (2, 5, 5)
    assert len(model.read) == 1  # as without the watch
    torch.testing.assert_close(tokens, before + 1)


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
    torch.testing.assert_close(trace.layers[0].graph.dense(), expected, rtol=1e-4, atol=1e-6)


def test_a_bias_in_float64_is_checked_in_its_own_type() -> None:
    torch.manual_seed(0)
    layer = nn.TransformerEncoderLayer(8, 2, 16, batch_first=True).double().eval()
    bias = torch.randn(6, 6).double()
    trace = headloom.trace(layer, (torch.randn(1, 6, 8).double(), bias))
    assert trace.layers[0].deviation < 1e-5


@pytest.mark.parametrize("hides", [-1e9, -1e4, torch.finfo(torch.float32).min])
def test_rows_whose_scores_lie_too_far_from_0_have_no_matrix(hides: float) -> None:
    torch.manual_seed(0)
    mask = torch.full((6, 6), hides).triu(1)
    mask[:, :2] = hides  # so that the first two rows see no key as they should
    trace = headloom.trace(Both(mask, is_causal=False).eval(), torch.randn(1, 6, 8))
    layer = trace.layers[0]
    assert layer.matrix is None or bool(((layer.matrix.dense().sum(-1) - 1).abs() < 1e-4).all())
    assert layer.matrix is not None or "too large" in layer.no_matrix or "bias" in layer.no_matrix


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
    torch.testing.assert_close(layer.graph.dense(), weights.reshape(heads, 6, 5))
    torch.testing.assert_close(layer.matrix.dense(), weights.reshape(heads, 6, 5))


class Checkpointed(nn.Module):
    """Two layers, each in a checkpoint of activations."""

    def __init__(self) -> None:
        super().__init__()
        mask = torch.ones(6, 6, dtype=torch.bool).tril()
        self.first, self.last = Both(mask, False), Both(mask, False)

    def forward(self, tokens: Tensor) -> Tensor:
        for layer in (self.first, self.last):
            heads = checkpoint(layer, tokens, use_reentrant=False)
            tokens = heads.transpose(1, 2).flatten(2)
        return tokens


@pytest.mark.parametrize("layers", [None, ["last"]])
def test_checkpoints_compute_gradients_as_without_a_watch(layers) -> None:
    torch.manual_seed(0)
    model = Checkpointed().eval()
    tokens, parameters = torch.randn(1, 6, 8), list(model.parameters())
    expected = torch.autograd.grad(model(tokens).square().sum(), parameters)
    with headloom.watch(model, keep=headloom.Top(3), layers=layers) as watched:
        model(tokens).square().sum().backward()
        again = torch.autograd.grad(model(tokens).square().sum(), parameters)
    for parameter, gradient, other in zip(parameters, expected, again, strict=True):
        torch.testing.assert_close(parameter.grad, gradient)
        torch.testing.assert_close(other, gradient)
    assert [len(trace.layers) for trace in watched.traces] == [1 if layers else 2] * 2


def test_a_module_without_numbers_is_refused() -> None:
    with torch.device("meta"):
        model = nn.TransformerEncoderLayer(8, 2, 16, batch_first=True).eval()
    with pytest.raises(
        headloom.InputError, match=r"trace: TransformerEncoderLayer is on the device meta"
    ):
        headloom.trace(model, torch.randn(1, 6, 8))
    with (
        pytest.raises(headloom.InputError, match=r"watch: .* on the device meta"),
        headloom.watch(model),
    ):
        pass


@pytest.mark.parametrize(
    "attention",
    [
        lambda q: torch.ops.aten._scaled_dot_product_flash_attention_for_cpu(q, q, q)[0],
        lambda q: torch.ops.aten._scaled_dot_product_attention_math(q, q, q)[0],
        lambda q: torch.ops.aten.scaled_dot_product_attention(q, q, q),
        lambda q: torch._softmax(q @ q.mT, -1, False) @ q,
        lambda q: torch.ops.aten._softmax(q @ q.mT, -1, False) @ q,
    ],
)
def test_inner_functions_of_torch_are_attention_that_is_named(attention) -> None:
    class Inner(nn.Module):
        def forward(self, queries: Tensor) -> Tensor:
            return attention(queries)

    class Outer(nn.Module):
        def __init__(self) -> None:
            super().__init__()
            self.seen, self.inner = Both(torch.zeros(6, 6), False), Inner()

        def forward(self, tokens: Tensor) -> Tensor:
            return self.inner(self.seen(tokens))

    with pytest.warns(UserWarning, match=r"an attention module ran and cannot be traced: inner"):
        trace = headloom.trace(Outer().eval(), torch.randn(1, 6, 8))
    assert [entry["name"] for entry in trace.not_traced] == ["inner"]
