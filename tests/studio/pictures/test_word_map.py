"""The picture of what a word looks at: colours where the weights are, the image under them."""

from __future__ import annotations

from pathlib import Path

import numpy as np
import pytest
import torch
from PIL import Image

from headloom.analysis.image_map import ImageMap
from headloom.studio.pictures import save_picture, word_map
from headloom.studio.pictures.palette import Theme, palette


def seen(weights: torch.Tensor, picture: np.ndarray | None = None) -> ImageMap:
    mass = float(weights.sum())
    return ImageMap(
        weights, mass, 0.0, [], True, 0, "red", "layers.0", None, 0, [], picture, False
    )  # fmt: skip


@pytest.mark.parametrize("theme", ["light", "dark"])
def test_colour_is_where_the_weight_is(theme: Theme, tmp_path: Path) -> None:
    weights = torch.zeros(40, 60, dtype=torch.float64)
    weights[:20, 30:] = 0.6 / 600
    image = np.tile(np.linspace(0.2, 0.8, 60), (40, 1))
    save_picture(word_map(seen(weights, image), theme=theme), tmp_path / "a.png")
    drawn = np.asarray(Image.open(tmp_path / "a.png").convert("RGB"), dtype=int)
    # 6 inches wide from 0.2, at 200 dots an inch; 4 high from 0.62.
    cells = drawn[124:924, 40:1240]
    spread = (cells.max(-1) - cells.min(-1))[10:790:20, 10:1190:20]
    assert spread[:19, 30:].min() > 40
    assert spread[:, :29].max() < 14 and spread[21:].max() < 14
    # The light of the image grows from left to right under both.
    for row in (5, 35):
        light = cells[row * 20, 620:1190:20].mean(-1)
        assert (np.diff(light) >= 0).all() and light[-1] - light[0] > 15


@pytest.mark.parametrize("far", [1.0, 1.5])
def test_an_even_row_has_the_middle_colour_and_not_the_strongest(far: float) -> None:
    """Of pixels of one weight none stands out, and a little more is little more colour."""
    weights = torch.ones(4, 6, dtype=torch.float64)
    weights[0, 0] = far
    axes = word_map(seen(weights))
    (drawn,) = (np.asarray(image.get_array()) for image in axes.get_images())
    times = (weights / weights.mean()).numpy()
    expected = np.asarray(palette("light").weight(np.sqrt(times / 4)))[..., :3]
    np.testing.assert_allclose(drawn, expected, atol=0.01)
