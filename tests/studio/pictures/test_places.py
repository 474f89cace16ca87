"""Where places look, over the image: the mean of their rows, drawn on the image's grid."""

from __future__ import annotations

import numpy as np
import pytest
import torch
from matplotlib.patches import Rectangle
from matplotlib.text import Text

import headloom
from headloom.errors import InputError
from headloom.formats.trace import TraceLayer
from headloom.models.configuration import Architecture
from headloom.models.image_classifier import ImageShape
from headloom.models.vision_transformer import VisionTransformer
from headloom.studio.pictures import places, save_picture
from headloom.studio.pictures.palette import palette
from headloom.studio.pictures.places import Look, looks_of

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


def test_kept_edges_are_no_reason_to_leave_weights_out() -> None:
    torch.manual_seed(0)
    block, images = headloom.ImageSelfAttention(8), torch.randn(1, 8, 4, 6)
    kept, whole = (
        headloom.trace(block, images, keep=keep).layers[0]
        for keep in (headloom.Top(2), headloom.All())
    )
    drawn, exact = (looks_of(layer, IMAGE, (1, 2, 2, 1), "") for layer in (kept, whole))
    np.testing.assert_allclose(drawn.weights, exact.weights, atol=1e-6)
    assert drawn.weights.sum() == pytest.approx(1, abs=1e-5)


@pytest.mark.parametrize(
    ("image", "said"),
    [
        (np.zeros((4, 12, 3)), r"shape \(4, 12, 3\); expected \(rows, columns\) without colours"),
        (np.full((4, 12), 255, np.uint8), "numbers from 255 to 255; .* Divide bytes by 255"),
        (torch.full((4, 12), torch.nan), "numbers from nan to nan"),
    ],
)
def test_an_image_of_another_form(layer, image, said) -> None:
    with pytest.raises(InputError, match=said):
        looks_of(layer, image, (0, 0, 1, 1), "")


def test_a_class_token_looks_from_nowhere_in_the_image(layer) -> None:
    torch.manual_seed(0)
    sizes = Architecture(width=8, heads=2, feed_forward=8, encoder_layers=1, positions="learned")
    model = VisionTransformer(ImageShape(1, 4, 12), 2, sizes, patch=(2, 4)).eval()
    images = torch.randn(1, 1, 4, 12)
    trace = headloom.trace(model, images, keep=headloom.All())
    look = looks_of(trace.layers[0], IMAGE, None, "class", head=1)
    weights = trace.layers[0].graph.adjacency(head=1).toarray()
    # The class token is the first of 1 + 2 x 3 positions; what it gives itself is no place.
    np.testing.assert_allclose(look.weights, weights[0, 1:].reshape(2, 3), rtol=1e-6)
    assert look.asked is None
    (axes,) = [axes for axes in places([look]).axes if axes.images]
    assert not [patch for patch in axes.patches if isinstance(patch, Rectangle)]
    with pytest.raises(InputError, match="no token stands before the places"):
        looks_of(layer, IMAGE, None, "")


@pytest.mark.parametrize("theme", ["light", "dark"])
def test_the_image_is_seen_on_every_weight(theme) -> None:
    """Ink of 40 % on the darkest and on the lightest weight differs from what is beside it."""
    look = Look(np.ones((2, 4)), np.array([[0.0, 1.0]]), None, "")
    (axes,) = [axes for axes in places([look], theme=theme).axes if axes.images]
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
        (axes,) = [axes for axes in places([Look(np.ones((8, 8)), weights, None, "")]).axes
                   if axes.images]  # fmt: skip
        norm = axes.images[0].norm
        assert norm.vmax == pytest.approx(most)
        assert float(norm(weights.max())) == pytest.approx(shade)


@pytest.mark.parametrize("theme", ["light", "dark"])
def test_each_look_is_weights_image_and_frame(layer, theme, tmp_path) -> None:
    looks = [looks_of(layer, IMAGE, (0, 0, 1, 1), "one"), looks_of(layer, IMAGE, (3, 5, 1, 1), "2")]
    figure = places(looks, title="both", caption="below", theme=theme)
    assert {"both", "below", "one", "2"} <= {text.get_text() for text in figure.findobj(Text)}
    panels = [axes for axes in figure.axes if axes.images]
    assert len(panels) == 2
    for axes, look in zip(panels, looks, strict=True):
        weights, ink = axes.images
        np.testing.assert_array_equal(weights.get_array(), look.weights)
        # Six cells, of which an even row has 1/6 each.
        assert weights.norm.vmax == 1
        assert weights.get_extent() == ink.get_extent() == [-0.5, 11.5, 3.5, -0.5]
        np.testing.assert_allclose(ink.get_array()[..., 3] / 0.4, IMAGE)
        (frame,) = [patch for patch in axes.patches if isinstance(patch, Rectangle)]
        assert frame.get_edgecolor()[:3] == pytest.approx(
            tuple(int(palette(theme).query[i : i + 2], 16) / 255 for i in (1, 3, 5))
        )
    assert panels[1].patches[0].get_xy() == (9.5, 2.5)
    save_picture(figure, tmp_path / "x.png")
    assert (tmp_path / "x.png").stat().st_size > 1000


def test_what_cannot_be_drawn(layer) -> None:
    with pytest.raises(InputError, match=r"region \[0, 5, 1, 2\]; the queries have 4 rows and 6"):
        looks_of(layer, IMAGE, (0, 5, 1, 2), "")
    look = looks_of(layer, IMAGE, (0, 0, 1, 1), "")
    with pytest.raises(InputError, match="images of 0 sizes"):
        places([])
    other = looks_of(layer, np.zeros((8, 12)), (0, 0, 1, 1), "")
    with pytest.raises(InputError, match="images of 2 sizes"):
        places([look, other])


def test_positions_that_are_no_places(pair_trace) -> None:
    with pytest.raises(InputError, match="the positions of this layer are no places"):
        looks_of(pair_trace.layers[0], IMAGE, (0, 0, 1, 1), "")
