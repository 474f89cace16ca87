"""The studio in a real browser, where there is one: what is on the screen, not only in the DOM."""

from __future__ import annotations

import pytest
from matplotlib.colors import to_rgb
from tests.studio.sheet import sheet_dots
from tests.studio.windows import until

from headloom.studio.page import collect
from headloom.studio.pictures.palette import palette

PIXELS = """canvas => Array.from(
    canvas.getContext('2d').getImageData(0, 0, canvas.width, canvas.height).data)"""
#: How close the closest strong pixel comes to a colour.
CLOSEST = """(canvas, [red, green, blue]) => {
    const { data } = canvas.getContext('2d').getImageData(0, 0, canvas.width, canvas.height);
    let least = 999;
    for (let n = 0; n < data.length; n += 4)
        if (data[n + 3] > 200) least = Math.min(least,
            Math.abs(data[n] - red) + Math.abs(data[n + 1] - green) + Math.abs(data[n + 2] - blue));
    return least;
}"""
PICTURE = "canvas => canvas.toDataURL()"


def panel(page) -> str:
    return page.locator(".panel").inner_text()


def test_heads_to_threads_to_matrix_and_back(studio, pair_trace) -> None:
    page = studio.file(collect([pair_trace]))
    tiles = page.locator(".stage .tile")
    tiles.first.wait_for()
    assert tiles.count() == 12
    assert "L0 (encoder 0) H0" in panel(page)
    page.keyboard.press("ArrowDown")
    page.keyboard.press("ArrowDown")
    page.keyboard.press("ArrowRight")
    assert "L2 (cross 0) H1" in panel(page)
    # A tile shows its head: a pixel for each cell, brighter colours where weights are larger.
    assert page.locator('.tile[aria-current="true"]').get_attribute("data-cell") == "2.1"
    colours = sheet_dots(page, 2, 1, 4, 7).astype(int).sum(-1)
    weights = pair_trace.layer("cross", 0).graph.to_dense()[1]
    assert int(colours.argmin()) == int(weights.flatten().argmax())  # light: dark is much

    page.keyboard.press("Enter")
    page.locator(".short-threads").wait_for()
    assert "view=threads" in page.url
    page.locator(".queries .word").nth(2).hover()
    best = int(weights[2].argmax())
    page.locator(".panel tbody tr").first.wait_for()
    row = page.locator(".panel tbody tr").first.inner_text().split()
    assert row[:2] == [pair_trace.tokens[best], f"{float(weights[2, best]):.4f}"]
    marked = page.locator(".keys-column .word").nth(best).locator(".number").inner_text()
    assert marked == f"{float(weights[2, best]):.2f}"

    page.locator(".queries .word").nth(2).click()
    page.keyboard.press("m")
    for key in ("ArrowDown", "ArrowDown", "ArrowRight"):
        page.keyboard.press(key)
    page.locator(".value", has_text="0.").wait_for()
    value = float(page.locator(".value").inner_text())
    # From query 2 two rows down, where the matrix ends, and a key to the right.
    until(page, lambda: "query=3" in page.url and "key=1" in page.url)
    assert value == pytest.approx(float(weights[3, 1]), abs=6e-5)

    page.go_back()
    page.locator(".short-threads").wait_for()
    page.go_back()
    assert page.locator(".stage .tile").count() == 12


def test_masked_and_unkept_cells_are_told_apart(studio, pair_trace, make_trace) -> None:
    page = studio.file(collect([pair_trace]), "#view=matrix&layer=1&head=0&query=0&key=3")
    page.locator(".value", has_text="masked").wait_for()
    trace = make_trace([f"t{i}" for i in range(9)], keep=2)
    graph = trace.layers[0].graph
    missing = next(key for key in range(9) if key not in graph.keys[0, 0].tolist())
    page = studio.file(collect([trace]), f"#view=matrix&query=0&key={missing}")
    page.locator(".value", has_text="not kept").wait_for()
    assert "Not among the kept edges" in panel(page)


def test_threads_of_several_heads_without_sinks(studio, minilm_trace, minilm_page) -> None:
    page = studio.file(minilm_page, "#view=threads&layer=4&head=3", "dark")
    page.locator(".short-threads").wait_for()
    front = page.locator(".lines canvas.front")
    blank = front.evaluate(PICTURE)
    page.keyboard.press("ArrowDown")
    page.keyboard.press("ArrowDown")
    until(page, lambda: front.evaluate(PICTURE) != blank)
    one = front.evaluate(PICTURE)
    page.keyboard.press("0")  # with head 3
    page.locator(".panel h2", has_text="two heads").wait_for()
    until(page, lambda: "heads=0.3" in page.url)
    assert front.evaluate(PICTURE) != one
    page.keyboard.press("s")
    page.locator(".panel", has_text="hidden; they hold").wait_for()
    # By the numbers of the trace: what rows 1 of the two heads give to [CLS] and [SEP].
    dense = minilm_trace.layers[4].graph.to_dense()[[0, 3], 1]
    held = 100 * float((dense[:, 0] + dense[:, -1]).mean())
    said = f"{held:.0f} %" if held >= 10 else f"{held:.1f} %"
    assert f"they hold {said}" in panel(page).replace("\u00a0", " ")
    # The colours of heads 0 and 3 are on the screen.
    for head in (0, 3):
        colour = [round(255 * part) for part in to_rgb(palette("dark").heads[head])]
        assert front.evaluate(CLOSEST, colour) < 40
    # Double click: one head alone.
    page.locator(".rail .tile").nth(5).dblclick()
    page.locator(".panel h2", has_text="L4 H5").wait_for()
    page.keyboard.press("w")
    page.keyboard.press("Escape")
    page.keyboard.press("Escape")
    page.locator(".stage.heads").wait_for()


def test_training_is_scrubbed_from_random_to_trained(studio, pair_trace, history_of) -> None:
    page = studio.file(collect([pair_trace], history=history_of(pair_trace)), "#view=training")
    canvas = page.locator(".stage .tile").nth(8).locator("canvas")
    canvas.wait_for()
    colours = canvas.evaluate(PIXELS)
    assert len({tuple(colours[n : n + 3]) for n in range(0, len(colours), 4)}) == 1  # uniform
    before = canvas.evaluate(PICTURE)
    assert page.locator("#now").inner_text() == "step 0: random matrices"
    page.keyboard.press("ArrowRight")
    assert page.locator("#now").inner_text() == "step 500: trained"
    trained = canvas.evaluate(PICTURE)
    assert trained != before
    page.keyboard.press("p")
    assert canvas.evaluate(PICTURE) not in (before, trained)
    page.keyboard.press("p")
    page.keyboard.press("Home")
    assert canvas.evaluate(PICTURE) == before
    page.locator("#speed").select_option("16")
    page.locator("#play").click()
    page.locator("#now", has_text="trained").wait_for()
    # The handle: a click on the left end of the curve goes back to the birth.
    box = page.locator("#curve").bounding_box()
    page.mouse.click(box["x"] + 45, box["y"] + 30)
    assert page.locator("#now").inner_text() == "step 0: random matrices"


@pytest.mark.parametrize(
    ("view", "theme", "width"),
    [("heads", "dark", 390), ("threads", "light", 1280), ("matrix", "dark", 390)],
)
def test_hostile_tokens_in_every_view(
    studio, make_trace, hostile_tokens, view, theme, width
) -> None:
    page = studio.file(collect([make_trace(hostile_tokens)]), f"#view={view}", theme, width)
    page.locator(f".stage.{view}").wait_for()
    assert page.evaluate("document.documentElement.dataset.theme") == theme
    # Nothing runs out of the window sideways, however long a token is.
    assert page.evaluate("document.documentElement.scrollWidth") <= width
    assert page.locator("script").count() == 2
    if view == "threads":
        shown = page.locator(".queries .word").all_inner_texts()
        assert shown[0] == "<script>alert(1)</script>"
        assert shown[6] == "‹202E›gnp.exe"
