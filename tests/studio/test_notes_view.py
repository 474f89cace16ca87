"""Notes by what is on the screen."""

from __future__ import annotations

import json
from pathlib import Path
from typing import Any

import pytest
from tests.studio.test_accessibility import AXE, axe_findings, faint_texts
from tests.studio.windows import until, windows

from weft.studio.page import collect
from weft.traces import Trace

SCRIPT = "<script>document.title = 'owned'</script><img src=x onerror=alert(1)>\nsecond line"


@pytest.fixture
def stored(pair_trace: Trace, tmp_path: Path) -> Trace:
    pair_trace.save(tmp_path / "pair.weft")
    return Trace.open(tmp_path / "pair.weft")


def add(page: Any, text: str, edge: bool | None = None) -> None:
    page.locator(".notes button", has_text="Add a note on").click()
    page.locator(".notes textarea").fill(text)
    if edge is not None:
        page.locator(".notes input[type=checkbox]").set_checked(edge)
    page.locator(".notes button", has_text="Save").click()
    page.locator(".notes textarea").wait_for(state="detached")


def texts(page: Any) -> list[str]:
    return page.locator(".notes article .note-text").all_inner_texts()


def test_a_note_is_text_where_the_head_is_shown(studio, serving, stored: Trace) -> None:
    viewer = serving(collect([stored], names=["pair"]))
    page = studio.served(viewer, "#view=threads&layer=2&head=1&query=3&key=5&lock=1")
    add(page, SCRIPT, edge=False)
    add(page, "an edge", edge=True)
    for view in ("heads", "threads", "matrix"):
        page.evaluate("view => location.hash = `#view=${view}&layer=2&head=1`", view)
        page.locator(".notes article").nth(1).wait_for()
        assert texts(page) == [SCRIPT, "an edge"]
        page.evaluate("view => location.hash = `#view=${view}&layer=2&head=0`", view)
        page.locator(".notes h2", has_text="H0").wait_for()
        assert texts(page) == []
    assert page.locator(".notes script, .notes img").count() == 0
    assert "owned" not in page.title()
    # The list, and from it to the edge.
    page.locator(".notes button", has_text="2 notes on this trace").click()
    items = page.locator("dialog[open] .all-notes li")
    assert items.count() == 2
    source, target = stored.sequences["source"], stored.sequences["target"]
    assert f"{target[3]} → {source[5]}" in items.nth(1).inner_text()
    items.nth(1).locator("button").click()
    page.locator(".notes article").nth(1).wait_for()
    until(page, lambda: all(part in page.url for part in ("layer=2", "head=1", "query=3", "key=5")))
    # Changed, removed, and read again.
    page.locator(".notes article").first.locator("button", has_text="Change").click()
    page.locator(".notes textarea").fill("short")
    page.keyboard.press("Control+Enter")
    page.locator(".notes article", has_text="short").wait_for()
    page.locator(".notes article").nth(1).locator("button", has_text="Remove").click()
    page.locator(".notes article").nth(1).wait_for(state="detached")
    page.reload()
    page.locator(".notes article").wait_for()
    assert texts(page) == ["short"]
    file = Path(f"{stored.folder}.notes.json")
    assert [note["text"] for note in json.loads(file.read_text("utf-8"))["notes"]] == ["short"]


def test_two_tabs_lose_nothing(studio, serving, stored: Trace) -> None:
    viewer = serving(collect([stored]))
    one, other = (studio.served(viewer, "#view=matrix&layer=0&head=0") for _ in range(2))
    for page in (one, other):
        page.locator(".notes button", has_text="Add a note").wait_for()
    add(one, "of the first tab")
    add(other, "of the second tab")
    assert texts(other) == ["of the first tab", "of the second tab"]
    # The first tab still shows an old version of what the second changes now.
    other.locator(".notes article").first.locator("button", has_text="Change").click()
    other.locator(".notes textarea").fill("changed by the second")
    one.locator(".notes article").first.locator("button", has_text="Change").click()
    one.locator(".notes textarea").fill("changed by the first")
    other.locator(".notes button", has_text="Save").click()
    other.locator(".notes article", has_text="changed by the second").wait_for()
    one.locator(".notes button", has_text="Save").click()
    one.locator(".notes .wrong", has_text="Somebody changed this note meanwhile").wait_for()
    assert texts(one) == ["changed by the second", "of the second tab"]
    # What was typed is still there.
    assert one.locator(".notes textarea").input_value() == "changed by the first"
    studio.problems[:] = [said for said in studio.problems if "409" not in said]


def test_read_only_pages_show_notes_and_write_none(studio, serving, stored: Trace) -> None:
    page = studio.served(serving(collect([stored])), "#view=matrix&layer=0&head=0")
    add(page, SCRIPT)
    exported = studio.file(collect([Trace.open(stored.folder)]), "#view=matrix&layer=0&head=0")
    only = collect([stored])
    only.read_only = True
    for page in (exported, studio.served(serving(only), "#view=matrix&layer=0&head=0")):
        page.locator(".notes article").wait_for()
        assert texts(page) == [SCRIPT]
        assert page.locator(".notes article button, .notes textarea").count() == 0
        assert page.locator(".notes button", has_text="Add").count() == 0
        page.locator(".notes button", has_text="1 note on this trace").click()
        assert "they are only read here" in page.locator("dialog[open]").inner_text()
    # A trace in memory has no place for notes, and says nothing of them.


def test_a_trace_in_memory_has_no_notes(studio, serving, pair_trace: Trace) -> None:
    page = studio.served(serving(collect([pair_trace])), "#view=matrix")
    page.locator('.stage.matrix[aria-busy="false"]').wait_for()
    assert page.locator(".notes").count() == 0


def test_notes_by_the_keyboard(studio, serving, stored: Trace) -> None:
    page = studio.served(serving(collect([stored])), "#view=matrix&layer=0&head=0")
    button = page.locator(".notes button", has_text="Add a note")
    button.focus()
    page.keyboard.press("Enter")
    page.locator(".notes textarea").wait_for()
    page.keyboard.type("by hand: l, 0, +")  # keys of the view, and here letters
    page.keyboard.press("Control+Enter")
    page.locator(".notes article").wait_for()
    assert texts(page) == ["by hand: l, 0, +"]
    assert "scale=" not in page.url


@pytest.mark.slow
@windows(390, 1440)
def test_notes_for_every_eye(studio, serving, stored: Trace, theme: str, width: int) -> None:
    if not AXE.exists():
        pytest.skip("needs axe-core: npm ci in studio/ (scripts/studio does it)")
    viewer = serving(collect([stored]))
    page = studio.served(viewer, "#view=heads&layer=0&head=0", theme, width)
    add(page, "x" * 300 + " " + "long " * 50)
    page.locator(".notes button", has_text="Add a note").click()
    page.evaluate(AXE.read_text("utf-8"))
    assert axe_findings(page) + faint_texts(page) == []
    over = "document.documentElement.scrollWidth - document.documentElement.clientWidth"
    assert page.evaluate(over) <= 0
    page.locator(".notes button", has_text="1 note on this trace").click()
    page.locator("dialog[open]").wait_for()
    assert axe_findings(page) + faint_texts(page) == []


def test_damaged_notes_are_said(studio, serving, stored: Trace) -> None:
    Path(f"{stored.folder}.notes.json").write_text("{}")
    page = studio.served(serving(collect([stored])), "#view=matrix")
    page.locator(".notes .wrong", has_text="not the notes of a trace").wait_for()
    page.locator('.stage.matrix[aria-busy="false"]').wait_for()
