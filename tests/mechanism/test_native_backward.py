"""Gradients by products of bfloat16 pairs: sizes around those of stripes, patches and tiles."""

from __future__ import annotations

import math

import pytest
import torch
from torch import Tensor
from torch.nn.functional import scaled_dot_product_attention

import headloom
from headloom.mechanism.backends import compiled
from headloom.mechanism.masks import packed

#: queries, keys, depth, depth of the values, query heads of each of two key/value heads
SHAPES = [
    (131, 70, 24, 24, 1),
    (1, 300, 64, 64, 1),
    (64, 300, 1, 63, 1),
    (65, 128, 31, 33, 3),
    (97, 545, 64, 64, 1),
    (65, 600, 128, 33, 2),
    (129, 700, 16, 96, 1),
    (70, 1100, 64, 0, 1),
]
MASKS = ["none", "causal", "window", "padding", "allowed"]


def tensors(
    queries: int, keys: int, depth: int, value_depth: int, group: int, batch: int = 2
) -> tuple[Tensor, Tensor, Tensor, Tensor]:
    """Queries, keys, values and the gradient of the output, in float32."""
    torch.manual_seed(queries + keys)
    return (
        torch.randn(batch, 2 * group, queries, depth),
        torch.randn(batch, 2, keys, depth),
        torch.randn(batch, 2, keys, value_depth),
        # As it comes from a layer: by position, then by head.
        torch.randn(batch, queries, 2 * group, value_depth).transpose(1, 2),
    )


def masks(name: str, queries: int, keys: int) -> headloom.Mask | Tensor | None:
    return {
        "none": None,
        "causal": headloom.causal(offset=max(0, keys - queries)),
        "window": headloom.window(70, 40, offset=keys // 2),
        "padding": headloom.padding(torch.tensor([keys - 33, keys // 2])),
        "allowed": torch.rand(queries, keys, generator=torch.Generator().manual_seed(1)) < 0.7,
    }[name]


def gradients(
    given: tuple[Tensor, ...], mask: headloom.Mask | Tensor | None = None
) -> tuple[Tensor, ...]:
    """By queries, keys and values, on the kernels."""
    *inputs, by_output = given
    leaves = [tensor.detach().requires_grad_() for tensor in inputs]
    output = headloom.attention(*leaves, mask=mask, backend="native")
    return torch.autograd.grad(output, leaves, by_output)


def exact(given: tuple[Tensor, ...], mask: headloom.Mask | Tensor | None) -> tuple[Tensor, ...]:
    """The same in float64, by the formula."""
    q, k, v, by_output = (tensor.double() for tensor in given)
    group = q.shape[1] // k.shape[1]
    wide_k, wide_v = k.repeat_interleave(group, 1), v.repeat_interleave(group, 1)
    scores = q @ wide_k.mT / math.sqrt(q.shape[-1])
    if isinstance(mask, Tensor):
        scores = scores.masked_fill(~mask, -math.inf)
    elif mask is not None:
        hidden = ~mask.block(range(q.shape[2]), k.shape[2], torch.device("cpu"))
        scores = scores.masked_fill(hidden, -math.inf)
    weights = scores.softmax(-1).nan_to_num()  # rows that see nothing
    by_weights = by_output @ wide_v.mT
    by_scores = weights * (by_weights - (by_weights * weights).sum(-1, keepdim=True))
    by_scores = by_scores / math.sqrt(q.shape[-1])
    by_k, by_v = by_scores.mT @ q, weights.mT @ by_output
    return by_scores @ wide_k, *(x.unflatten(1, (-1, group)).sum(2) for x in (by_k, by_v))


def error(one: Tensor, other: Tensor) -> float:
    """The largest difference, by the largest number, if that is above 1."""
    if other.numel() == 0:
        return 0.0
    largest = float(other.double().abs().max())
    return float((one.double() - other.double()).abs().max()) / max(largest, 1.0)


@pytest.mark.parametrize("mask", MASKS)
@pytest.mark.parametrize("shape", SHAPES)
def test_gradients_are_those_of_the_formula(
    shape: tuple[int, int, int, int, int],
    mask: str,
    instruction_set: str,
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    given = tensors(*shape)
    seen = masks(mask, *shape[:2])
    found = gradients(given, seen)
    for gradient, expected in zip(found, exact(given, seen), strict=True):
        assert error(gradient, expected) < 3e-6


def test_stripes_that_see_keys_far_apart(
    instruction_set: str, monkeypatch: pytest.MonkeyPatch
) -> None:
    # Of one block of queries, the first half sees the first keys, the second the last of a tile.
    given = tensors(64, 500, 64, 64, 1)
    mask = packed([32, 0, 32], [40, 100, 360])
    found = gradients(given, mask)
    for gradient, expected in zip(found, exact(given, mask), strict=True):
        assert error(gradient, expected) < 3e-6


@pytest.mark.parametrize("bad", [math.inf, -math.inf, math.nan])
@pytest.mark.parametrize("place", range(4))
@pytest.mark.parametrize(("dtype", "bound"), [(torch.float32, 2e-6), (torch.bfloat16, 2e-2)])
def test_what_is_not_finite_goes_where_it_goes_by_floats(
    instruction_set: str,
    dtype: torch.dtype,
    bound: float,
    place: int,
    bad: float,
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    given = tuple(tensor.to(dtype, copy=True) for tensor in tensors(150, 700, 64, 64, 1, batch=1))
    given[place][0, 1, 70, 5] = bad
    with monkeypatch.context() as patch:
        patch.setattr(compiled, "INSTRUCTION_SET", "baseline")
        by_floats = gradients(given)
    for one, other in zip(gradients(given), by_floats, strict=True):
        assert torch.equal(one.isnan(), other.isnan())
        assert torch.equal(one.isinf(), other.isinf())
        finite = one.isfinite()
        assert error(one[finite], other[finite]) < bound


@pytest.mark.parametrize(("queries", "keys"), [(5000, 128), (64, 5000)])
def test_errors_do_not_grow_with_the_length(
    queries: int, keys: int, instruction_set: str, monkeypatch: pytest.MonkeyPatch
) -> None:
    given = tensors(queries, keys, 32, 32, 1, batch=1)
    # Sums of numbers of one sign, whose errors would not cancel.
    given = (*given[:2], given[2].abs(), given[3].abs())
    found = gradients(given)
    for gradient, expected in zip(found, exact(given, None), strict=True):
        assert error(gradient, expected) < 5e-6


@pytest.mark.parametrize("depth", [64, 96])
def test_bfloat16_errs_no_more_than_torch(
    instruction_set: str, depth: int, monkeypatch: pytest.MonkeyPatch
) -> None:
    given = tuple(tensor.bfloat16() for tensor in tensors(300, 700, depth, depth, 1))
    leaves = [tensor.detach().requires_grad_() for tensor in given[:3]]
    output = scaled_dot_product_attention(*leaves)
    by_torch = torch.autograd.grad(output, leaves, given[3])
    expected = exact(given, None)
    for ours, theirs, true in zip(gradients(given), by_torch, expected, strict=True):
        assert (ours.double() - true).norm() <= 1.05 * (theirs.double() - true).norm()


def test_a_query_that_sees_nothing_gives_nothing() -> None:
    given = [torch.randn(1, 2, 12, 8, requires_grad=True) for _ in range(3)]
    allowed = torch.ones(12, 12, dtype=torch.bool)
    allowed[5] = False
    output = headloom.attention(*given, mask=allowed, backend="native")
    by_output = torch.randn(1, 2, 12, 8)
    changed: Tensor = by_output.clone()
    changed[:, :, 5] = 100.0
    first = torch.autograd.grad(output, given, by_output, retain_graph=True)
    second = torch.autograd.grad(output, given, changed)
    assert all(torch.equal(a, b) for a, b in zip(first, second, strict=True))
    assert not first[0][:, :, 5].any()
