"""Tiles, rail, minimap and matrix hold the whole matrix, pixel by pixel; else they say what is left
out.

What is expected comes from a dense formula in float64 and from the ramp of the printed pictures.
"""

from __future__ import annotations

import base64
import io
import math
import time
from collections.abc import Callable, Iterator
from typing import Any

import numpy as np
import pytest
import torch
from matplotlib.image import imread
from tests.studio.sheet import sheet_dots
from tests.studio.windows import until_right

from headloom.api.trace import Trace
from headloom.studio.collection import Example
from headloom.studio.overviews import Overviews
from headloom.studio.page import collect
from headloom.studio.pictures.palette import palette
from headloom.studio.serving import Viewer
from headloom.studio.tiles import MatrixTiles

Known = Callable[..., tuple[Trace, torch.Tensor]]
PICTURE = "canvas => canvas.toDataURL()"


def places(*fast: tuple[int, str], slow: tuple[int, ...] = ()) -> pytest.MarkDecorator:
    """Some lengths, exported as a page and served; these are in `make test`, the others, and
    lengths that are slow both ways, in `make test-all`.
    """
    return pytest.mark.parametrize(
        ("length", "where"),
        [
            pytest.param(length, where, marks=() if (length, where) in fast else pytest.mark.slow)
            for length in (*(length for length, _ in fast), *slow)
            for where in ("page", "server")
        ],
    )


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


def dots(pixels: np.ndarray, left: float, top: float, step: float, count: int) -> np.ndarray:
    """The pixels in the middle of `count` x `count` dots."""
    middles = (np.arange(count) + 0.5) * step
    rows, columns = np.rint(top + middles - 0.5), np.rint(left + middles - 0.5)
    return pixels[rows.astype(int)[:, None], columns.astype(int)[None]]


@places((2, "page"), (3, "server"), slow=(100, 480))
def test_tiles_and_rail_are_the_block_means(
    studio: Any, serving: Callable[..., Viewer], known_trace: Known, length: int, where: str
) -> None:
    trace, weights = known_trace(length)
    collection = collect([trace])
    dark = length == 100
    theme = "dark" if dark else "light"
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


@places((100, "page"), slow=(480,))
def test_minimap_and_matrix_are_the_whole_on_the_screen(
    studio: Any, serving: Callable[..., Viewer], known_trace: Known, length: int, where: str
) -> None:
    trace, weights = known_trace(length)
    collection = collect([trace])
    count = math.ceil(length / block_of(length))
    address = "#view=matrix"
    page = (
        studio.file(collection, address)
        if where == "page"
        else studio.served(serving(collection), address)
    )

    def check(head: int) -> None:
        # What is seen, not what the canvas says of itself.
        screen = pixels_of(page.locator(".minimap canvas").screenshot())
        step = (screen.shape[1] - 6) / length * block_of(length)
        same(dots(screen, 3, 3, step, count), weights[head])
        stage = data_of(page.locator(".stage.matrix canvas"))
        left, top, zoom = stage_place(stage, length)
        if where == "page":
            same(dots(stage, left, top, zoom * block_of(length), count), weights[head])
        else:
            assert zoom >= 1  # cells, each at least a pixel
            found = places_on_the_ramp(dots(stage, left, top, zoom, length))
            assert np.abs(found - 255 * weights[head].sqrt().numpy()).max() <= 2

    for head in range(3):
        page.locator(".panel h2", has_text=f"L0 H{head}").wait_for()
        page.locator('.stage.matrix[aria-busy="false"]').wait_for()
        page.locator(".panel", has_text="The whole:").wait_for()
        until_right(page, lambda head=head: check(head))  # type: ignore[misc]
        page.keyboard.press("PageDown")


def stage_place(stage: np.ndarray, length: int) -> tuple[float, float, float]:
    """Where the matrix lies on its canvas, and how large a cell is: as sheet.ts says."""
    longest = max(len(f"t{length - 1}"), 3)
    left = max(74, min(longest * 8 + 22, 128))
    top = 38 + min(longest * 5 + 12, 62)
    high, wide = stage.shape[0] - top - 12, stage.shape[1] - left - min(longest * 5 + 6, 58)
    return left, top, min(wide / length, high / length, 240)


@pytest.mark.parametrize("where", ["page", "server"])
def test_without_queries_and_keys_each_head_says_what_is_not_shown(
    studio: Any, serving: Callable[..., Viewer], known_trace: Known, where: str
) -> None:
    trace, weights = known_trace(100, queries_keys=False)
    left_out = (1 - weights.topk(8).values.sum(-1).mean(-1)).tolist()
    shares = [f"{100 * share:.{0 if share >= 0.1 else 1}f}\u00a0%" for share in left_out]
    assert left_out[0] > 0.8
    page = (
        studio.file(collect([trace]))
        if where == "page"
        else studio.served(serving(collect([trace])))
    )
    captions = page.locator(".stage .tile")
    page.locator(".stage .tile .partial").first.wait_for()
    for head in range(3):
        expected = f"{shares[head]} not shown"
        unshown = captions.nth(head).locator(".partial")
        if left_out[head] >= 5e-4:
            assert unshown.inner_text() == expected
            assert expected in captions.nth(head).get_attribute("aria-label")
        else:
            assert unshown.count() == 0
    best = weights.topk(8)
    edges = torch.zeros_like(weights).scatter(-1, best.indices, best.values)
    same(sheet_dots(page, 0, 0, 100, 100), edges[0])
    page.locator("body").press("t")
    page.locator(".rail .partial").first.wait_for()
    assert (
        page.locator(".rail .tile").first.inner_text().split("\n")[-1] == f"{shares[0]} not shown"
    )
    page.locator("body").press("m")
    said = f"of the kept edges: {shares[0]} of the mass is not shown"
    page.locator(".panel", has_text=said).wait_for()
    assert f"Drawn from the kept edges: {shares[0]}" in page.locator(".panel").inner_text()


def test_an_error_is_told_once_and_asking_again_tries_again(
    known_trace: Known, monkeypatch: pytest.MonkeyPatch
) -> None:
    """One passing error must not end the pictures of all layers."""
    trace, weights = known_trace(100)
    monkeypatch.setattr("headloom.studio.overviews._CHEAP_CELLS", 0)
    example = collect([trace]).examples[0]
    fails = [OSError("the disk is away for a moment")]
    make = MatrixTiles.matrix

    def matrix(self: MatrixTiles, number: int) -> Any:
        if fails:
            raise fails.pop()
        return make(self, number)

    monkeypatch.setattr(MatrixTiles, "matrix", matrix)
    with pytest.raises(OSError, match="away for a moment"):
        until(lambda: example.overviews.means(0)[1])
    until(lambda: example.overviews.means(0)[1])
    assert len(example.overviews.means(0)[0]) == weights.numel()


def until(done: Callable[[], bool]) -> None:
    while not done():
        time.sleep(0.01)


class Growing(list[bytes]):
    """Pictures to which another thread adds the last one just after they were read."""

    def __iter__(self) -> Iterator[bytes]:
        yield from list(super().__iter__())
        self.append(b"last")


def test_an_answer_is_whole_if_it_holds_every_head(
    known_trace: Known, monkeypatch: pytest.MonkeyPatch
) -> None:
    trace, _ = known_trace(100)
    monkeypatch.setattr("headloom.studio.overviews._CHEAP_CELLS", 0)
    monkeypatch.setattr(Overviews, "_begin", lambda self, number: None)
    overviews = Example("known", trace).overviews
    overviews._means[0] = Growing([b"first", b"second"])
    assert overviews.means(0) == (b"firstsecond", False)
    assert overviews.means(0) == (b"firstsecondlast", True)


def test_until_the_whole_is_worked_out_pictures_say_so(
    studio: Any,
    serving: Callable[..., Viewer],
    known_trace: Known,
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    trace, weights = known_trace(100)
    monkeypatch.setattr("headloom.studio.overviews._CHEAP_CELLS", 0)
    begun, go = [], []
    work = Overviews._work

    def held(self: Overviews, number: int, heads: int | None = None) -> None:
        begun.append(number)
        while not go:
            if self._stopped.wait(0.01):
                return
        work(self, number, heads)

    monkeypatch.setattr(Overviews, "_work", held)
    page = studio.served(serving(collect([trace])))
    tile = page.locator(".stage .tile").first
    tile.locator(".partial").wait_for()
    assert "90\u00a0% not shown" in tile.inner_text()
    assert "exact pictures are being worked out" in page.locator(".stage").inner_text()
    go.append(True)
    tile.locator(".partial").wait_for(state="detached")
    assert begun and set(begun) == {0}
    for head in range(3):
        page.locator(".stage .tile .partial").wait_for(state="detached")
        same(sheet_dots(page, 0, head, 100, 100), weights[head])
    assert "not shown" not in page.locator("body").inner_text()
