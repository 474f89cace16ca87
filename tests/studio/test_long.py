"""32,768 tokens in a browser: text that flows, and the matrix from the whole to a cell."""

from __future__ import annotations

from collections.abc import Callable, Iterator
from typing import Any

import pytest

from headloom.api.trace import Trace
from headloom.studio.page import collect
from headloom.studio.serving import Viewer

pytestmark = pytest.mark.slow

LENGTH = 32_768
#: How many colours are on the matrix, of the pixels right of the axis.
COLOURS = """() => {
    const canvas = document.querySelector('.stage.matrix canvas');
    const { data } = canvas.getContext('2d').getImageData(
        canvas.width / 4, canvas.height / 4, canvas.width / 4, canvas.height / 2);
    return new Set(new Uint32Array(data.buffer)).size;
}"""


@pytest.fixture(scope="module")
def trace(long_trace: Callable[[int], Trace]) -> Trace:
    return long_trace(LENGTH)


@pytest.fixture(scope="module")
def viewer(serving: Callable[..., Viewer], trace: Trace) -> Iterator[Viewer]:
    yield serving(collect([trace], "long"))


def window_of(page: Any, before: list[float] | None = None) -> list[float]:
    """First row, first column and rows in sight, once the address says so, and not as before."""
    for _ in range(600):
        text = page.evaluate("new URLSearchParams(location.hash.slice(1)).get('window') ?? ''")
        found = [float(number) for number in text.split(",")] if text else []
        if found if before is None else found != before:
            return found
        page.wait_for_timeout(25)
    raise AssertionError(f"the window stays {before}")


def settled(page: Any) -> None:
    """Every tile in sight is there."""
    page.locator('.stage.matrix[aria-busy="false"]').wait_for(timeout=180_000)


def test_the_matrix_from_the_whole_to_single_cells(studio, viewer: Viewer, trace: Trace) -> None:
    page = studio.served(viewer, "#view=matrix&head=1&scale=log")
    settled(page)
    assert page.evaluate(COLOURS) > 20
    assert "of 32,768 × 32,768" in page.locator(".panel").inner_text()
    row = 20_000
    key = int(trace.layers[0].graph.keys[1, row, 0])
    page.evaluate(f"location.hash = '#view=matrix&head=1&query={row}&key={key}'")
    # The page reads an address a moment later; a key before that would be undone by it.
    page.locator(".panel", has_text=f"row {row:,}, column {key:,}").wait_for()
    # The keyboard's zoom goes towards the chosen cell.
    for _ in range(26):
        page.keyboard.press("+")
    settled(page)
    weight = float(trace.layers[0].graph.weights[1, row, 0])
    page.locator(".value", has_text="0.").wait_for()
    assert float(page.locator(".value").inner_text()) == pytest.approx(weight, abs=6e-5)
    assert "rank 1 of 20,001" in page.locator(".panel").inner_text()
    window = window_of(page)
    while window[2] >= 20:  # the address follows the zoom a moment later
        window = window_of(page, window)
    assert window[0] <= row <= window[0] + window[2] < LENGTH and window[2] < 20
    # Dragged by hand: the window moves with it.
    box = page.locator(".stage.matrix canvas").bounding_box()
    x, y = box["x"] + box["width"] / 2, box["y"] + box["height"] / 2
    page.mouse.move(x, y)
    page.mouse.down()
    page.mouse.move(x, y - 120, steps=6)
    page.wait_for_timeout(150)  # held still: no inertia
    page.mouse.up()
    page.wait_for_timeout(150)
    moved = window_of(page, window)
    assert moved[0] > window[0] + 1
    page.keyboard.press("0")
    settled(page)
    assert window_of(page, moved) == []
