"""The matrix under two fingers, in a narrow window, and with numbers in its cells."""

from __future__ import annotations

from typing import Any

import pytest
import torch
from tests.studio.windows import until

import headloom
from headloom.api.trace import Trace
from headloom.formats.terms import Terms
from headloom.formats.trace import LayerInMemory, TraceLayer
from headloom.studio.page import collect

WINDOW = "new URLSearchParams(location.hash.slice(1)).get('window')"

#: Pixels left of the cells and above them, with tokens of three letters.
MARGIN = (74, 65)


def test_a_zoomed_cell_stays_whole_and_its_frame_on_the_matrix(studio, make_trace) -> None:
    collection = collect([make_trace([f"t{i}" for i in range(50)])])
    for cell in (0, 49):
        page = studio.file(collection, f"#view=matrix&query={cell}&key={cell}&lock=1")
        page.locator('.stage.matrix[aria-busy="false"]').wait_for()
        for _ in range(12):
            page.keyboard.press("+")
        until(page, lambda page=page: page.evaluate(WINDOW) is not None)
        top, left, rows = map(float, page.evaluate(WINDOW).split(","))
        assert 5 < rows < 20
        assert top == pytest.approx(0 if cell == 0 else 50 - rows, abs=0.02)
        assert left == 0 if cell == 0 else left > 20
    # Half a cell is cut off: above the matrix is nothing of its frame.
    page.evaluate("location.hash = '#view=matrix&window=0.5,0.5,8&query=0&key=0&lock=1'")
    page.locator('.stage.matrix[aria-busy="false"]').wait_for()
    page.wait_for_timeout(200)
    pixels = page.locator(".stage.matrix canvas").evaluate(
        "(canvas, box) => [...canvas.getContext('2d').getImageData(...box).data]",
        [MARGIN[0] + 3, MARGIN[1] - 41, 8, 34],
    )
    assert len({tuple(pixels[n : n + 4]) for n in range(0, len(pixels), 4)}) == 1


NONE = [0xA9, 0xB0, 0xB8]


def test_weights_that_are_not_numbers_are_grey(studio: Any, serving: Any) -> None:
    queries = torch.randn(1, 4, 8, generator=torch.Generator().manual_seed(1))
    queries[0, 1] = torch.nan
    names = [f"t{place}" for place in range(4)]
    keys = torch.ones(1, 4, 8)
    _, graph = headloom.attend(queries, keys, keys, keep=headloom.Top(4))
    layer = TraceLayer(
        name="layer", kind="encoder", index=0, shape=(1, 4, 4), queries_from="tokens",
        keys_from="tokens", query_tokens=names, key_tokens=names, scale=8**-0.5,
        data=LayerInMemory(graph, (queries, keys), Terms()), mask="all",
    )  # fmt: skip
    collection = collect([Trace({"tokens": names}, (layer,))])
    page = studio.served(serving(collection), "#view=matrix&query=1&key=2&lock=1")
    page.locator('.stage.matrix[aria-busy="false"]').wait_for()
    grey = """(canvas, none) => {
        const { width, height } = canvas;
        const { data } = canvas.getContext('2d').getImageData(0, 0, width, height);
        let found = 0;
        for (let n = 0; n < data.length; n += 4)
            found += none.every((part, at) => Math.abs(data[n + at] - part) < 2);
        return found / (width * height);
    }"""
    # A row of four, less the margins and what the numbers in its cells cover.
    for canvas in (".stage.matrix canvas", ".minimap canvas"):
        until(page, lambda of=canvas: 0.1 < page.locator(of).evaluate(grey, NONE) < 0.26)
    until(page, lambda: page.locator(".cell-value .value").inner_text() == "NaN")


def test_what_is_asked_of_a_head_that_is_left_is_called_off(studio, serving, long_trace) -> None:
    """A browser has six requests on their way at a time: none for what nobody looks at."""
    viewer = serving(collect([long_trace(300)]))
    page = studio.served(viewer, "#view=threads")
    page.locator(".stage.threads").wait_for()
    page.route("**/heads/0/matrix/**", lambda route: None)  # never answered
    ended: list[str] = []
    page.on("requestfailed", lambda request: ended.append(request.failure))
    page.keyboard.press("m")
    page.locator('.stage.matrix[aria-busy="true"]').wait_for()
    assert ended == []
    page.keyboard.press("PageDown")
    page.locator('.stage.matrix[aria-busy="false"]').wait_for()
    assert set(ended) == {"net::ERR_ABORTED"}
