"""The matrix under two fingers, in a narrow window, and with numbers in its cells."""

from __future__ import annotations

from typing import Any

import pytest
import torch
from tests.studio.test_sound_axes import WRITTEN
from tests.studio.windows import until

import headloom
from headloom.api.trace import Trace
from headloom.formats.terms import Terms
from headloom.formats.trace import LayerInMemory, TraceLayer
from headloom.studio.page import collect

WINDOW = "new URLSearchParams(location.hash.slice(1)).get('window')"

#: Pixels left of the cells and above them, with tokens of three letters.
MARGIN = (74, 65)


class Fingers:
    """Fingers on a touch screen, as Chromium gets them from one."""

    def __init__(self, page: Any) -> None:
        self._session = page.context.new_cdp_session(page)
        self._page = page

    def move(self, kind: str, *places: tuple[float, float]) -> None:
        points = [{"x": x, "y": y, "id": number} for number, (x, y) in enumerate(places)]
        self._session.send(
            "Input.dispatchTouchEvent", {"type": f"touch{kind}", "touchPoints": points}
        )
        self._page.wait_for_timeout(30)

    def pinch(self, x: float, y: float, start: float, end: float, aside: float = 0) -> None:
        """Two fingers around a place, from so far left and right of it to so far, and aside."""
        self.move("Start", (x - start, y))
        self.move("Start", (x - start, y), (x + start, y))
        for step in range(1, 9):
            apart, over = start + (end - start) * step / 8, aside * step / 8
            self.move("Move", (x - apart + over, y), (x + apart + over, y))
        self.move("End", (x + end + aside, y))
        self.move("End")


def window_of(page: Any, before: str | None) -> str | None:
    """What the address says of the window, once it is another than before."""
    for _ in range(200):
        found = page.evaluate(WINDOW)
        if found != before:
            return found
        page.wait_for_timeout(25)
    raise AssertionError(f"the window stays {before}")


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


@pytest.mark.parametrize("width", [pytest.param(1280, marks=pytest.mark.slow), 390])
def test_two_fingers_zoom_and_one_pans(studio, make_trace, width: int) -> None:
    trace = make_trace([f"t{i}" for i in range(50)])
    page = studio.file(collect([trace]), "#view=matrix", width=width, touch=True)
    canvas = page.locator(".stage.matrix canvas")
    page.locator('.stage.matrix[aria-busy="false"]').wait_for()
    box = canvas.bounding_box()
    x, y = box["x"] + box["width"] * 0.6, box["y"] + box["height"] * 0.5

    def under() -> list[int]:
        """The cell under a pointer at that place."""
        page.mouse.move(x, y)
        found = page.locator(".cell-value .faint", has_text="row").last.inner_text()
        return [int(word.strip(",")) for word in found.split() if word.strip(",").isdigit()]

    fingers = Fingers(page)
    fingers.pinch(x, y, 30, 90)
    page.wait_for_timeout(100)
    first = window_of(page, None)
    before = under()
    fingers.pinch(x, y, 40, 60)
    page.wait_for_timeout(100)
    near = window_of(page, first)
    top, left, rows = (float(number) for number in near.split(","))
    assert rows == pytest.approx(float(first.split(",")[2]) / 1.5, rel=0.01)
    # What lay between the fingers lies there still, and no cell was chosen.
    assert under() == before
    assert "query=" not in page.url

    # One finger pans, as far as it goes, without inertia where it rests.
    fingers.move("Start", (x, y))
    for step in range(1, 7):
        fingers.move("Move", (x - 10 * step, y - 10 * step))
    page.wait_for_timeout(150)
    fingers.move("End")
    panned = window_of(page, near)
    moved = [float(part) for part in panned.split(",")]
    assert moved[2] == rows
    assert moved[0] > top + 1
    assert moved[0] - top == pytest.approx(moved[1] - left, abs=0.03)

    # A touch that stays chooses the cell.
    fingers.move("Start", (x, y))
    fingers.move("End")
    page.locator(".value", has_text=".").wait_for()
    for _ in range(100):
        if "query=" in page.url:
            break
        page.wait_for_timeout(25)
    assert "query=" in page.url

    # Two fingers together, and moving aside: far out again, where the address says nothing.
    fingers.pinch(x, y, 130, 24, aside=20)
    for _ in range(100):
        if page.evaluate(WINDOW) is None:
            break
        page.wait_for_timeout(25)
    assert page.evaluate(WINDOW) is None


@pytest.mark.parametrize("width", [1280, 800, 390])
@pytest.mark.parametrize("length", [10, 50])
def test_the_buttons_cover_no_cell_and_no_name(studio, make_trace, width: int, length: int) -> None:
    trace = make_trace(["reproduction"] * length)
    page = studio.file(collect([trace]), "#view=matrix", width=width)
    page.locator('.stage.matrix[aria-busy="false"]').wait_for()
    covered = """() => {
        const stage = document.querySelector(".stage.matrix");
        const canvas = stage.querySelector("canvas"), tools = stage.querySelector(".tools");
        const from = canvas.getBoundingClientRect(), box = tools.getBoundingClientRect();
        const ratio = canvas.width / from.width;
        const { data } = canvas.getContext("2d").getImageData((box.left - from.left) * ratio,
            (box.top - from.top) * ratio, box.width * ratio, box.height * ratio);
        return new Set(new Uint32Array(data.buffer)).size;
    }"""
    assert page.evaluate(covered) == 1  # the ground alone


@pytest.mark.parametrize(("kept", "numbers"), [(6, 36), (3, 0)])
def test_a_page_has_numbers_in_its_cells_where_every_edge_was_kept(
    studio, kept: int, numbers: int
) -> None:
    # Where some were not, the page's exact picture is shown, which knows no numbers.
    queries, keys = torch.randn(2, 1, 1, 6, 8, generator=torch.Generator().manual_seed(0))
    trace = headloom.from_queries_keys(
        queries, keys, tokens=list("abcdef"), keep=headloom.Top(kept)
    )
    page = studio.file(collect([trace]), "#view=matrix")
    page.locator(".panel", has_text="The whole:").wait_for()
    page.locator('.stage.matrix[aria-busy="false"]').wait_for()
    page.evaluate(WRITTEN)
    page.keyboard.press("l")
    until(page, lambda: page.evaluate("written.filter(([text]) => text === 'f').length >= 2"))
    found = page.evaluate("written.filter(([text]) => text.includes('.')).map(([text]) => text)")
    assert len(found) >= numbers and bool(found) == bool(numbers)


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


def test_a_matrix_that_is_on_its_way_says_so(studio, serving, make_trace) -> None:
    viewer = serving(collect([make_trace([f"t{i}" for i in range(30)])]))
    page = studio.served(viewer, "#view=heads")
    page.locator(".stage .tile").first.wait_for()
    held: list[Any] = []
    page.route("**/layers/**", lambda route: held.append(route))
    page.evaluate("location.hash = '#view=matrix&head=1'; location.reload()")
    until(page, lambda: bool(held))
    # Nothing drawn would look like weights of 0.
    page.locator(".stage.matrix .reading", has_text="Reading the weights").wait_for()
    page.unroute("**/layers/**")  # those held go on
    page.locator('.stage.matrix[aria-busy="false"]').wait_for()
    assert page.locator(".reading").count() == 0
