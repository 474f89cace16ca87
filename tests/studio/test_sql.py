"""Questions in SQL in the browser: what the address asks, what is shown meanwhile, which layers."""

from __future__ import annotations

from collections.abc import Callable
from functools import partial
from typing import Any

import pytest
from tests.studio.test_links import link_of
from tests.studio.windows import until

from headloom.analysis.sql.bounded import ask_bounded
from headloom.analysis.sql.query import QUESTIONS
from headloom.api.trace import Trace
from headloom.studio import server
from headloom.studio.page import collect
from headloom.studio.serving import Viewer

pytest.importorskip("duckdb", reason="needs DuckDB: pip install '.[exchange]'")

Serving = Callable[..., Viewer]


@pytest.fixture
def viewer(serving: Serving, pair_trace: Trace, monkeypatch: pytest.MonkeyPatch) -> Viewer:
    viewer = serving(collect([pair_trace]))
    # What is asked here takes some hundredths of a second; a busy machine may take more than five.
    monkeypatch.setattr(server, "ask_bounded", partial(ask_bounded, seconds=120))
    return viewer


def answered(page: Any) -> list[list[str]]:
    page.locator('.stage.sql[aria-busy="false"] .answer').wait_for()
    rows = page.locator(".answer tbody tr")
    return [row.locator("td").all_inner_texts() for row in rows.all()]


def test_the_address_holds_the_question(studio: Any, viewer: Viewer) -> None:
    page = studio.served(viewer, "#view=sql")
    assert len(answered(page)) == 20
    assert "sql=" not in page.url
    asked = "select text as said\nfrom tokens where sequence = 'source' and position = 0"
    page.get_by_label("Query").fill(asked)
    page.get_by_role("button", name="Ask").click()
    page.locator(".answer th", has_text="said").wait_for()
    (row,) = answered(page)
    link_of(page, "sql=select")
    # Another view, and back; a reload.
    page.get_by_role("link", name="Heads").click()
    page.locator(".stage .tile").first.wait_for()
    page.go_back()
    for again in (lambda: None, page.reload):
        again()
        page.locator(".answer th", has_text="said").wait_for()
        assert answered(page) == [row]
        assert page.get_by_label("Query").input_value() == asked
    # The default again: no more of it in the address.
    page.get_by_role("button", name=QUESTIONS[0][0]).click()
    page.locator(".answer th", has_text="weight").wait_for()
    page.wait_for_timeout(200)
    assert "sql=" not in page.url
    # The same once more is asked once more.
    with page.expect_request("**/api/sql"):
        page.get_by_role("button", name="Ask").click()
    answered(page)


def test_a_question_that_is_too_long_is_not_cut(studio: Any, viewer: Viewer) -> None:
    page = studio.served(viewer, f"#view=sql&sql=select+1{'+' * 10_000}")
    notice = page.locator(".notices")
    notice.wait_for()
    assert "10,008 characters; expected 10,000 at most" in notice.inner_text()
    until(page, lambda: page.get_by_label("Query").input_value() == QUESTIONS[0][1])
