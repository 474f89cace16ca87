"""Convolutions with attention between them, and how far each sees."""

from __future__ import annotations

import pytest
import torch
from torch import nn

from headloom.models.images import ConvolutionalClassifier


def test_it_is_the_same_as_a_sequence_of_torchs_layers() -> None:
    torch.manual_seed(4)
    model = ConvolutionalClassifier((3, 8, 8), 4, channels=(6, 10), halved=(1,), attention=2)
    other = nn.Sequential(
        model.convolutions[0], model.norms[0], nn.ReLU(), nn.MaxPool2d(2),
        model.convolutions[1], model.norms[1], nn.ReLU(),
        nn.AdaptiveAvgPool2d(1), nn.Flatten(), model.class_scores,
    )  # fmt: skip
    images = torch.rand(5, 3, 8, 8)
    for mode in (True, False):
        model.train(mode)
        other.train(mode)
        torch.testing.assert_close(model(images), other(images))
    assert model.attention is not None
    model.attention.gamma.data.fill_(1.0)
    assert (model(images) - other(images)).abs().max() > 1e-4


@pytest.mark.parametrize("attention", [None, 2])
def test_convolutions_alone_do_not_see_far(attention: int | None) -> None:
    """Read at columns 44 to 47 after 3 convolutions: columns 41 to 47 are seen, by hand."""
    torch.manual_seed(3)
    model = ConvolutionalClassifier(
        (1, 8, 48), 3, channels=(4, 4, 4), attention=attention, region=(0, 44, 8, 4),
        batch_norm=False,
    )  # fmt: skip
    if model.attention is not None:
        model.attention.gamma.data.fill_(1.0)
    images = torch.rand(1, 1, 8, 48, requires_grad=True)
    model(images).square().sum().backward()
    assert images.grad is not None
    seen = images.grad[0, 0].abs().amax(0) > 0
    if attention is None:
        assert seen.nonzero()[:, 0].tolist() == list(range(41, 48))
    else:
        assert bool(seen.all())
