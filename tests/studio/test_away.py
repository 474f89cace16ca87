"""Pages that stay open while their server is ended and started again."""

from __future__ import annotations

import re
from pathlib import Path
from typing import Any

import pytest
from tests.studio.windows import until

from headloom.api.trace import Trace
from headloom.studio.asking import Asking
from headloom.studio.page import collect
from headloom.studio.serving import Viewer

SILENT = "does not answer"
SAYS = re.compile(r"\S")


@pytest.fixture
def path(pair_trace: Trace, tmp_path: Path) -> Path:
    pair_trace.save(tmp_path / "pair.loom")
    return tmp_path / "pair.loom"


def started(trace: Trace, port: int = 0, asking: Asking | None = None) -> Viewer:
    collection = collect([trace])
    collection.asking = asking
    viewer = Viewer(collection, port)
    viewer.start()
    return viewer


def port_of(viewer: Viewer) -> int:
    return int(viewer.address.strip("/").rsplit(":", 1)[1])


def test_a_page_goes_on_once_its_server_is_there_again(studio: Any, path: Path) -> None:
    viewer = started(Trace.open(path))
    page = studio.served(viewer, "#view=heads")
    page.locator(".stage .tile").first.wait_for()
    viewer.close()
    alert = page.locator("[role=alert]", has_text=SAYS)
    for key in ("t", "m", "g", "m"):
        page.keyboard.press(key)
        page.wait_for_timeout(300)
    page.locator("[role=alert]", has_text=SILENT).wait_for()
    page.wait_for_timeout(2500)
    # One message, however many views have asked; and no button that somebody must press.
    assert alert.count() == 1
    assert alert.get_by_role("button").count() == 0
    viewer = started(Trace.open(path), port_of(viewer))
    page.locator('.stage.matrix[aria-busy="false"]').wait_for()
    until(page, lambda: alert.count() == 0)
    page.keyboard.press("g")
    page.locator(".stage.graph").wait_for()
    studio.problems.clear()  # the browser tells of each request that failed
    studio.close()
    viewer.close()
    studio.problems.clear()


def test_a_text_is_read_again_by_the_next_server(studio: Any, path: Path, make_trace: Any) -> None:
    read: list[str] = []

    def asking() -> Asking:
        return Asking("a model", lambda text: read.append(text) or make_trace(text.split()))

    viewer = started(Trace.open(path), asking=asking())
    page = studio.served(viewer, "#view=threads&text=one+two+three&query=1&lock=1")
    page.locator('.queries .word[aria-selected="true"]', has_text="two").wait_for()
    viewer.close()
    page.keyboard.press("m")
    page.locator("[role=alert]", has_text=SILENT).wait_for()
    viewer = started(Trace.open(path), port_of(viewer), asking())
    alert = page.locator("[role=alert]", has_text=SAYS)
    until(page, lambda: len(read) == 2 and alert.count() == 0)
    page.locator('.stage.matrix[aria-busy="false"]').wait_for()
    assert set(read) == {"one two three"}
    page.keyboard.press("t")
    page.locator('.queries .word[aria-selected="true"]', has_text="two").wait_for()
    studio.close()
    viewer.close()
    studio.problems.clear()


@pytest.mark.slow
def test_what_the_server_before_had_read_is_no_problem_of_the_text_read_again(
    studio: Any, path: Path, make_trace: Any
) -> None:
    def asking() -> Asking:
        return Asking("a model", lambda text: make_trace(text.split()))

    viewer = started(Trace.open(path), asking=asking())
    page = studio.served(viewer, "#view=threads&text=one+two+three")
    page.locator(".queries .word", has_text="two").wait_for()
    viewer.close()
    # What another head needs waits for a server, and is asked of the next one.
    page.keyboard.press("1")
    page.locator("[role=alert]", has_text=SILENT).wait_for()
    late: list[tuple[Any, Any]] = []

    def answer(route: Any) -> None:
        response = route.fetch()
        if response.status == 404:
            late.append((route, response))
        else:
            route.fulfill(response=response)

    page.route(re.compile("/examples/[0-9]{9}/"), answer)
    viewer = started(Trace.open(path), port_of(viewer), asking())
    alert = page.locator("[role=alert]", has_text=SAYS)
    until(page, lambda: bool(late) and alert.count() == 0)
    page.keyboard.press("m")
    page.locator('.stage.matrix[aria-busy="false"]').wait_for()
    for route, response in late:
        route.fulfill(response=response)
    page.wait_for_timeout(300)
    assert alert.count() == 0
    assert page.locator('.stage.matrix[aria-busy="false"]').count() == 1
    page.unroute_all(behavior="wait")
    studio.close()
    viewer.close()
    studio.problems.clear()
