"""Figures of two traces, an edge, many texts and an image: what they hold, and in print."""

from __future__ import annotations

import base64
import io
from collections.abc import Callable
from pathlib import Path
from typing import Any
from xml.etree import ElementTree

import numpy as np
from PIL import Image
from tests.analysis.test_patch_map import COLUMNS, ROWS, grid_trace
from tests.studio.printed import SVG, check_print, exported, texts, words

from headloom.studio.page import collect
from headloom.studio.runs import open_collection
from headloom.studio.serving import Viewer

Serving = Callable[..., Viewer]


def pictures(path: Path) -> list[np.ndarray[Any, Any]]:
    """The pictures in a figure, (rows, columns, 3)."""
    found = []
    for element in ElementTree.parse(path).iter(f"{SVG}image"):
        content = base64.b64decode(element.get("href").split(",", 1)[1])
        with Image.open(io.BytesIO(content)) as picture:
            found.append(np.asarray(picture.convert("RGB")).astype(int))
    return found


def in_print(studio: Any, page: Any, folder: Path) -> Path:
    """The figure of a page, 175 mm wide; it can be printed so, and 85 mm wide."""
    for width in (85, 175):
        path = exported(page, folder, "svg", str(width))
        check_print(studio, path, width)
    return path


def test_two_traces(studio: Any, serving: Serving, drawn: Any, tmp_path: Path) -> None:
    (first, before), (second, after) = drawn(1, 12), drawn(2, 12)
    viewer = serving(collect([first, second], names=["before", "after"]))
    page = studio.served(viewer, "#view=compare&head=1", width=1440)
    page.locator('.stage.compare[aria-busy="false"]').wait_for()
    page.locator(".panel", has_text="on other keys").wait_for()
    path = in_print(studio, page, tmp_path)
    found = pictures(path)
    assert [picture.shape for picture in found] == [(12, 12, 3)] * 3
    for picture, weights in zip(found, (before[1], after[1]), strict=False):
        # Light: dark is much. Where a row has one weight that stands out, its cell is the darkest.
        two = np.sort(weights, 1)[:, -2:]
        clear = two[:, 1] > two[:, 0] + 0.1
        assert clear.sum() > 3
        darkest = picture.sum(-1).argmin(1)
        assert (darkest[clear] == weights.argmax(1)[clear]).all()
    red, _, blue = np.moveaxis(found[2], -1, 0)
    difference = after[1] - before[1]
    assert (red > blue + 40)[difference > 0.15].all() and (difference > 0.15).any()
    assert (blue > red + 40)[difference < -0.15].all() and (difference < -0.15).any()
    said = texts(path)
    assert {"before", "after", "second less first", "t11"} <= set(said)
    change = 0.5 * np.abs(difference).sum(1).mean()
    note = words(path)
    assert f"Of a row’s mass {change:.3f} is on other keys in the second" in note
    assert "Rows 0–11, columns 0–11 of 12 × 12." in note


def test_rows_beside_each_other_are_level(
    studio: Any, serving: Serving, make_trace: Any, tmp_path: Path
) -> None:
    tokens = ["a", "bb", "ccc", "d"]
    first, second = make_trace(tokens), make_trace(["a", "a much longer token", "ccc", "d"])
    page = studio.served(serving(collect([first, second], names=["x", "y"])), "#view=compare")
    page.locator('.stage.compare[aria-busy="false"]').wait_for()
    path = exported(page, tmp_path, "svg", "175")
    boxes = [
        [float(element.get(name)) for name in ("x", "y", "width", "height")]
        for element in ElementTree.parse(path).iter(f"{SVG}image")
    ]
    assert len(boxes) == 3
    assert len({tuple(box[1:]) for box in boxes}) == 1  # as high, as wide, and as far down
    assert boxes[0][0] < boxes[1][0] < boxes[2][0]


def test_an_edge(studio: Any, serving: Serving, drawn: Any, tmp_path: Path) -> None:
    trace, weights = drawn(3, 12)
    page = studio.served(serving(collect([trace])), "#view=neuron&head=0&query=9&key=4&lock=1")
    page.locator(".ledger td.weight").wait_for()
    path = in_print(studio, page, tmp_path)
    assert path.name == "headloom-neuron-L0-H0-query-9-key-4-175mm.svg"
    said = texts(path)
    assert "L0 H0: “t9” → “t4”" in said
    # Of a line of the ledger what it gives comes first, then its name.
    assert said[said.index("weight") - 1] == f"{weights[0, 9, 4]:.4f}"
    # A bar for each of 8 numbers of q, of k and of their products; one is the ground.
    bars = list(ElementTree.parse(path).iter(f"{SVG}rect"))[1:]
    assert len(bars) == 24
    queries, keys = trace.layers[0].queries[0, 9], trace.layers[0].keys[0, 4]
    for n, values in enumerate((queries, keys, queries * keys)):
        high = np.array([float(bar.get("height")) for bar in bars[8 * n : 8 * n + 8]])
        values = np.abs(values.double().numpy())
        np.testing.assert_allclose(high, 22 * values / values.max(), atol=0.051)


def test_many_texts(studio: Any, serving: Serving, drawn: Any, tmp_path: Path) -> None:
    made = [drawn(seed, 14) for seed in range(12)]
    (tmp_path / "texts").mkdir()
    for number, (trace, _) in enumerate(made):
        trace.save(tmp_path / "texts" / f"{number:02}.loom")
    viewer = serving(open_collection(tmp_path / "texts"))
    page = studio.served(viewer, "#view=texts&head=0&sinks=1", width=1440)
    page.locator('.stage.corpus[aria-busy="false"]').wait_for()
    page.locator(".exemplars li").nth(11).wait_for()
    path = in_print(studio, page, tmp_path)
    said = texts(path)
    assert {"Where it acts strongest", "Words it looks at most", "L0 H0 over all texts"} <= set(
        said
    )
    # The strongest edge of each text but to its first token, by the formula.
    strongest = sorted((float(weights[0][:, 1:].max()) for _, weights in made), reverse=True)
    shown = [f"{weight:.4f}" for weight in strongest[:8]]
    assert [text for text in said if text in shown][:8] == shown


def test_an_image(studio: Any, serving: Serving, tmp_path: Path) -> None:
    grid = grid_trace()
    dense = grid.layers[0].graph.dense().double().numpy()
    page = studio.served(serving(collect([grid])), "#view=image&query=5&lock=1")
    page.locator('.stage.images[aria-busy="false"] canvas').wait_for()
    path = in_print(studio, page, tmp_path)
    assert path.name.endswith("-image-layer-0-mean-of-2-heads-position-5-175mm.svg")
    (map_,) = pictures(path)
    row = dense.mean(0)[5, 1:]
    said = texts(path)
    assert f"{row.max():.4f}" in said
    share = f"{100 * row.sum():.0f}" if row.sum() >= 0.1 else f"{100 * row.sum():.1f}"
    assert any(text.startswith(f"{share}\u00a0% of its weight is on the image") for text in said)
    # The darkest dot is the patch with most weight.
    high, wide = map_.shape[0] / ROWS, map_.shape[1] / COLUMNS
    middles = map_[
        ((np.arange(ROWS) + 0.3) * high).astype(int)[:, None],
        ((np.arange(COLUMNS) + 0.3) * wide).astype(int),
    ].sum(-1)
    assert middles.argmin() == row.argmax()
