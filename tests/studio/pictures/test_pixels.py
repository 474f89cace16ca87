"""What is printed, read back pixel by pixel: no frame over a cell, no kept edges for the whole."""

from __future__ import annotations

import io
from collections.abc import Callable
from typing import Any

import numpy as np
import pytest
import torch
from matplotlib.figure import Figure
from matplotlib.image import imread
from tests.analysis.test_overview import block_means

import headloom
from headloom.api.trace import Trace
from headloom.studio.pictures import alignment, figure_of, heads, save_picture, snapshots
from headloom.studio.pictures.palette import Theme, palette

Printed = Callable[[Figure], np.ndarray]


@pytest.fixture
def printed(tmp_path) -> Printed:
    """A function from a figure to its pixels, as its file has them."""

    def read(figure: Figure, dpi: float = 200) -> np.ndarray:
        save_picture(figure, tmp_path / "picture.png", dpi=dpi)
        return imread(io.BytesIO((tmp_path / "picture.png").read_bytes()))[..., :3]

    return read


def places_on_the_ramp(pixels: np.ndarray, theme: Theme = "light") -> np.ndarray:
    """Where colours lie on the ramp of weights, 0 to 255; -1: they are no weight's."""
    ramp = np.array(palette(theme).weight.colors)[:, :3]  # type: ignore[arg-type]
    away = np.abs(pixels[..., None, :] - ramp).sum(-1)
    return np.where(away.min(-1) < 0.02, away.argmin(-1), -1)


def box_of(figure: Figure, axes: Any, pixels: np.ndarray) -> np.ndarray:
    """The pixels that lie wholly within axes."""
    high, wide = pixels.shape[:2]
    box = axes.get_position()
    left, right = int(np.ceil(box.x0 * wide - 1e-6)), int(np.floor(box.x1 * wide + 1e-6))
    top, bottom = (
        int(np.ceil((1 - box.y1) * high - 1e-6)),
        int(np.floor((1 - box.y0) * high + 1e-6)),
    )
    return pixels[top:bottom, left:right]


def weights_made_by_hand(length: int, queries_keys: bool = True) -> tuple[Trace, torch.Tensor]:
    """Two heads, one nearly even and one that looks at the first key; and their dense weights."""
    generator = torch.Generator().manual_seed(length)
    queries = torch.randn(2, length, 16, generator=generator) / 8
    keys = torch.randn(2, length, 16, generator=generator)
    queries[1, :, 0], keys[1, :, 0], keys[1, 0, 0] = 6.0, 0.0, 6.0
    weights = (queries.double() @ keys.double().transpose(1, 2) / 4).softmax(-1)
    trace = headloom.from_queries_keys(
        queries, keys, keep=headloom.Top(2), kind="encoder", queries_keys=queries_keys
    )
    return trace, weights


def held_against(inside: np.ndarray, expected: np.ndarray, theme: Theme = "light") -> None:
    """Whether pixels show a matrix: its dots in their middles, and the edges to the last pixel."""
    rows, columns = expected.shape
    high, wide = inside.shape[:2]
    y = ((np.arange(rows) + 0.5) * high / rows).astype(int)
    x = ((np.arange(columns) + 0.5) * wide / columns).astype(int)
    wanted = 255 * np.sqrt(expected)
    # Of many dots some, spread over all, and those at the edges.
    some = np.unique(np.concatenate((np.arange(0, rows, max(rows // 50, 1)), [rows - 1])))
    found = places_on_the_ramp(inside[y[some][:, None], x[some][None]], theme)
    assert np.abs(found - wanted[some][:, some]).max() <= 2
    for line, along, dots in (
        (inside[0], x, wanted[0]), (inside[-1], x, wanted[-1]),
        (inside[:, 0], y, wanted[:, 0]), (inside[:, -1], y, wanted[:, -1]),
    ):  # fmt: skip
        assert np.abs(places_on_the_ramp(line[along], theme) - dots).max() <= 2


@pytest.mark.parametrize("theme", ["light", "dark"])
@pytest.mark.parametrize("length", [2, 3, 100, 480])
def test_heads_are_whole_to_their_edges(printed: Printed, length: int, theme: Theme) -> None:
    trace, weights = weights_made_by_hand(length)
    figure = figure_of(heads(trace, theme=theme))
    pixels = printed(figure)
    tiles = [axes for axes in figure.axes if axes.images]
    for head in range(2):
        inside = box_of(figure, tiles[head], pixels)
        size = -(-length // 64)
        held_against(inside, size * block_means(weights[head], size, size).numpy(), theme)
    assert not any("not shown" in text.get_text() for text in figure.texts)


@pytest.mark.parametrize("length", [2, 3, pytest.param(100, marks=pytest.mark.slow), 480])
def test_alignment_is_whole_to_its_edges(printed: Printed, length: int) -> None:
    trace, weights = weights_made_by_hand(length)
    for head in range(2) if length < 480 else (1,):
        axes = alignment(trace.layers[0], head)
        inside = box_of(axes.figure, axes, printed(axes.figure))
        held_against(inside, weights[head].numpy())


@pytest.mark.parametrize("length", [2, 3, 40])
def test_history_is_whole_to_its_edges(printed: Printed, length: int) -> None:
    _, weights = weights_made_by_hand(length)
    figure = figure_of(snapshots([0, 1], [weights[0], weights[1]], {"loss": [(0, 2.0), (1, 1.0)]}))
    pixels = printed(figure)
    shown = [axes for axes in figure.axes if axes.images]
    for axes, matrix in zip(shown, weights, strict=True):
        held_against(box_of(figure, axes, pixels), matrix.numpy())


def test_kept_edges_alone_say_what_is_not_shown() -> None:
    trace, weights = weights_made_by_hand(100, queries_keys=False)
    left_out = 1 - weights.topk(2).values.sum(-1).mean(-1)
    expected = [f"{100 * float(share):.3g} % not shown" for share in left_out]
    shown = [text.get_text() for text in figure_of(heads(trace)).texts]
    assert next(text for text in shown if "not shown" in text) == expected[0]
    assert any("drawn from the kept edges" in text for text in shown)
    layer = trace.layers[0]
    for axes in (alignment(layer, 0), alignment(layer.graph, 0)):
        assert f"of the kept edges: {expected[0]}" in [text.get_text() for text in axes.texts]
