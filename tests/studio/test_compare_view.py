"""The view Compare by what is on the screen, against dense weights in float64."""

from __future__ import annotations

from typing import Any

import numpy as np
import pytest

from headloom.studio.page import collect
from headloom.studio.serving import Viewer

READY = ".stage.compare[aria-busy=false]"
#: The colour of a canvas at the middle of a cell, when the whole of a matrix is in sight; short
#: names of columns have 21 pixels beside it.
PIXEL = """([number, row, column, rows]) => {
    const canvas = document.querySelectorAll(".pair-canvas canvas")[number];
    const ratio = canvas.width / canvas.clientWidth;
    const left = number && canvas.parentElement.parentElement.matches(".beside") ? 12
        : canvas.clientWidth - 21 - side();
    function side() {
        const last = [...document.querySelectorAll(".pair-canvas canvas")].at(-1);
        return last.clientWidth - 12 - 21;
    }
    const top = canvas.clientHeight - 12 - Math.min(side(), 1e9);
    const zoom = side() / rows;
    const at = [left + (column + 0.3) * zoom, top + (row + 0.3) * zoom].map(n => n * ratio);
    return [...canvas.getContext("2d").getImageData(at[0], at[1], 1, 1).data].slice(0, 3);
}"""


@pytest.fixture
def two(serving, drawn) -> tuple[Viewer, np.ndarray[Any, Any], np.ndarray[Any, Any]]:
    (first, before), (second, after) = drawn(1, 12, 4), drawn(2, 12, 4)
    return serving(collect([first, second], names=["before", "after"])), before, after


def numbers(page: Any) -> list[str]:
    """What stands beside both names, and beside their difference."""
    page.locator(".cell-value tr.sum").wait_for()
    return page.locator(".cell-value td").all_inner_texts()


def test_both_matrices_their_difference_and_the_cell(studio, two) -> None:
    viewer, before, after = two
    page = studio.served(viewer, "#view=compare&head=1", width=1440)
    page.locator(READY).wait_for()
    assert page.locator(".pair-canvas figcaption").all_inner_texts() == [
        "before", "after", "second − first",
    ]  # fmt: skip
    difference = after[1] - before[1]
    for place, redder in (
        (np.unravel_index(difference.argmax(), (12, 12)), True),
        (np.unravel_index(difference.argmin(), (12, 12)), False),
    ):
        red, _, blue = page.evaluate(PIXEL, [2, *map(int, place), 12])
        assert (red - blue > 60) if redder else (blue - red > 60), (place, red, blue)
        # The cell is chosen by the arrow keys' link, and its three numbers are the formula's.
        page.evaluate(
            "([query, key]) => location.hash = `#view=compare&head=1&query=${query}&key=${key}`"
            "+ '&lock=1'",
            [int(part) for part in place],
        )
        page.locator(".cell-value", has_text=f"row {place[0]}, column {place[1]}").wait_for()
        found = numbers(page)
        expected = [before[1][place], after[1][place], difference[place]]
        for text, number in zip(found, expected, strict=True):
            assert float(text.replace("−", "-")) == pytest.approx(number, abs=6e-5)
    # Hidden by the mask in both: neutral, and said.
    red, green, blue = page.evaluate(PIXEL, [2, 0, 11, 12])
    assert max(red, green, blue) - min(red, green, blue) < 8
    page.evaluate("location.hash = '#view=compare&query=0&key=11&lock=1'")
    page.locator(".cell-value", has_text="hidden by the mask").first.wait_for()
    assert numbers(page)[2] == "0.0000"
