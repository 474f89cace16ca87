"""Every view by the keyboard alone: the focus is never lost, a key does what it names."""

from __future__ import annotations

from typing import Any

import pytest
from tests.slow import slow

from headloom.studio.page import collect

FOCUS = """() => {
    const { activeElement } = document;
    return activeElement === document.body ? "body"
        : activeElement.className?.toString().split(" ")[0] || activeElement.localName;
}"""
#: What Tab reaches that does not say that it has the focus.
UNSEEN = """() => {
    const { activeElement } = document;
    const { outlineStyle, outlineWidth } = getComputedStyle(activeElement);
    const unseen = outlineStyle === "none" || outlineWidth === "0px";
    return unseen ? activeElement.outerHTML.slice(0, 90) : "";
}"""


def focus(page: Any) -> str:
    """The element that has the focus, by its class, once the page has come to rest."""
    page.wait_for_timeout(120)
    return page.evaluate(FOCUS)


@pytest.fixture
def page(studio, pair_trace, history_of) -> Any:
    page = studio.file(collect([pair_trace, pair_trace], history=history_of(pair_trace)))
    page.locator(".stage .tile").first.wait_for()
    return page


def test_the_focus_follows_every_change_of_view(page) -> None:
    for keys, selector in (
        ("ArrowRight Enter", ".short-threads"),  # from the tile that had it, which is gone
        ("m", ".stage.matrix"),
        ("Escape", ".short-threads"),
        ("h", ".stage.heads"),
        ("r", ".stage.training"),
        ("Escape", ".stage.heads"),
        ("t ]", ".short-threads"),  # the other example
        # The last layer, where the button is switched off.
        ("ArrowRight ArrowRight", ".short-threads"),
        ("/ Escape", ".short-threads"),
        ("? Escape", ".short-threads"),
        ("e Escape", ".short-threads"),
    ):
        for key in keys.split():
            page.keyboard.press(key)
            page.wait_for_timeout(60)
        page.locator(selector).wait_for()
        assert focus(page) != "body", keys


@pytest.mark.parametrize("view", ["graph", *slow("heads", "threads", "paths", "training")])
def test_tab_walks_through_a_view_and_is_seen(page, view: str) -> None:
    page.evaluate(f"location.hash = '#view={view}'")
    page.locator(f".stage.{view}").wait_for()
    page.evaluate("document.querySelector('.studio').focus()")
    reached = []
    for _ in range(40):
        page.keyboard.press("Tab")
        where = page.evaluate(FOCUS)
        if where == "body":
            break
        assert page.evaluate(UNSEEN) == ""
        reached.append(where)
    assert reached[0] == "skip"
    assert {"quiet", "a"} <= set(reached)  # the buttons above, the names of the views
    assert len(reached) > 10
    page.evaluate("document.querySelector('.studio').focus()")
    page.keyboard.press("Tab")
    page.keyboard.press("Enter")
    assert focus(page) == "stage"


def test_a_word_stays_in_question_from_view_to_view(page) -> None:
    page.evaluate("location.hash = '#view=threads&layer=2&head=1'")
    page.locator(".short-threads").wait_for()
    page.locator(".queries .word").nth(2).click()
    page.keyboard.press("m")
    row = page.locator(".cell-value .pair", has_text="row 2")
    row.wait_for()
    # On the picture its row stands out, in a frame in the colour of queries to its last key.
    page.locator('.stage.matrix[aria-busy="false"]').wait_for()
    framed = """() => {
        const canvas = document.querySelector(".stage.matrix canvas");
        const from = canvas.width >> 2;
        const { data } = canvas.getContext("2d").getImageData(from, 0, from, canvas.height);
        let count = 0;
        for (let n = 0; n < data.length; n += 4)
            if (data[n] < 70 && data[n + 1] > 90 && data[n + 2] > 90) count++;
        return count;
    }"""
    assert page.evaluate(framed) > 60
    page.keyboard.press("ArrowRight")
    page.locator(".cell-value .faint", has_text="row 2, column 0").wait_for()
    page.keyboard.press("t")
    page.locator('.queries .word[aria-selected="true"]').wait_for()
    # Another head of the same texts, chosen among all heads.
    page.keyboard.press("h")
    page.locator('[data-cell="2.3"]').click()
    page.locator('.queries .word[aria-selected="true"]').wait_for()
    assert page.locator(".queries .word").nth(2).get_attribute("aria-selected") == "true"
    # Of another text it is not the same word.
    page.keyboard.press("h")
    page.locator('[data-cell="0.0"]').click()
    page.locator(".panel h2", has_text="L0 (encoder 0) H0").wait_for()
    assert page.locator('.queries .word[aria-selected="true"]').count() == 0
