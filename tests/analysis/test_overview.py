"""Block means against a dense formula in float64."""

from __future__ import annotations

import numpy as np
import pytest
import torch

import headloom
from headloom.analysis import overview as module
from headloom.analysis.overview import block_sizes, matrix_means
from headloom.mechanism.matrix.attention_matrix import AttentionMatrix
from headloom.studio.pictures.masses import masses_of


def dense(queries: torch.Tensor, keys: torch.Tensor, hidden: torch.Tensor) -> torch.Tensor:
    """softmax(Q K^T / sqrt(depth)) in float64, (heads, queries, keys)."""
    keys = keys.repeat_interleave(len(queries) // len(keys), 0)
    scores = queries.double() @ keys.double().transpose(1, 2) / queries.shape[-1] ** 0.5
    return scores.masked_fill(hidden, -torch.inf).softmax(-1)


def block_means(matrix: torch.Tensor, rows: int, columns: int) -> torch.Tensor:
    """Means one block at a time."""
    bands = [[block.mean() for block in band.split(columns, 1)] for band in matrix.split(rows)]
    return torch.tensor(bands)


@pytest.mark.parametrize("band", [2**28, 40 * 90], ids=["whole", "bands"])
@pytest.mark.parametrize("kind", ["all", "causal", "window"])
def test_block_means_are_those_of_the_dense_matrix(
    monkeypatch: pytest.MonkeyPatch, kind: str, band: int
) -> None:
    monkeypatch.setattr(module, "_BAND_CELLS", band)
    torch.manual_seed(3)
    queries, keys = 2 * torch.randn(4, 101, 8), torch.randn(2, 90, 8)
    i, j = torch.arange(101)[:, None], torch.arange(90)
    mask, hidden = {
        "all": (None, torch.zeros(101, 90, dtype=torch.bool)),
        "causal": (headloom.causal(), j > i),
        "window": (headloom.window(20, 20), (j < i - 20) | (j > i + 20)),
    }[kind]
    matrix = AttentionMatrix(queries, keys, mask=mask)
    expected = dense(queries, keys, hidden)
    for head in range(4):
        found = matrix_means(matrix, head, (3, 7))
        assert torch.allclose(found.double(), block_means(expected[head], 3, 7), atol=1e-7)


@pytest.mark.parametrize(("keep", "queries_keys"), [(4, True), (4, False), (50, False)])
def test_a_picture_is_of_the_whole_or_says_what_is_left_out(keep: int, queries_keys: bool) -> None:
    torch.manual_seed(5)
    queries, keys = torch.randn(2, 50, 8) / 4, torch.randn(2, 50, 8)
    expected = dense(queries, keys, torch.zeros(50, 50, dtype=torch.bool))
    trace = headloom.from_queries_keys(
        queries, keys, keep=headloom.Top(keep), queries_keys=queries_keys
    )
    seen = masses_of(trace.layers[0], None, 16)
    assert seen.sizes == (4, 4) == block_sizes(50, 50, 16)
    whole = queries_keys or keep == 50
    best = expected.sort(-1, descending=True)
    kept = torch.zeros_like(expected).scatter(-1, best.indices[..., :4], best.values[..., :4])
    for head in range(2):
        means = block_means((expected if whole else kept)[head], 4, 4)
        assert np.allclose(seen.values[head] / 4, means, atol=1e-6)
    assert whole == (not seen.left_out.any())
    if not whole:
        assert np.allclose(seen.left_out, 1 - kept.sum(-1).mean(-1), atol=1e-5)
