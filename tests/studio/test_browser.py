"""The exported page in a real browser, where there is one."""

from __future__ import annotations

import shutil

import pytest
import torch

import weft
from weft.studio.page import export_page

playwright = pytest.importorskip("playwright.sync_api", reason="needs the package playwright")
CHROMIUM = shutil.which("chromium") or shutil.which("chromium-browser")
pytestmark = pytest.mark.skipif(CHROMIUM is None, reason="needs the browser chromium")

FLAGS = [
    "--no-sandbox", "--disable-gpu", "--disable-quic", "--no-first-run",
    "--disable-background-networking", "--disable-component-update", "--disable-sync",
]  # fmt: skip


@pytest.fixture(scope="module")
def browser():
    with playwright.sync_playwright() as driver:
        browser = driver.chromium.launch(executable_path=CHROMIUM, args=FLAGS)
        yield browser
        browser.close()


@pytest.fixture
def open_page(browser, tmp_path):
    """A function that exports traces and opens the page; afterwards nothing may have gone wrong."""
    problems: list[str] = []
    contexts = []

    def open_(traces, address="", theme="light", width=1280, **options):
        path = tmp_path / "page.html"
        export_page(path, traces, "Test", **options)
        context = browser.new_context(
            color_scheme=theme, viewport={"width": width, "height": 800}, offline=True
        )
        contexts.append(context)
        page = context.new_page()
        page.on("console", lambda message: problems.append(f"{message.type}: {message.text}"))
        page.on("pageerror", lambda error: problems.append(str(error)))
        page.on("dialog", lambda dialog: problems.append(dialog.message))
        page.on(
            "request",
            lambda request: (
                None if request.url.startswith(("file:", "data:")) else problems.append(request.url)
            ),
        )
        page.goto(f"{path.as_uri()}{address}")
        return page

    yield open_
    for context in contexts:
        context.close()
    assert problems == []


def history_of(trace):
    uniform = [torch.full(layer.shape, 1 / layer.shape[2]) for layer in trace.layers]
    return [
        {
            "step": step,
            "loss": 2.0 - place,
            "layers": {
                layer.name: {
                    "weights": (uniform, [x.graph.dense() for x in trace.layers])[place][number],
                    "norm": [1.0 + place] * layer.heads,
                    "symmetry": [0.1 * place] * layer.heads,
                }
                for number, layer in enumerate(trace.layers)
            },
        }
        for place, step in enumerate((0, 500))
    ]


def test_heads_to_threads_to_matrix_and_back(open_page, pair_trace):
    page = open_page([pair_trace])
    tiles = page.locator("#stage .tile")
    assert tiles.count() == 12
    assert "Encoder layer 0, head 0" in page.locator("#panel").inner_text()
    # A tile shows its head: the canvas has a pixel for each cell.
    size = tiles.nth(8).locator("canvas").evaluate("canvas => [canvas.width, canvas.height]")
    assert size == [7, 4]

    tiles.nth(9).click()
    assert "Cross layer 0, head 1" in page.locator("#panel").inner_text()
    page.keyboard.press("Enter")
    assert "view=threads" in page.url
    weights = pair_trace.layer("cross", 0).graph.dense()[1]
    page.locator(".queries .word").nth(2).hover()
    page.wait_for_timeout(50)
    best = int(weights[2].argmax())
    row = page.locator("#panel tbody tr").first.inner_text().split()
    assert row[:2] == [pair_trace.tokens[best], f"{float(weights[2, best]):.4f}"]
    marked = page.locator(".keys-column .word").nth(best).locator(".number").inner_text()
    assert marked == f"{float(weights[2, best]):.2f}"

    page.keyboard.press("m")
    page.keyboard.press("ArrowDown")
    page.keyboard.press("ArrowDown")
    page.keyboard.press("ArrowRight")
    value = float(page.locator(".value").inner_text())
    assert value == pytest.approx(float(weights[1, 1]), abs=1e-6)

    page.go_back()
    assert page.locator(".loom").count() == 1
    page.go_back()
    assert page.locator("#stage .tile").count() == 12


def test_the_address_restores_a_view(open_page, pair_trace):
    page = open_page([pair_trace], "#view=matrix&layer=2&head=3&query=1&key=5")
    assert "Cross layer 0, head 3" in page.locator("#panel").inner_text()
    expected = float(pair_trace.layer("cross", 0).graph.dense()[3, 1, 5])
    assert float(page.locator(".value").inner_text()) == pytest.approx(expected, abs=1e-6)
    # What does not exist is left out.
    page = open_page([pair_trace], "#view=nowhere&example=9&layer=-1&head=x&query=1e9")
    assert page.locator("#stage .tile").count() == 12


def test_masked_and_unkept_cells_are_told_apart(open_page, pair_trace, make_trace):
    page = open_page([pair_trace], "#view=matrix&layer=1&head=0&query=0&key=3")
    assert page.locator(".value").inner_text() == "hidden"
    trace = make_trace([f"t{i}" for i in range(9)], keep=2)
    graph = trace.layers[0].graph
    missing = next(key for key in range(9) if key not in graph.keys[0, 0].tolist())
    page = open_page([trace], f"#view=matrix&query=0&key={missing}")
    assert page.locator(".value").inner_text().startswith("< 0.")
    assert "Not among the 2 kept edges" in page.locator("#panel").inner_text()


def test_training_is_scrubbed_from_random_to_trained(open_page, pair_trace):
    page = open_page([pair_trace], "#view=training", history=history_of(pair_trace))
    pixels = "canvas => Array.from(canvas.getContext('2d').getImageData(0, 0, 7, 4).data)"
    canvas = page.locator("#stage .tile").nth(8).locator("canvas")
    colours = canvas.evaluate(pixels)
    assert len({tuple(colours[n : n + 3]) for n in range(0, len(colours), 4)}) == 1  # uniform
    picture = "canvas => canvas.toDataURL()"
    before = canvas.evaluate(picture)
    assert page.locator("#now").inner_text() == "step 0: random matrices"
    page.keyboard.press("ArrowRight")
    assert page.locator("#now").inner_text() == "step 500: trained"
    assert canvas.evaluate(picture) != before
    page.keyboard.press("Home")
    assert canvas.evaluate(picture) == before
    page.locator("#speed").select_option("16")
    page.locator("#play").click()
    page.wait_for_timeout(300)
    assert page.locator("#now").inner_text() == "step 500: trained"


def test_the_dot_rides_on_the_reported_curve(open_page, pair_trace):
    """A snapshot's loss is of one batch: beside a curve of averages it would jump."""
    snapshots = [{**snapshot, "loss": 9.0} for snapshot in history_of(pair_trace)]
    curves = {"training loss": [(100, 3.0), (300, 2.0), (500, 1.0)]}
    page = open_page([pair_trace], "#view=training", history=snapshots, curves=curves)
    dot = page.locator("#dot")
    assert dot.get_attribute("visibility") == "hidden"  # nothing was reported at step 0
    page.keyboard.press("ArrowRight")
    assert dot.get_attribute("visibility") == "visible"
    place = f"{float(dot.get_attribute('cx')):.1f} {float(dot.get_attribute('cy')):.1f}"
    assert page.locator("#curve path").get_attribute("d").endswith(f"L{place}")
    assert "from 3.00 down to 1.00" in page.locator(".time").inner_text()


@pytest.mark.parametrize("view", ["heads", "threads", "matrix"])
@pytest.mark.parametrize(("theme", "width"), [("light", 1280), ("dark", 390)])
def test_hostile_tokens_in_every_view(open_page, make_trace, hostile_tokens, view, theme, width):
    page = open_page([make_trace(hostile_tokens)], f"#view={view}", theme, width)
    assert page.evaluate("document.documentElement.dataset.theme") == theme
    # Nothing runs out of the window sideways, however long a token is.
    assert page.evaluate("document.documentElement.scrollWidth") <= width
    assert page.locator("script").count() == 2
    if view == "threads":
        shown = page.locator(".queries .word").all_inner_texts()
        assert shown[0] == "<script>alert(1)</script>"
        assert shown[6] == "‹202E›gnp.exe"


def test_several_examples(open_page, make_trace):
    traces = [make_trace(["a", "b"]), make_trace(["c", "d", "e"])]
    page = open_page(traces, names=["first", "second"])
    page.keyboard.press("]")
    assert page.locator("#example").evaluate("select => select.selectedOptions[0].text") == "second"
    size = page.locator("#stage .tile canvas").first.evaluate("canvas => canvas.width")
    assert size == 3


def test_an_empty_and_a_single_token(open_page, make_trace, language_model):
    empty = weft.trace(language_model, torch.tensor([0]))
    for view in ("heads", "threads", "matrix"):
        open_page([empty], f"#view={view}")
        open_page([make_trace(["a"])], f"#view={view}")
