"""SAGAN's block against its formulas, written here once more: dense, in float64, with loops."""

from __future__ import annotations

import math

import pytest
import torch
from torch import Tensor

import headloom
from headloom.mechanism.watching import Recorder, watching
from headloom.models.image_attention import ImageSelfAttention, learned_weight


def dense(images: Tensor, matrices: dict[str, Tensor], gamma: float, pooled: bool) -> Tensor:
    """Equations 1 to 3 of the paper, place by place; W_f, ... are (out, in)."""
    batch, _, rows, columns = images.shape
    result = images.clone()
    for number in range(batch):
        x = {(r, c): images[number, :, r, c] for r in range(rows) for c in range(columns)}
        f = {place: matrices["f"] @ vector for place, vector in x.items()}
        h = {place: matrices["h"] @ vector for place, vector in x.items()}
        if pooled:
            f, h = pooled_by_hand(f, rows, columns), pooled_by_hand(h, rows, columns)
        for (r, c), vector in x.items():
            g = matrices["g"] @ vector
            exponentials = {place: math.exp(float(key @ g)) for place, key in f.items()}
            total = sum(exponentials.values())
            mixed = sum(exponentials[place] / total * h[place] for place in f)
            result[number, :, r, c] = gamma * (matrices["v"] @ mixed) + vector
    return result


def pooled_by_hand(
    vectors: dict[tuple[int, int], Tensor], rows: int, columns: int
) -> dict[tuple[int, int], Tensor]:
    return {
        (r, c): torch.stack([vectors[2 * r + i, 2 * c + j] for i in (0, 1) for j in (0, 1)]).amax(0)
        for r in range(rows // 2)
        for c in range(columns // 2)
    }


def weights_of(block: ImageSelfAttention) -> dict[str, Tensor]:
    """What is learned, each divided by its largest singular value where that is the option."""
    matrices = {}
    for name in "fghv":
        matrix = learned_weight(getattr(block, name)).detach().double().flatten(1)
        if hasattr(getattr(block, name), "parametrizations"):
            matrix = matrix / torch.linalg.svdvals(matrix)[0]
        matrices[name] = matrix
    return matrices


@pytest.mark.parametrize("pooled", [False, True])
@pytest.mark.parametrize("normed", [False, True])
def test_block_is_the_formula_of_the_paper(pooled: bool, normed: bool) -> None:
    torch.manual_seed(5)
    block = ImageSelfAttention(16, value_channels=8, pooled=pooled, spectral_norm=normed).double()
    if normed:
        # Power iterations go on in training, until u and v are the singular vectors.
        for _ in range(300):
            block(torch.rand(1, 16, 2, 2, dtype=torch.float64))
    block.eval()
    with torch.no_grad():
        block.gamma.fill_(0.7)
    images = 3 * torch.randn(2, 16, 4, 6, dtype=torch.float64)
    expected = dense(images, weights_of(block), 0.7, pooled)
    assert (expected - images).abs().max() > 0.05
    torch.testing.assert_close(block(images), expected, atol=1e-6, rtol=0)


def test_scores_are_not_divided_by_the_root_of_the_depth() -> None:
    """Two places; f = g = 4 on the first of them, 0 on the other: e^16 against 1 of 4 channels."""
    block = ImageSelfAttention(32, spectral_norm=False)
    with torch.no_grad():
        for part in (block.f, block.g, block.h):
            part.weight.zero_()
        block.f.weight[0, 0], block.g.weight[0, 1], block.h.weight[0, 0] = 1.0, 1.0, 1.0
        block.v.weight.zero_()
        block.v.weight[2, 0], block.gamma.data = 1.0, torch.tensor(1.0)
    images = torch.zeros(1, 32, 1, 2)
    images[0, 0, 0, 0], images[0, 1, 0, 1] = 1.0, 2.0
    # The second place has s = 1 * 2 with the first, 0 with itself; the first has 0 with both.
    expected = [0.5, math.exp(2) / (math.exp(2) + 1)]
    assert block(images)[0, 2, 0].tolist() == pytest.approx(expected, abs=1e-6)


def test_at_the_start_the_output_is_the_input_bit_for_bit() -> None:
    images = torch.randn(3, 32, 8, 8)
    # A zero has a sign, and -0 + 0 is not -0.
    images[:, ::2, ::3], images[:, 1::2, ::3], images[0, 0, 1, 1] = -0.0, 0.0, 1e-40
    for block in (ImageSelfAttention(32), ImageSelfAttention(32, pooled=True, spectral_norm=False)):
        for mode in (True, False):
            block.train(mode)
            assert torch.equal(block(images).view(torch.int32), images.view(torch.int32))
        recorder = Recorder(block, headloom.Top(8))
        with watching(block, recorder):
            assert torch.equal(block(images).view(torch.int32), images.view(torch.int32))
