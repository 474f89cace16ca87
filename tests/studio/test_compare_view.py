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
