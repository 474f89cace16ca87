"""Questions in SQL in the browser: what the address asks, what is shown meanwhile, which layers."""

from __future__ import annotations

import threading
from collections.abc import Callable
from functools import partial
from typing import Any
from urllib.parse import quote

import pytest
from tests.studio.test_links import link_of
from tests.studio.windows import until

from headloom.analysis.sql.bounded import ask_bounded
from headloom.analysis.sql.questions import QUESTIONS
from headloom.api.trace import Trace
from headloom.studio import questions
from headloom.studio.page import collect
from headloom.studio.serving import Viewer

pytest.importorskip("duckdb", reason="needs DuckDB: pip install '.[exchange]'")

Serving = Callable[..., Viewer]


@pytest.fixture
def viewer(serving: Serving, pair_trace: Trace, monkeypatch: pytest.MonkeyPatch) -> Viewer:
    viewer = serving(collect([pair_trace]))
    # What is asked here takes some hundredths of a second; a busy machine may take more than five.
    monkeypatch.setattr(questions, "ask_bounded", partial(ask_bounded, seconds=120))
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


@pytest.mark.parametrize(
    ("sql", "said"),
    [
        ("select * from read_text('/etc/passwd')", "query: "),
        ("drop view edges", "expected one SELECT"),
        ("select 1; select 2", "expected one SELECT"),
        ("select '<img src=x onerror=alert(1)>' as html", ""),
    ],
)
def test_a_hostile_question_in_the_address(
    studio: Any, viewer: Viewer, sql: str, said: str
) -> None:
    page = studio.served(viewer, f"#view=sql&sql={quote(sql)}")
    if said:
        assert said in page.locator('.stage.sql [role="alert"]').inner_text()
    else:
        assert answered(page) == [["<img src=x onerror=alert(1)>"]]


def test_numbers_that_are_none_are_no_nulls(studio: Any, viewer: Viewer) -> None:
    columns = "'nan'::double as a, 'inf'::double as b, '-inf'::double as c, null::double as d"
    page = studio.served(viewer, f"#view=sql&sql={quote('select ' + columns)}")
    assert answered(page) == [["nan", "inf", "-inf", "null"]]
    # At the right, as numbers are.
    assert page.locator(".answer td.number").count() == 4


def test_a_question_that_is_too_long_is_not_cut(studio: Any, viewer: Viewer) -> None:
    page = studio.served(viewer, f"#view=sql&sql=select+1{'+' * 10_000}")
    notice = page.locator(".notices")
    notice.wait_for()
    assert "10,008 characters; expected 10,000 at most" in notice.inner_text()
    until(page, lambda: page.get_by_label("Query").input_value() == QUESTIONS[0][1])


def test_an_answer_is_not_that_of_the_next_question(
    studio: Any, viewer: Viewer, monkeypatch: pytest.MonkeyPatch
) -> None:
    page = studio.served(viewer, "#view=sql")
    answered(page)
    go, ask = threading.Event(), questions.ask_bounded

    def held(*arguments: Any, **options: Any) -> Any:
        go.wait(60)
        return ask(*arguments, **options)

    monkeypatch.setattr(questions, "ask_bounded", held)
    page.get_by_role("button", name="Roles: how many heads have each").click()
    before = page.get_by_role("region", name="Answer to the question before")
    before.wait_for()
    page.wait_for_timeout(500)
    assert float(before.evaluate("e => getComputedStyle(e).opacity")) < 0.5
    assert (
        page.locator(".stage .actions")
        .inner_text()
        .endswith("measuring the heads, then answering …")
    )
    go.set()
    page.locator(".answer th", has_text="role").wait_for()
    assert answered(page)
    shown = page.get_by_role("region", name="Answer", exact=True)
    page.wait_for_timeout(400)
    assert shown.evaluate("e => getComputedStyle(e).opacity") == "1"


def test_layers_have_their_names_beside_their_numbers(
    studio: Any, viewer: Viewer, serving: Serving, make_trace: Callable[..., Trace]
) -> None:
    page = studio.served(viewer, "#view=sql")
    answered(page)
    rows = [row.split("\t") for row in page.locator(".layers tbody tr").all_inner_texts()]
    assert rows == [["Encoder L0", "0"], ["Decoder L0", "1"], ["Cross L0", "2"]]
    # Where they are the same there is nothing to say.
    page = studio.served(serving(collect([make_trace(["a", "b"])])), "#view=sql")
    answered(page)
    assert page.locator(".layers").count() == 0
    tokens = page.locator(".answer tbody tr").first.inner_text()
    assert "a" in tokens and "b" in tokens


def test_the_keys_say_how_python_and_sql_call_the_head(
    studio: Any, viewer: Viewer, pair_trace: Trace
) -> None:
    page = studio.served(viewer, "#view=heads&layer=2&head=1")
    page.locator(".stage .tile").first.wait_for()
    page.keyboard.press("?")
    said = " ".join(page.locator("dialog.help").inner_text().split())
    assert 'Cross L0 H1 is trace.layer("cross", 0), head 1; in SQL layer = 2 and head = 1.' in said
    assert pair_trace.layer("cross", 0) is pair_trace.layers[2]
