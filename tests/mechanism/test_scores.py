"""Every score against its formula, written pair by pair in the reference."""

from __future__ import annotations

import pytest
import torch

import headloom


def test_only_version_2_ranks_keys_by_the_query() -> None:
    """Version 1 ranks the keys alike for every query (Brody et al. 2022, theorem 1)."""
    torch.manual_seed(0)
    queries, keys, a = torch.randn(40, 3), torch.randn(6, 3), torch.randn(2, 3)
    best = headloom.GraphAttention(a[0], a[1])(queries, keys).argmax(-1)
    assert len(set(best.tolist())) == 1
    best = headloom.GraphAttentionV2(a[0])(queries, keys).argmax(-1)
    assert len(set(best.tolist())) > 1


def test_a_symmetric_form_makes_a_symmetric_matrix() -> None:
    x, A = torch.randn(2, 5, 3, dtype=torch.float64), torch.randn(3, 3, dtype=torch.float64)
    matrix = headloom.Bilinear(A, symmetric=True)(x, x)
    torch.testing.assert_close(matrix, matrix.mT, rtol=0, atol=1e-14)
    free = headloom.Bilinear(A)(x, x)
    assert not torch.allclose(free, free.mT)
    form = headloom.Bilinear(A, symmetric=True).form()
    assert torch.equal(form, form.T)


@pytest.mark.parametrize("dtype", [torch.float16, torch.bfloat16])
def test_parameters_of_half_precision(dtype: torch.dtype) -> None:
    queries = torch.zeros(1, 2, 3, 4, dtype=dtype)
    for taken in (torch.float16, torch.bfloat16, torch.float32):
        headloom.Bilinear(torch.zeros(4, 4, dtype=taken)).check(queries, queries)
    with pytest.raises(headloom.InputError, match=r"matrix is torch.float64, the queries are"):
        headloom.Bilinear(torch.zeros(4, 4, dtype=torch.float64)).check(queries, queries)
    with pytest.raises(
        headloom.InputError, match=f"matrix is {dtype}, the queries are torch.float32"
    ):
        headloom.Bilinear(torch.zeros(4, 4, dtype=dtype)).check(queries.float(), queries.float())
    with pytest.raises(headloom.InputError, match="matrix is list, the queries are"):
        headloom.Bilinear([[1.0]]).check(queries, queries)  # type: ignore[arg-type]
