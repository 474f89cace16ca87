"""The plane of queries and keys, against NumPy's singular values of the centred points."""

from __future__ import annotations

import numpy as np
import pytest
import torch

from headloom.analysis.joint_projection import joint_projection
from headloom.errors import InputError


@pytest.mark.parametrize(("queries", "keys", "depth"), [(30, 20, 8), (1, 4, 16), (50, 3, 2)])
def test_against_singular_values(queries: int, keys: int, depth: int) -> None:
    random = np.random.default_rng(depth)
    q = random.normal(size=(queries, depth)) * np.linspace(3, 0.1, depth)
    k = random.normal(size=(keys, depth)) + 2
    found = joint_projection(torch.from_numpy(q), torch.from_numpy(k))
    points = np.concatenate([q, k])
    _, values, axes = np.linalg.svd(points - points.mean(0), full_matrices=False)
    variances = values**2 / (values**2).sum()
    assert found.shares == pytest.approx(tuple(variances[:2]), abs=1e-12)
    ours = torch.cat((found.queries, found.keys)).numpy()
    for axis in range(2):
        theirs = (points - points.mean(0)) @ axes[axis]
        sign = np.sign(axes[axis][np.abs(axes[axis]).argmax()])
        assert np.allclose(ours[:, axis], sign * theirs, atol=1e-9)


def test_points_that_do_not_spread() -> None:
    same = torch.ones(3, 4)
    found = joint_projection(same, same)
    assert found.shares == (0.0, 0.0) and not found.queries.any() and not found.keys.any()
    found = joint_projection(torch.tensor([[1.0], [3.0]]), torch.tensor([[5.0]]))
    assert found.shares == (1.0, 0.0) and found.queries[:, 1].tolist() == [0.0, 0.0]
    assert joint_projection(torch.zeros(0, 4), torch.zeros(0, 4)).queries.shape == (0, 2)


def test_numbers_that_are_none() -> None:
    with pytest.raises(InputError, match="not finite"):
        joint_projection(torch.tensor([[float("nan")]]), torch.ones(1, 1))
