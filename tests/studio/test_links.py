"""Links name an example, and say so where they ask for what is not there."""

from __future__ import annotations

from collections.abc import Callable
from pathlib import Path
from typing import Any

import pytest
from tests.studio.windows import until

import headloom
from headloom.api.trace import Trace
from headloom.studio.collection import Collection
from headloom.studio.page import collect
from headloom.studio.runs import open_collection, open_traces
from headloom.studio.serving import Viewer


@pytest.fixture
def three(make_trace: Callable[..., Trace]) -> Collection:
    traces = [make_trace(list("abc")), make_trace(list("de")), make_trace(list("fghi"))]
    return collect(traces, "three", names=["first", "a name & more", "2"])


@pytest.mark.parametrize(
    ("asked", "tokens", "name"),
    [
        ("example=a+name+%26+more", 2, "a+name+%26+more"),
        ("example=1", 2, "a+name+%26+more"),  # an old link, by number
        ("example=2", 4, "2"),  # a name before a number
    ],
)
def test_a_link_holds_the_name(
    studio: Any, three: Collection, asked: str, tokens: int, name: str
) -> None:
    page = studio.file(three, f"#view=threads&{asked}")
    page.locator(".queries .word").first.wait_for()
    assert page.locator(".queries .word").count() == tokens
    until(page, lambda: f"example={name}" in page.url)
    assert page.locator(".notices").count() == 0


def test_an_example_that_is_not_there_is_said_and_what_there_is(
    studio: Any, three: Collection
) -> None:
    asked = "<b>"
    page = studio.file(three, f"#view=threads&example={asked}")
    page.locator(".message").wait_for()
    text = page.locator(".message").inner_text()
    assert f"Example “{asked}” not found" in text
    assert page.locator(".message .there button").all_inner_texts() == [
        "first", "a name & more", "2",
    ]  # fmt: skip
    assert page.locator("main").count() == 0  # no other trace in its place
    page.locator(".there button", has_text="a name").click()
    page.locator(".queries .word").first.wait_for()
    assert page.locator(".queries .word").count() == 2
    until(page, lambda: "example=a+name+%26+more" in page.url)


@pytest.mark.parametrize(
    ("asked", "notice"),
    [
        ("heads=0.5", "There is no head 5: there are heads 0 to 1."),
        ("scale=cubic", "The link has scale=cubic; expected one of root, linear, log."),
    ],
)
def test_a_place_that_is_not_there_is_said(
    studio: Any, three: Collection, asked: str, notice: str
) -> None:
    page = studio.file(three, f"#view=threads&example=first&{asked}")
    page.locator(".notices").wait_for()
    assert page.locator(".notices p").all_inner_texts() == [notice]
    page.locator(".notices button").click()
    page.locator(".notices").wait_for(state="detached")
    until(page, lambda: asked not in page.url)


@pytest.fixture
def stored(make_trace: Callable[..., Trace], tmp_path: Path) -> list[Path]:
    paths = [tmp_path / "first.loom", tmp_path / "second.loom"]
    for path, tokens in zip(paths, ("abc", "de"), strict=True):
        make_trace(list(tokens)).save(path)
    return paths


def test_a_link_finds_its_trace_whatever_it_is_called_now(
    studio: Any, stored: list[Path], tmp_path: Path
) -> None:
    page = studio.file(open_traces(stored), "#view=threads&example=1")  # an old link
    page.locator(".queries .word").nth(1).wait_for()
    until(page, lambda: "trace=" in page.url)
    link = page.url.split("#")[1]
    assert "example=second" in link
    # Renamed, and alone: the digest finds it.
    stored[1].rename(tmp_path / "renamed.loom")
    page = studio.file(open_collection(tmp_path / "renamed.loom"), f"#{link}")
    page.locator(".queries .word").nth(1).wait_for()
    assert page.locator(".queries .word").count() == 2
    assert page.locator(".notices").count() == 0


def test_a_link_to_another_trace_of_the_name_says_so(
    studio: Any, stored: list[Path], make_trace: Callable[..., Trace]
) -> None:
    page = studio.file(open_collection(stored[0]), "#view=threads")
    until(page, lambda: "trace=" in page.url)
    link = page.url.split("#")[1]
    make_trace(list("abcd")).save(stored[0], overwrite=True)
    page = studio.file(open_collection(stored[0]), f"#{link}")
    page.locator(".notices", has_text="The link was made from another trace").wait_for()
    assert page.locator(".queries .word").count() == 4
    page.locator(".notices button").click()
    page.locator(".notices").wait_for(state="detached")
    digest = link.split("trace=")[1][:12]
    page.wait_for_url(lambda url: "trace=" in url and f"trace={digest}" not in url)


def test_a_page_notices_that_other_traces_are_served(
    studio: Any, make_trace: Any, tmp_path: Path
) -> None:
    first, second = make_trace(["the", "cat"]), make_trace(["a", "dog"])
    first.save(tmp_path / "first.loom")

    def started(trace: headloom.Trace, port: int) -> Viewer:
        collection = collect([trace])
        # Measured already: the page does not ask again while no server is there.
        collection.examples[0].heads(wait=True)
        viewer = Viewer(collection, port)
        viewer.start()
        return viewer

    viewer = started(headloom.open(tmp_path / "first.loom"), 0)
    port = int(viewer.address.strip("/").rsplit(":", 1)[1])
    page = studio.served(viewer, "#view=heads")
    page.locator(".stage .tile").first.wait_for()
    viewer.close()
    # The same trace again: the page goes on.
    viewer = started(headloom.open(tmp_path / "first.loom"), port)
    page.keyboard.press("t")
    page.locator(".threads .word").first.wait_for()
    viewer.close()
    viewer = started(second, port)
    page.keyboard.press("m")
    alert = page.locator("[role=alert]", has_text="started again, with other traces")
    alert.first.wait_for()
    assert "reload the page" in alert.first.inner_text()
    page.reload()
    page.locator('.stage.matrix[aria-busy="false"]').wait_for()
    assert alert.count() == 0
    viewer.close()
    # The browser tells of what the other server refused.
    assert all("412" in problem for problem in studio.problems)
    studio.problems.clear()
