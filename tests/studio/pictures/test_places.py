"""Where places look, over the image: the mean of their rows, drawn on the image's grid."""

from __future__ import annotations

import numpy as np
import pytest
import torch

import headloom
from headloom.errors import InputError
from headloom.formats.trace import TraceLayer
from headloom.models.images import VisionTransformer
from headloom.studio.pictures import places
from headloom.studio.pictures.images import Look, looks_of

IMAGE = np.linspace(0, 1, 48).reshape(4, 12)


@pytest.fixture
def layer() -> TraceLayer:
    """Queries in 4 x 6 places, keys in 2 x 3."""
    torch.manual_seed(0)
    block = headloom.ImageSelfAttention(8, pooled=True)
    return headloom.trace(block, torch.randn(1, 8, 4, 6), keep=headloom.All()).layers[0]


def test_weights_are_the_mean_of_the_region(layer) -> None:
    look = looks_of(layer, IMAGE, (1, 2, 2, 1), "title")
    weights = layer.graph.adjacency(head=0).toarray()
    # Rows 1 and 2 of column 2, of 6 columns.
    np.testing.assert_allclose(look.weights.ravel(), (weights[8] + weights[14]) / 2, rtol=1e-6)
    # Of 4 x 12 pixels a place has 1 x 2.
    assert look.asked == (1, 4, 2, 2)


def test_a_class_token_looks_from_nowhere_in_the_image(layer) -> None:
    torch.manual_seed(0)
    model = VisionTransformer((1, 4, 12), 2, patch=(2, 4), width=8, heads=2, layers=1).eval()
    images = torch.randn(1, 1, 4, 12)
    trace = headloom.trace(model, images, keep=headloom.All())
    look = looks_of(trace.layers[0], IMAGE, None, "class", head=1)
    weights = trace.layers[0].graph.adjacency(head=1).toarray()
    # The class token is the first of 1 + 2 x 3 positions; what it gives itself is no place.
    np.testing.assert_allclose(look.weights, weights[0, 1:].reshape(2, 3), rtol=1e-6)
    assert look.asked is None
    (axes,) = [axes for axes in places([look]) if axes.images]
    assert [patch.get_gid() for patch in axes.patches] == ["frame"]
    with pytest.raises(InputError, match="no token stands before the places"):
        looks_of(layer, IMAGE, None, "")


@pytest.mark.parametrize("theme", ["light", "dark"])
def test_the_image_is_seen_on_every_weight(theme) -> None:
    """Ink of 40 % on the darkest and on the lightest weight differs from what is beside it."""
    look = Look(np.ones((2, 4)), np.array([[0.0, 1.0]]), None, "")
    (axes,) = [axes for axes in places([look], theme=theme) if axes.images]
    weights, ink = axes.images
    ground = weights.cmap(weights.norm(look.weights))[0, :, :3]
    drawn = ink.get_array()[0, [0, 3], :3]
    assert (np.abs(drawn - ground).mean(-1) * 0.4 > 0.2).all()
    assert np.abs(drawn[0] - drawn[1]).max() > 0.5


def test_an_even_row_is_faint_and_a_strong_one_is_not() -> None:
    for weights, most, shade in (
        (np.full((8, 8), 1 / 64), 9 / 64, 1 / 3),
        (np.full((8, 8), 0.25 / 64), 9 / 64, 1 / 6),
        (np.eye(8) / 2, 0.5, 1.0),
    ):
        (axes,) = [axes for axes in places([Look(np.ones((8, 8)), weights, None, "")])
                   if axes.images]  # fmt: skip
        norm = axes.images[0].norm
        assert norm.vmax == pytest.approx(most)
        assert float(norm(weights.max())) == pytest.approx(shade)
