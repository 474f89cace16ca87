"""The Triton kernel on a CUDA device, at lengths of real prompts, against dense float64 there.

`scripts/random_calls --device cuda` draws short calls of every kind; these are long enough that
candidates are cut often, that tiles take both paths, and that a call is several launches.
"""

from __future__ import annotations

from typing import Any

import pytest
import torch
from torch import Tensor

import headloom

pytestmark = pytest.mark.skipif(not torch.cuda.is_available(), reason="needs a CUDA device")

#: By how much weights, of numbers about 1, and outputs may be off.
ROUNDING = {torch.float32: 2e-5, torch.bfloat16: 2e-2, torch.float16: 3e-3}


def dense(
    queries: Tensor, keys: Tensor, hidden: Tensor | None, scale: float, **more: Any
) -> Tensor:
    """Scores in float64; more: softcap, bias."""
    group = queries.shape[1] // keys.shape[1]
    scores = queries.double() @ keys.double().repeat_interleave(group, 1).transpose(-1, -2) * scale
    if more.get("softcap"):
        scores = more["softcap"] * torch.tanh(scores / more["softcap"])
    if more.get("bias") is not None:
        scores = scores + more["bias"].double()
    return scores if hidden is None else scores.masked_fill(hidden, -torch.inf)


def check(
    queries: Tensor, keys: Tensor, values: Tensor, hidden: Tensor | None, k: int, **options: Any
) -> None:
    """One call against its formula, one head at a time."""
    depth, length = queries.shape[-1], keys.shape[2]
    scale = options.pop("scale", depth**-0.5)
    output, graph = headloom.attend(
        queries, keys, values, scale=scale, keep=headloom.Top(k), backend="triton", **options
    )
    more = {name: options.get(name) for name in ("softcap", "bias")}
    group, rounding = queries.shape[1] // keys.shape[1], ROUNDING[queries.dtype]
    for head in range(queries.shape[1]):
        of = slice(head, head + 1)
        own_keys, own_values = (x[:, head // group : head // group + 1] for x in (keys, values))
        scores = dense(queries[:, of], own_keys, hidden, scale, **more)
        lse = scores.logsumexp(-1)
        weights = torch.where(lse[..., None] == -torch.inf, 0.0, (scores - lse[..., None]).exp())
        expected = weights @ own_values.double()
        assert (output[:, of].double() - expected).abs().max() < rounding * expected.abs().max()
        seen = (scores > -torch.inf).sum(-1)
        assert torch.equal(graph.count[:, of].long(), seen)
        there = graph.keys[:, of] >= 0
        places = torch.arange(there.shape[-1], device=there.device)
        assert torch.equal(there, places < seen.clamp(max=k)[..., None])
        at = graph.keys[:, of].long().clamp(min=0)
        mine = torch.where(there, scores.gather(-1, at), 0.0)
        size = scores.masked_fill(scores == -torch.inf, 0.0).abs().max()
        kept = torch.where(there, weights.gather(-1, at), 0.0)
        if k:
            apart = (torch.where(there, graph.scores[:, of], 0.0) - mine).abs()
            assert apart.max() < 2e-6 * size
            assert (graph.weights[:, of].double() - kept).abs().max() < rounding
        chosen = torch.zeros_like(weights).scatter_add(-1, at, there.double())
        assert chosen.max() <= 1
        if k and length > k:
            left = scores.masked_fill(chosen > 0, -torch.inf).amax(-1)
            lowest = torch.where(there, mine, torch.inf).amin(-1)
            assert (left <= lowest + 4e-6 * size).all()
        finite = lse > -torch.inf
        assert torch.equal(graph.lse[:, of] > -torch.inf, finite)
        assert (graph.lse[:, of].double() - lse)[finite].abs().max() < 1e-5 * max(1.0, float(size))
        logs = torch.where(weights > 0, weights, 1.0).log()
        entropy = -(weights * logs).sum(-1)
        assert (graph.entropy[:, of].double() - entropy).abs().max() < 2e-4
        rest = torch.where(finite, 1.0 - kept.sum(-1), 0.0)
        assert (graph.rest[:, of].double() - rest).abs().max() < 2e-5


def drawn(
    dtype: torch.dtype, heads: int, kv_heads: int, queries: int, length: int, depth: int
) -> tuple[Tensor, Tensor, Tensor]:
    generator = torch.Generator("cuda").manual_seed(1)
    shapes = (heads, queries), (kv_heads, length), (kv_heads, length)
    q, k, v = (
        torch.randn(1, *shape, depth, device="cuda", generator=generator).to(dtype)
        for shape in shapes
    )
    return q, k, v


@pytest.mark.parametrize("dtype", list(ROUNDING), ids=str)
@pytest.mark.parametrize("depth", [40, 64, 128, 256])
@pytest.mark.parametrize("k", [0, 1, 32])
def test_types_and_depths(dtype: torch.dtype, depth: int, k: int) -> None:
    q, keys, values = drawn(dtype, 4, 2, 3000, 3000, depth)
    hidden = torch.ones(3000, 3000, dtype=torch.bool, device="cuda").triu(1)
    check(q, keys, values, hidden, k, mask=headloom.causal())
    check(q, keys, values, None, k)


def test_masks_and_terms() -> None:
    q, keys, values = drawn(torch.float32, 2, 2, 1500, 2100, 64)
    rows, columns = torch.arange(1500, device="cuda")[:, None], torch.arange(2100, device="cuda")
    distance = columns - rows
    check(q, keys, values, (distance < -700) | (distance > 3), 32, mask=headloom.window(700, 3))
    real = columns[None, :] >= 1234
    check(q, keys, values, real, 32, mask=headloom.padding([1234]))
    cells = torch.rand(1500, 2100, device="cuda") < 0.3
    check(q, keys, values, ~cells, 32, mask=cells)
    bias = torch.randn(1, 1, 1500, 2100, device="cuda")
    check(q, keys, values, None, 32, bias=bias)
    check(q, keys, values, None, 32, softcap=2.0)


@pytest.mark.parametrize("scores", ["rising", "falling", "equal", "few", "wide"])
@pytest.mark.parametrize("causal", [False, True])
def test_rows_that_hurt(scores: str, causal: bool) -> None:
    """Queries are 1 and keys are the scores: a stable sort says what is kept."""
    length = 4000
    generator = torch.Generator("cuda").manual_seed(2)
    steps = torch.arange(length, device="cuda").float()
    signs = torch.randn(length, device="cuda", generator=generator).sign()
    row = {
        "rising": steps, "falling": -steps, "equal": torch.full_like(steps, 7.0),
        "few": torch.randint(-2, 3, (length,), device="cuda", generator=generator).float(),
        "wide": signs * 2.0 ** torch.randint(
            -90, 60, (length,), device="cuda", generator=generator
        ).float(),
    }[scores]  # fmt: skip
    queries, keys = torch.ones(1, length, 1, device="cuda"), row[None, :, None]
    options: dict[str, Any] = {"mask": headloom.causal() if causal else None, "scale": 1.0}
    _, graph = headloom.attend(
        queries, keys, torch.ones_like(keys), keep=headloom.Top(32), backend="triton", **options
    )
    for query in range(0, length, 37):
        seen = row[: query + 1] if causal else row
        order = seen.sort(descending=True, stable=True).indices[:32]
        assert torch.equal(graph.keys[0, query, : len(order)].long(), order)


def test_gradients() -> None:
    parts = drawn(torch.float32, 2, 1, 600, 600, 64)
    by = {}
    for backend in ("triton", "torch"):
        leaves = [part.clone().requires_grad_() for part in parts]
        output, graph = headloom.attend(*leaves, mask=headloom.causal(), backend=backend)
        loss = output.square().sum() + graph.weights.square().sum() + graph.entropy.sum()
        by[backend] = torch.autograd.grad(loss, leaves)
    for mine, other in zip(by["triton"], by["torch"], strict=True):
        assert (mine - other).abs().max() < 1e-4 * other.abs().max()


def test_a_call_without_a_backend_is_served_by_it() -> None:
    q, keys, values = drawn(torch.bfloat16, 2, 2, 300, 300, 64)
    _, graph = headloom.attend(q, keys, values)
    _, named = headloom.attend(q, keys, values, backend="triton")
    assert torch.equal(graph.keys, named.keys)
