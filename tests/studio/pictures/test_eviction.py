"""The picture of eviction: brown where a key stays, dark where a head loses much."""

from __future__ import annotations

from pathlib import Path

import numpy as np
import pytest
import torch
from PIL import Image

from headloom.analysis.eviction.evict import Eviction
from headloom.errors import InputError
from headloom.studio.pictures import figure_of, save_picture
from headloom.studio.pictures.eviction import eviction
from headloom.studio.pictures.palette import Theme


def made() -> Eviction:
    """A layer of 4 heads over 2: one of keys keeps the first half of the prompt, one the second."""
    held = torch.zeros(2, 1, 2, 40, dtype=torch.bool)
    held[:, :, 0, :20] = True
    held[:, :, 1, 20:] = True
    lost = torch.zeros(3, 1, 4, 10)
    lost[:2, :, 3] = 0.8
    return Eviction(("mine", "oracle", "oracle-step"), (20,), 40, {0: lost}, {0: held})


@pytest.mark.parametrize("theme", ["light", "dark"])
def test_colour_is_where_keys_stay_and_where_heads_lose(theme: Theme, tmp_path: Path) -> None:
    save_picture(eviction(made(), theme=theme), tmp_path / "e.png")
    drawn = np.asarray(Image.open(tmp_path / "e.png").convert("RGB"), dtype=int)
    # 5.6 x 0.72 inches from 1.32 and 0.98, at 200 dots an inch.
    strip = drawn[196:340, 264:1384]
    spread = strip.max(-1) - strip.min(-1)
    edges = [(20, 420), (470, 880)]  # of 50 keys: the first 20 of the prompt, and the others
    for row, stays in ((36, 0), (108, 1)):
        for half, (left, right) in enumerate(edges):
            colours = spread[row, left:right]
            assert colours.min() > 60 if half == stays else colours.max() < 20
    # 4 heads across 1.5 inches beside it: the last loses most.
    heads = drawn[268, 1416:1716]
    cells = [heads[at].astype(float) for at in (37, 112, 187, 262)]
    assert np.array_equal(cells[0], cells[1]) and np.array_equal(cells[1], cells[2])
    assert np.abs(cells[3] - cells[0]).max() > 100


def test_scales_are_read_as_they_are() -> None:
    found = made()
    found.lost[0][:2, :, 3] = 1.0
    figure = figure_of(eviction(found))
    figure.canvas.draw()
    scale = next(axes for axes in figure.axes if len(axes.get_xticks()) == 3)
    assert [label.get_text() for label in scale.get_xticklabels()] == ["0", "25 %", "100 %"]
    steps = next(axes for axes in figure.axes if axes.lines)
    assert "position of the step" in steps.get_title("left")
    # Ten steps after a prompt of forty, the last as wide as the others.
    assert all(line.get_xdata()[[0, -1]].tolist() == [40, 50] for line in steps.lines)
    assert all(float(tick).is_integer() for tick in steps.get_xticks())
    with pytest.raises(InputError, match="no budget 3; the eviction has budgets 0 to 0"):
        eviction(made(), 3)
