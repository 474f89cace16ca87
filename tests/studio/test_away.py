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
