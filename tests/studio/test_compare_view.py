"""The view Compare by what is on the screen, against dense weights in float64."""

from __future__ import annotations

from typing import Any

import numpy as np
import pytest
from tests.studio.test_accessibility import AXE, axe_findings, faint_texts
from tests.studio.windows import until, windows

from headloom.api.trace import Trace
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
PICTURES = (
    """() => [...document.querySelectorAll(".pair-canvas canvas")].map(one => one.toDataURL())"""
)


@pytest.fixture
def two(serving, drawn) -> tuple[Viewer, np.ndarray[Any, Any], np.ndarray[Any, Any]]:
    (first, before), (second, after) = drawn(1, 12, 4), drawn(2, 12, 4)
    return serving(collect([first, second], names=["before", "after"])), before, after


def numbers(page: Any) -> list[str]:
    """What stands beside both names, and beside their difference."""
    page.locator(".cell-value tr.sum").wait_for()
    return page.locator(".cell-value td").all_inner_texts()


def shown(number: float, digits: int) -> str:
    return f"{number:.{digits}f}".replace("-", "−")


def test_both_matrices_their_difference_and_the_cell(studio, two) -> None:
    viewer, before, after = two
    page = studio.served(viewer, "#view=compare&head=1", width=1440)
    page.locator(READY).wait_for()
    assert page.locator(".pair-canvas figcaption").all_inner_texts() == [
        "before", "after", "second less first",
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


def test_cursors_and_windows_are_linked(studio, two) -> None:
    viewer, *_ = two
    page = studio.served(viewer, "#view=compare", width=1440)
    page.locator(READY).wait_for()
    page.wait_for_timeout(300)
    before = page.evaluate(PICTURES)

    def changed(since: list[str]) -> bool:
        return all(one != other for one, other in zip(since, page.evaluate(PICTURES), strict=True))

    box = page.locator(".pair-canvas canvas").nth(1).bounding_box()
    page.mouse.move(box["x"] + box["width"] / 2, box["y"] + box["height"] - 40)
    page.locator(".cell-value tr.sum").wait_for()
    until(page, lambda: changed(before))
    hovered = page.evaluate(PICTURES)
    page.mouse.wheel(0, -600)
    until(page, lambda: changed(hovered))
    until(page, lambda: "window=" in page.url)
    page.mouse.click(box["x"] + box["width"] / 2, box["y"] + box["height"] - 60)
    until(page, lambda: "query=" in page.url and "key=" in page.url)


def test_heads_are_ranked_and_open(studio, serving, drawn, language_model) -> None:
    import torch

    import headloom

    tokens = torch.randint(1, 50, (30,), generator=torch.Generator().manual_seed(8))
    first = headloom.trace(language_model, tokens, keep=headloom.Top(6))
    with torch.no_grad():
        language_model.layers[1].w_q.weight[4:8] *= -3  # head 1
    second = headloom.trace(language_model, tokens, keep=headloom.Top(6))
    dense = [[layer.matrix.dense().double() for layer in one.layers] for one in (first, second)]
    change = torch.stack([(b - a).abs().sum(-1).mean(-1) / 2 for a, b in zip(*dense, strict=True)])
    viewer = serving(collect([first, second], names=["a", "b"]))
    page = studio.served(viewer, "#view=compare", width=1440)
    page.locator(READY).wait_for()
    page.locator(".changes table").first.locator("tbody tr").nth(7).wait_for()
    rows = page.locator('section[aria-label="The heads that changed most"] tbody tr')
    assert rows.count() == 8
    name, value, _ = rows.first.locator("td").all_inner_texts()
    assert (name, value) == ("L1 H1", shown(float(change[1, 1]), 3))
    assert "Its weights are the same in both." in page.locator(".panel").inner_text()
    rows.first.locator("button").click()
    page.locator(".panel h2", has_text="L1 H1").first.wait_for()
    page.wait_for_url(lambda url: "layer=1" in url and "head=1" in url)
    edge = dense[1][1][1] - dense[0][1][1]
    query, key = divmod(int(edge.abs().argmax()), 30)
    edges = page.locator('section[aria-label="The edges that changed most"] tbody tr')
    edges.first.wait_for()
    assert edges.first.locator("button").get_attribute("title") == f"query {query}, key {key}"
    edges.first.locator("button").click()
    assert float(numbers(page)[2].replace("−", "-")) == pytest.approx(
        float(edge[query, key]), abs=6e-5
    )
    # On the map: layer 0, head 2 of 4 lies in the third column of the first row.
    size = page.evaluate(
        "() => { const c = document.querySelector('.change-map canvas');"
        "return [(c.clientWidth - 38) / 4, c.clientHeight]; }"
    )
    side = min(size[0], 26)
    page.locator(".change-map canvas").click(position={"x": 34 + 2.5 * side, "y": 18 + side / 2})
    page.locator(".panel h2", has_text="L0 H2").first.wait_for()
    # By the keys: from the most changed to the next.
    rows.first.locator("button").click()
    page.locator(".stage").focus()
    page.keyboard.press("PageDown")
    second_name = rows.nth(1).locator("td").first.inner_text()
    page.locator(".panel h2", has_text=second_name).first.wait_for()
    page.keyboard.press("PageUp")
    page.locator(".panel h2", has_text="L1 H1").first.wait_for()


def test_what_was_not_kept_stands_as_bounds(studio, serving, drawn) -> None:
    (first, before), (second, after) = drawn(5, 30, 4, False), drawn(6, 30, 4, False)
    viewer = serving(collect([first, second], names=["a", "b"]))
    page = studio.served(viewer, "#view=compare", width=1440)
    page.locator(READY).wait_for()
    assert page.locator(".pair-canvas figcaption").last.inner_text().endswith("at least")
    panel = page.locator(".panel").inner_text()
    assert "Only the kept edges of both are known" in panel and "at least" in panel
    page.locator(".changes tbody tr").first.wait_for()
    distances = np.abs(after - before).sum(-1).mean(-1) / 2
    rows = page.locator('section[aria-label="The heads that changed most"] tbody tr')
    for row in rows.all():
        name, value, _ = row.locator("td").all_inner_texts()
        low, high = (float(part) for part in value.split(" to "))
        assert low <= distances[int(name[-1])] <= high and low < high
    # A cell that only the first kept, and one that neither did.
    kept = [one.layers[0].graph.keys[0, 29].tolist() for one in (first, second)]
    alone = next(key for key in kept[0] if key not in kept[1])
    neither = next(key for key in range(30) if key not in kept[0] + kept[1])
    for key, exact in ((alone, (True, False)), (neither, (False, False))):
        page.evaluate("key => location.hash = `#view=compare&query=29&key=${key}&lock=1`", key)
        page.locator(".cell-value", has_text=f"row 29, column {key}").wait_for()
        texts = numbers(page)
        true = before[0][29, key], after[0][29, key], (after - before)[0][29, key]
        for text, number, known in zip(texts, true, (*exact, False), strict=True):
            assert (" to " not in text) is known
            ends = [float(part) for part in text.replace("−", "-").split(" to ")]
            assert min(ends) - 6e-5 <= number <= max(ends) + 6e-5
    # No number stands in a cell of the third picture, where it would look exact.
    page.evaluate("""() => { window.written = [];
        const write = CanvasRenderingContext2D.prototype.fillText;
        CanvasRenderingContext2D.prototype.fillText = function (text, ...rest) {
            window.written.push([this.canvas.ariaLabel ?? this.canvas.getAttribute("aria-label"),
                text]);
            return write.call(this, text, ...rest);
        }; }""")
    page.evaluate("location.hash = '#view=compare&window=24,24,3&query=29&key=29&lock=1'")
    page.locator(".cell-value", has_text="row 29, column 29").wait_for()

    def texts(part: str) -> list[str]:
        written = page.evaluate("window.written")
        return [text for label, text in written if label and part in label]

    until(page, lambda: any("." in text for text in texts("a:")) and bool(texts("at least")))
    page.wait_for_timeout(300)
    in_first, in_third = texts("a:"), texts("at least")
    assert any("." in text for text in in_first)
    assert in_third and not any("." in text for text in in_third)


def test_other_tokens_are_said(studio, serving, make_trace) -> None:
    traces = [make_trace(["a", "<b>", "c"]), make_trace(["a", "b", "c"]), make_trace(["a", "<b>"])]
    viewer = serving(collect(traces, names=["A", "B", "C"]))
    page = studio.served(viewer, "#view=compare")
    page.locator(READY).wait_for()
    assert page.locator(".differs").all_inner_texts() == [
        "Token 1 is the first that differs: “<b>” in A, “b” in B. Cells are compared by their "
        "places."
    ]
    assert page.locator(".pair-canvas").count() == 3
    page.locator(".stage.compare select").select_option(label="C")
    page.locator(".differs", has_text="There are 3 tokens in A, 2 in C").wait_for()
    assert "only A goes on, with “c”" in page.locator(".differs").first.inner_text()
    assert page.locator(".pair-canvas").count() == 0
    assert "other=C" in page.url


def test_both_names_stand_there_before_anything_is_compared(studio, serving, drawn) -> None:
    viewer = serving(collect([drawn(5)[0], drawn(6)[0]], names=["before", "after"]))
    page = studio.open("about:blank", viewer.address)
    held = []
    page.route("**/api/compare/0/1", lambda route: held.append(route))
    page.goto(f"{viewer.address}#view=compare")
    page.get_by_text("Reading both …").wait_for()
    until(page, lambda: bool(held))
    assert page.locator(".compare h2").first.inner_text() == "before and after"
    held.pop().continue_()
    page.locator(READY).wait_for()
    assert page.locator(".compare h2").first.inner_text() == "before and after"


def test_equal_traces_are_said_to_be_equal(studio, serving, drawn) -> None:
    page = studio.served(serving(collect([drawn(1)[0], drawn(1)[0]])), "#view=compare")
    page.locator(".changes", has_text="The weights are equal: no head changed.").wait_for()
    page.locator(".changes", has_text="No kept edge changed.").wait_for()


def test_keys_links_and_one_trace(studio, two, serving, drawn) -> None:
    viewer, _, after = two
    page = studio.served(viewer, "#view=heads", width=1440)
    page.locator("main:not([aria-busy]) .stage").wait_for()
    page.keyboard.press("c")
    page.locator(READY).wait_for()
    for key in ("ArrowDown", "ArrowDown", "ArrowRight"):
        page.keyboard.press(key)
    page.locator(".cell-value", has_text="row 1, column 1").wait_for()
    value = numbers(page)
    assert float(value[1]) == pytest.approx(after[0][1, 1], abs=6e-5)
    page.keyboard.press("+")
    page.keyboard.press("l")
    until(page, lambda: "scale=linear" in page.url and "window=" in page.url)
    page.wait_for_timeout(200)
    link = page.url
    page.keyboard.press("s")
    until(page, lambda: "example=after" in page.url and "other=before" in page.url)
    first = page.locator(".pair-canvas figcaption").first
    until(page, lambda: first.inner_text() == "after")
    page.keyboard.press("Escape")
    page.locator(".stage.heads").wait_for()
    # The link restores what was seen.
    page.goto("about:blank")
    page.goto(link)
    page.locator(READY).wait_for()
    assert numbers(page) == value
    assert page.locator('[aria-checked="true"]', has_text="linear").count() == 1
    # Of one trace there is no such tab, and a link to it says so.
    alone = studio.served(serving(collect([drawn(1)[0]])), "#view=compare")
    alone.locator(".notices", has_text="There is nothing to compare here").wait_for()
    assert alone.locator("nav a", has_text="Compare").count() == 0


@pytest.mark.slow
def test_a_long_text_makes_no_dense_matrix(studio, serving, long_trace) -> None:
    viewer = serving(collect([long_trace(14_000), long_trace(14_000)], names=["a", "b"]))
    page = studio.served(viewer, "", width=1440)
    sizes: list[int] = []
    page.on("response", lambda answer: sizes.append(int(answer.headers["content-length"]))
            if "/compare/" in answer.url or "/matrix/" in answer.url else None)  # fmt: skip
    page.evaluate("location.hash = '#view=compare&query=13000&key=12990&lock=1'")
    page.locator(READY).wait_for()
    page.evaluate(
        "location.hash = '#view=compare&query=13000&key=12990&lock=1&window=12980,12980,30'"
    )
    page.locator(READY).wait_for()
    assert numbers(page)[2] == "0.0000"
    # A tile is 256 x 256 halves; the matrix would be 14,000 x 14,000.
    assert sizes and max(sizes) <= 2 * 256 * 256 and sum(sizes) < 4_000_000


@windows(390, 768, 1024, 1280, 1440)
def test_every_width_and_theme(studio, serving, drawn, theme: str, width: int) -> None:
    (first, _), (second, _) = drawn(5, 30, 4, False), drawn(6, 30, 4)
    viewer = serving(collect([first, second], names=["a" * 70, "wide"]))
    address = "#view=compare&query=29&key=3&lock=1"
    page = studio.served(viewer, address, theme, width)
    page.locator(READY).wait_for()
    page.locator(".changes tbody tr").nth(3).wait_for()
    numbers(page)
    over = "document.documentElement.scrollWidth - document.documentElement.clientWidth"
    assert page.evaluate(over) <= 0
    clipped = page.evaluate("""() => [...document.querySelectorAll(".compare .pair-canvas")]
        .filter(one => one.getBoundingClientRect().right
            > document.querySelector(".stage").getBoundingClientRect().right + 1).length""")
    assert clipped == 0
    # Where something lies between two numbers, these do not reach into the next column.
    beyond = """() => [...document.querySelectorAll(".changes :is(td, th)")]
        .filter(one => one.scrollWidth > one.clientWidth + 1).map(one => one.textContent)"""
    assert page.evaluate(beyond) == []
    if not AXE.exists():
        pytest.skip("needs axe-core: npm ci in studio/ (scripts/studio does it)")
    page.evaluate(AXE.read_text("utf-8"))
    assert axe_findings(page) == []
    assert faint_texts(page) == []


def test_a_trace_that_is_damaged_is_said(studio, serving, drawn, tmp_path) -> None:
    for name, seed in (("a", 1), ("b", 2)):
        drawn(seed)[0].save(tmp_path / name)
    viewer = serving(collect([Trace.open(tmp_path / name) for name in "ab"]))
    file = tmp_path / "b" / "rows.parquet"
    content = bytearray(file.read_bytes())
    content[len(content) // 2] ^= 0xFF
    file.write_bytes(content)
    page = studio.served(viewer, "#view=compare")
    page.locator(".differs", has_text="this trace is damaged").first.wait_for()
    page.wait_for_load_state("networkidle")  # every answer is there
    studio.problems[:] = [one for one in studio.problems if "500" not in one]


def test_the_map_of_changes_names_cross_layers_whole(studio, serving, pair_trace) -> None:
    viewer = serving(collect([pair_trace, pair_trace], names=["one", "other"]))
    page = studio.served(viewer, "#view=compare&layer=2")
    page.locator("figcaption", has_text="Cross L0 H0").wait_for()
