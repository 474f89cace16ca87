"""What a patch or a word looks at in an image, in the server's answers and on the screen."""

from __future__ import annotations

from collections.abc import Callable
from typing import Any

import numpy as np
import pytest
from tests.analysis.test_patch_map import COLUMNS, ROWS, grid_trace
from tests.studio.windows import ask, until

import headloom
from headloom.studio.page import collect
from headloom.studio.serving import Viewer

Serving = Callable[..., Viewer]


@pytest.fixture(scope="module")
def grid() -> headloom.Trace:
    return grid_trace()


@pytest.fixture(scope="module")
def viewer(serving: Serving, grid: headloom.Trace) -> Viewer:
    return serving(collect([grid]))


@pytest.fixture(scope="module")
def words(serving: Serving) -> tuple[Viewer, headloom.Trace, int]:
    """A vision-language model's trace, and the number of its last layer."""
    pytest.importorskip("transformers")
    from tests.tracing.test_vision_language import SIZES, TEXT, family, language, picture, traced
    from tests.tracing.vision_models import FAMILIES

    made = family(next(iter(FAMILIES)))
    trace = traced(made, made.inputs([picture(SIZES[0])], TEXT))
    return serving(collect([trace])), trace, language(trace)[-1]


def test_the_map_of_a_patch(viewer: Viewer, grid: headloom.Trace) -> None:
    dense = grid.layers[0].graph.to_dense().double()
    _, seen = ask(viewer, "/api/examples/0/layers/0/looks/1/5/0/0/0")
    assert (seen["rows"], seen["columns"], seen["pixels"]) == (ROWS, COLUMNS, None)
    assert seen["weights"] == pytest.approx(dense[1, 5, 1:].tolist(), abs=1e-6)
    _, mean = ask(viewer, "/api/examples/0/layers/0/looks/mean/5/0/0/0")
    assert mean["weights"] == pytest.approx(dense.mean(0)[5, 1:].tolist(), abs=1e-6)
    _, patches = ask(viewer, "/api/examples/0/patches")
    (of,) = patches["sequences"].values()
    assert of["rows"][0] == -1 and of["rows"][-1] == ROWS - 1 and patches["images"] == 0


def test_the_map_of_a_word(words: tuple[Viewer, headloom.Trace, int]) -> None:
    viewer, trace, number = words
    query = len(trace.tokens) - 1
    _, seen = ask(viewer, f"/api/examples/0/layers/{number}/looks/1/{query}/0/37/61")
    whole = trace.image_map(number, 1, query, size=(37, 61))
    assert seen["pixels"] == [37, 61] and seen["of_original"]
    assert seen["weights"] == pytest.approx(whole.weights.flatten().tolist(), rel=1e-5, abs=1e-9)
    assert seen["mass"] == pytest.approx(whole.mass)


def shown(page: Any) -> np.ndarray[Any, Any]:
    """How dark the middle of each patch is on the screen: more weight, more ink."""
    page.wait_for_timeout(250)
    pixels = page.evaluate(
        """([rows, columns]) => {
            const canvas = document.querySelector(".image-map canvas");
            const context = canvas.getContext("2d");
            const found = [];
            for (let row = 0; row < rows; row++)
                for (let column = 0; column < columns; column++) {
                    const x = Math.floor(((column + 0.5) / columns) * canvas.width);
                    const y = Math.floor(((row + 0.5) / rows) * canvas.height);
                    found.push([...context.getImageData(x, y, 1, 1).data].slice(0, 3));
                }
            return found;
        }""",
        [ROWS, COLUMNS],
    )
    light = np.array(pixels) @ [0.2126, 0.7152, 0.0722]
    return 255 - light.reshape(ROWS, COLUMNS)


def order(values: Any) -> list[int]:
    return np.argsort(np.asarray(values).flatten()).tolist()


def test_on_the_screen(studio: Any, viewer: Viewer, grid: headloom.Trace) -> None:
    dense = grid.layers[0].graph.to_dense().double()
    page = studio.served(viewer, "#view=heads")
    page.locator(".stage .tile").first.wait_for()
    page.keyboard.press("i")
    page.locator(".image-map canvas").wait_for()
    assert order(shown(page)) == order(dense.mean(0)[0, 1:])
    page.keyboard.press("ArrowRight")
    page.locator(".images h2", has_text="L0 H0").wait_for()
    page.keyboard.press("ArrowRight")
    page.locator(".images h2", has_text="L0 H1").wait_for()
    assert order(shown(page)) == order(dense[1, 0, 1:])
    # The link has the head too.
    link = page.url
    page.goto("about:blank")
    page.goto(link)
    page.locator(".images h2", has_text="L0 H1").wait_for()
    # A click on a patch: what it looks at. Row 1, column 2 is position 7.
    box = page.locator(".image-map canvas").bounding_box()
    at = {"x": box["width"] * 2.5 / COLUMNS, "y": box["height"] * 1.5 / ROWS}
    page.locator(".image-map canvas").click(position=at)
    until(page, lambda: page.get_by_label("Query").input_value() == "7")
    row = dense[1, 7, 1:]
    first = page.locator(".panel .words-table tbody tr").first.locator("td")
    strongest = [str(place) for place in divmod(int(row.argmax()), COLUMNS)]
    until(page, lambda: first.all_inner_texts()[1:3] == strongest)
    best = first.all_inner_texts()
    assert float(best[3]) == pytest.approx(float(row.max()), abs=6e-5)
    # The colours end at the strongest of what is drawn, or at nine times an even weight.
    assert page.locator(".ramp figcaption").inner_text() == "weight, square-root scale"
    ticks = page.locator(".panel .ramp svg text").all_text_contents()
    top = max(float(row.max()), 9 / (ROWS * COLUMNS))
    assert [float(tick) for tick in ticks] == pytest.approx([0, top / 4, top], abs=6e-5)
    page.locator(".image-map canvas").hover(position=at)
    said = page.locator(".images .number").inner_text()
    assert said.startswith("row 1, column 2: weight ")
    assert float(said.split()[-1]) == pytest.approx(float(row[1 * COLUMNS + 2]), abs=6e-5)
    page.get_by_label("Head; the first position is").focus()
    page.keyboard.press("Home")
    page.locator(".images h2", has_text="mean of 2 heads").wait_for()
    page.locator(".stage").focus()
    page.keyboard.press("Escape")
    page.locator(".stage.heads").wait_for()
