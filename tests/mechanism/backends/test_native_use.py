"""Which calls the native kernels are given, and from which threads and processes."""

from __future__ import annotations

from functools import partial
from typing import Any

import pytest
import torch
from torch.utils.checkpoint import checkpoint

import headloom
from headloom.mechanism import function
from headloom.mechanism.backends import compiled
from headloom.mechanism.call import checked_call

pytestmark = pytest.mark.skipif(
    not compiled.instruction_sets(), reason="built without the native kernels"
)


def test_a_named_backend_never_falls_back() -> None:
    x = torch.randn(1, 4, 8)
    for message, options in (
        ("the tensors are torch.float64", {"dtype": torch.float64}),
        ("dropout is 0.5", {"dropout": 0.5}),
        (
            "before the bilinear matrix",
            {
                "score": headloom.Bilinear(torch.eye(8)),
                "relative": headloom.Shaw(torch.zeros(1, 8)),
            },
        ),
        ("the score is GraphAttentionV2", {"score": headloom.GraphAttentionV2(torch.zeros(8))}),
        # Along the edges of a graph, too.
        (
            "the tensors are torch.float64",
            {
                "mask": headloom.neighbours(torch.tensor([[1, 0], [0, 2]]), nodes=4),
                "dtype": torch.float64,
            },
        ),
    ):
        dtype = options.pop("dtype", torch.float32)
        y = x.to(dtype)  # type: ignore[arg-type]
        with pytest.raises(headloom.BackendError, match=message):
            headloom.attention(y, y, y, backend="native", **options)  # type: ignore[arg-type]
        headloom.attention(y, y, y, **options)  # type: ignore[arg-type]
    with pytest.raises(headloom.BackendError, match="dense weights"):
        headloom.attend(x, x, x, keep=headloom.All(), backend="native")


def test_wrapped_tensors_are_left_to_torch() -> None:
    x = torch.randn(3, 2, 4, 8)
    bias = torch.zeros(4, 4)  # torch warns that its own fused attention is slow under vmap
    found = torch.vmap(lambda one: headloom.attention(one, one, one, bias=bias, softcap=1e6))(x)
    torch.testing.assert_close(found, headloom.attention(x, x, x))
    with pytest.raises(headloom.BackendError, match="the tensors are wrapped"):
        torch.vmap(lambda one: headloom.attention(one, one, one, backend="native"))(x)


@pytest.mark.parametrize("backend", ["native", "torch"])
def test_activation_checkpointing_gives_the_same_gradients(backend: str) -> None:
    """What a call keeps is computed again for one reading of it."""
    drawn = torch.Generator().manual_seed(4)
    values = torch.randn(3, 1, 2, 80, 8, generator=drawn)
    by_way = []
    for checkpointed in (False, True):
        q, k, v = (tensor.clone().requires_grad_() for tensor in values)
        call = partial(headloom.attention, mask=headloom.causal(), backend=backend)
        output = checkpoint(call, q, k, v, use_reentrant=False) if checkpointed else call(q, k, v)
        by_way.append(torch.autograd.grad(output.square().sum(), (q, k, v)))
    for plain, again in zip(*by_way, strict=True):
        assert plain.abs().sum() > 0
        assert torch.allclose(plain, again, atol=1e-6)


def test_why_the_kernels_for_gpus_do_not_serve() -> None:
    tokens = torch.zeros(1, 1, 2, 4)

    def why(named: Any, keep: Any) -> str | None:
        call = checked_call("test", tokens, tokens, tokens, keep=keep)
        return function.BACKENDS[2].why_not(call, named)

    for named in (None, "triton"):
        assert "dense weights" in (why(named, headloom.All()) or "")
    for keep in (None, headloom.Top(2)):
        assert "torch's fused attention" in (why(None, keep) or "")
        assert "runs on CUDA devices" in (why("triton", keep) or "")
