"""Tiles, rail, minimap and matrix hold the whole matrix, pixel by pixel; else they say what is left
out.

What is expected comes from a dense formula in float64 and from the ramp of the printed pictures.
"""

from __future__ import annotations

import base64
import io
import math
from collections.abc import Callable
from typing import Any

import numpy as np
import pytest
import torch
from matplotlib.image import imread
from tests.slow import slow
from tests.studio.sheet import sheet_dots

from headloom.api.trace import Trace
from headloom.studio.page import collect
from headloom.studio.pictures.palette import palette
from headloom.studio.serving import Viewer

Known = Callable[..., tuple[Trace, torch.Tensor]]
PICTURE = "canvas => canvas.toDataURL()"


def places_on_the_ramp(pixels: np.ndarray, theme: str = "light") -> np.ndarray:
    """Where colours lie on the ramp of weights, 0 to 255; each must be on it."""
    ramp = np.rint(255 * np.array(palette(theme).weight.colors))  # type: ignore[arg-type]
    colours, which = np.unique(pixels[..., :3].reshape(-1, 3), axis=0, return_inverse=True)
    away = np.abs(colours[:, None].astype(float) - ramp).sum(-1)
    assert away.min(-1).max() <= 6, "a colour that is no weight's"
    return away.argmin(-1)[which.reshape(-1)].reshape(pixels.shape[:-1])


def block_of(length: int) -> int:
    return math.ceil(length / 128)


def expected_places(weights: torch.Tensor) -> np.ndarray:
    """Where the means of blocks are to lie on the ramp: the square root of a row's share."""
    size = block_of(len(weights))
    starts = np.arange(0, len(weights), size)
    sums = np.add.reduceat(np.add.reduceat(weights.numpy(), starts, 0), starts, 1)
    lengths = np.diff(starts, append=len(weights))
    means = sums / np.outer(lengths, lengths)
    return 255 * np.sqrt((means * size).clip(0, 1))


def data_of(canvas: Any) -> np.ndarray:
    png = base64.b64decode(canvas.evaluate(PICTURE).split(",")[1])
    return pixels_of(png)


def pixels_of(png: bytes) -> np.ndarray:
    return np.rint(255 * imread(io.BytesIO(png))).astype(np.uint8)


def painted(page: Any, canvas: Any, rows: int) -> np.ndarray:
    """The pixels of a canvas once it has been painted."""
    for _ in range(2400):
        pixels = data_of(canvas)
        if len(pixels) == rows and pixels[..., 3:].all():
            return pixels
        page.wait_for_timeout(25)
    raise AssertionError(f"a canvas of {pixels.shape} was not painted")


def same(pixels: np.ndarray, weights: torch.Tensor, theme: str = "light") -> None:
    """Whether pixels, one a block, are the block means of some weights."""
    expected = expected_places(weights)
    found = places_on_the_ramp(pixels, theme)
    assert found.shape == expected.shape
    # A shade has 8 bits of the fourth root: 2 places on the ramp.
    assert np.abs(found - expected).max() <= 3


@pytest.mark.parametrize(("length", "where"), [(2, "page"), (3, "server"), *slow((480, "page"))])
def test_tiles_and_rail_are_the_block_means(
    studio: Any, serving: Callable[..., Viewer], known_trace: Known, length: int, where: str
) -> None:
    trace, weights = known_trace(length)
    collection = collect([trace])
    theme = "dark" if length == 3 else "light"
    page = (
        studio.file(collection, theme=theme)
        if where == "page"
        else studio.served(serving(collection), theme=theme)
    )
    blocks = math.ceil(length / block_of(length))
    page.locator("body").press("h")
    page.locator(".sheet > canvas").wait_for()
    for head in range(3):
        same(sheet_dots(page, 0, head, blocks, blocks), weights[head], theme)
    page.locator("body").press("t")
    page.locator(".rail .tile canvas").first.wait_for()
    for head in range(3):
        canvas = page.locator(".rail .tile canvas").nth(head)
        same(painted(page, canvas, blocks), weights[head], theme)
    assert "not shown" not in page.locator("body").inner_text()
