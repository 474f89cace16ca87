"""Gradients of bfloat16 calls, whose output is rounded: against float64, where errors would grow.

The gradients of a row's scores sum to 0. An error of dO . O, as of a rounded output, is spread over
them by their weights, and what they are multiplied by - distances, keys - multiplies it.
"""

from __future__ import annotations

import pytest
import torch
from torch import Tensor

import headloom
from headloom.mechanism.backends import compiled

#: Those whose forward kernels multiply the values by weights as they are.
WHOLE = [name for name in compiled.instruction_sets() if name not in ("avx512_bf16", "amx")]

BATCH, HEADS, QUERIES, KEYS, DEPTH = 2, 2, 40, 5, 8


def drawn(common_key: float = 0.0, common_value: float = 0.0) -> list[Tensor]:
    """Queries, keys, values and the gradient of the output, in bfloat16.

    common_key, common_value: how large a part is that all keys, or values, have.
    """
    generator = torch.Generator().manual_seed(0)

    def random(rows: int, common: float) -> Tensor:
        own, all_have = (
            torch.randn(BATCH, HEADS, n, DEPTH, generator=generator) for n in (rows, 1)
        )
        return (own + common * all_have).bfloat16()

    return [random(QUERIES, 0), random(KEYS, common_key), random(KEYS, common_value),
            random(QUERIES, 0)]  # fmt: skip


def slope_gradient(tensors: list[Tensor], offset: int, watched: bool) -> Tensor:
    exact = tensors[0].dtype == torch.float64
    slopes = torch.tensor([0.5, 0.25], dtype=torch.float64 if exact else torch.float32)
    slopes.requires_grad_()
    *qkv, by_output = tensors
    relative, backend = headloom.ALiBi(slopes, offset), "torch" if exact else "native"
    if watched:
        output, _ = headloom.attend(*qkv, relative=relative, backend=backend)
    else:
        output = headloom.attention(*qkv, relative=relative, backend=backend)
    assert output.dtype == by_output.dtype
    return torch.autograd.grad(output, slopes, by_output)[0].double()


@pytest.mark.parametrize("watched", [False, True])
@pytest.mark.parametrize("offset", [0, -500, -3000])
def test_slopes_of_alibi(instruction_set: str, offset: int, watched: bool) -> None:
    tensors = drawn()
    expected = slope_gradient([tensor.double() for tensor in tensors], offset, watched)
    found = slope_gradient(tensors, offset, watched)
    assert (found - expected).abs().max() < 2e-5 * (50 - offset)


@pytest.mark.parametrize("shaw", [False, True])
def test_keys_and_values_that_have_much_in_common(instruction_set: str, shaw: bool) -> None:
    if instruction_set not in WHOLE:
        pytest.skip("its forward kernels round weights")
    *qkv, by_output = drawn(common_key=10, common_value=3)

    def gradients(dtype: torch.dtype, backend: headloom.Backend) -> list[Tensor]:
        leaves = [tensor.to(dtype).requires_grad_() for tensor in qkv]
        table = torch.ones(3, DEPTH, dtype=torch.float64).tril()
        table = table.to(torch.promote_types(dtype, torch.float32)).requires_grad_()
        relative = headloom.Shaw(table) if shaw else None
        output = headloom.attention(*leaves, relative=relative, backend=backend)
        wanted = (*leaves, table) if shaw else leaves
        return [g.double() for g in torch.autograd.grad(output, wanted, by_output.to(dtype))]

    exact = gradients(torch.float64, "torch")
    found = gradients(torch.bfloat16, "native")
    for n, (mine, true) in enumerate(zip(found, exact, strict=True)):
        # Those of queries, keys and values are rounded at the end.
        assert (mine - true).norm() < (3e-3 if n < 3 else 1e-4) * true.norm()
