"""A model that reads what is typed, and questions in SQL, over the studio's server."""

from __future__ import annotations

import http.client
import json
import threading
import time
from collections.abc import Callable
from dataclasses import replace
from functools import partial
from pathlib import Path
from types import SimpleNamespace
from typing import Any

import pytest
import torch
from tests.studio.windows import until

from headloom.analysis.sql.bounded import ask_bounded
from headloom.api.asking import Reader, _is_model
from headloom.api.trace import Trace
from headloom.errors import InputError
from headloom.formats.trace import TraceData
from headloom.studio import questions
from headloom.studio.asking import FIRST, LONGEST, Asking, SupersededError
from headloom.studio.page import collect
from headloom.studio.serving import Viewer

Serving = Callable[..., Viewer]


def post(viewer: Viewer, path: str, content: Any, **headers: str) -> tuple[int, Any]:
    """What the server answers to a question."""
    port = int(viewer.address.rsplit(":", 1)[1].strip("/"))
    connection = http.client.HTTPConnection("127.0.0.1", port, timeout=300)
    body = content if isinstance(content, bytes) else json.dumps(content).encode()
    given = {"Content-Type": "application/json"} | {
        k.replace("_", "-"): v for k, v in headers.items()
    }
    connection.request("POST", path, body, given)
    response = connection.getresponse()
    said = json.loads(response.read())
    connection.close()
    return response.status, said


def get(viewer: Viewer, path: str) -> tuple[int, Any]:
    port = int(viewer.address.rsplit(":", 1)[1].strip("/"))
    connection = http.client.HTTPConnection("127.0.0.1", port, timeout=300)
    connection.request("GET", path)
    response = connection.getresponse()
    said = json.loads(response.read())
    connection.close()
    return response.status, said


@pytest.fixture
def viewer(serving: Serving, make_trace: Callable[..., Trace]) -> Viewer:
    def read(text: str) -> TraceData:
        if "Z" in text:
            raise InputError("this model does not know 'Z'.")
        return make_trace(text.split())

    collection = collect([make_trace(["first"])], "a model")
    collection.asking = Asking("a model", read)
    return serving(collection)


def test_a_text_becomes_an_example(viewer: Viewer) -> None:
    status, said = post(viewer, "/api/ask", {"text": "one two three"})
    assert status == 200
    assert said["description"]["sequences"]["tokens"] == ["one", "two", "three"]
    assert said["example"] >= FIRST
    path = f"/api/examples/{said['example']}"
    assert get(viewer, path) == (200, said["description"])
    assert get(viewer, f"{path}/layers/99/heads/0/cells/0/0")[0] == 404
    assert get(viewer, "/api/open")[1]["asks"] == "a model"
    for text in "abcdefgh":
        assert post(viewer, "/api/ask", {"text": text})[0] == 200
    status, gone = get(viewer, path)
    assert status == 404 and "type it again" in gone["detail"]


def test_what_others_type_does_not_push_out_the_text_of_a_window(viewer: Viewer) -> None:
    windows = {"one": "a b", "two": "c d e"}
    asked = {
        name: post(viewer, "/api/ask", {"text": text, "window": name, "turn": 1})[1]["example"]
        for name, text in windows.items()
    }
    for turn in range(12):
        post(viewer, "/api/ask", {"text": "x " * (turn + 1), "window": "three", "turn": turn})
    for name, text in windows.items():
        found = get(viewer, f"/api/examples/{asked[name]}")
        assert found[0] == 200 and found[1]["sequences"]["tokens"] == text.split()


def test_the_texts_of_two_servers_have_different_numbers(make_trace: Callable[..., Trace]) -> None:
    # A page that outlives its server asks the next one by the numbers that it knows.
    numbers = {
        Asking("a model", lambda text: make_trace(text.split())).ask("w", 1, "a")[0]
        for _ in range(3)
    }
    assert len(numbers) == 3 and all(FIRST <= number < 10**9 for number in numbers)


def test_what_cannot_be_read_is_one_line(viewer: Viewer) -> None:
    assert post(viewer, "/api/ask", {"text": "a Z"}) == (
        200,
        {"problem": "this model does not know 'Z'."},
    )
    for content in ({}, {"text": 1}, {"text": "x" * (LONGEST + 1)}, b"{", b"\xff", []):
        assert post(viewer, "/api/ask", content)[0] in (400, 422)
    assert post(viewer, "/api/ask", {"text": "fine"})[0] == 200


def test_without_a_model_nothing_is_read(serving: Serving, pair_trace: Trace) -> None:
    plain = serving(collect([pair_trace]))
    assert post(plain, "/api/ask", {"text": "a"})[0] == 404
    assert get(plain, "/api/open")[1]["asks"] is None


def test_another_site_cannot_ask(viewer: Viewer) -> None:
    for path, question in (("/api/ask", {"text": "a"}), ("/api/sql", {"query": "select 1"})):
        for origin in ("http://evil.example", "null", "https://127.0.0.1", "http://127.0.0.1:1"):
            assert post(viewer, path, question, Origin=origin)[0] == 403
        assert post(viewer, path, question, Origin=viewer.address.strip("/"))[0] == 200
        # What a form of another site could send without being asked first.
        for kind in ("text/plain", "application/x-www-form-urlencoded"):
            assert post(viewer, path, question, Content_Type=kind)[0] == 422


def test_of_texts_that_wait_the_last_is_read(make_trace: Callable[..., Trace]) -> None:
    read, go = [], threading.Event()

    def slow(text: str) -> TraceData:
        read.append(text)
        assert go.wait(30)
        return make_trace(text.split())

    asking = Asking("slow", slow)
    found: dict[str, object] = {}

    def ask(window: str, turn: int, text: str) -> None:
        try:
            found[text] = asking.ask(window, turn, text)[1].name
        except SupersededError:
            found[text] = None

    threads = []
    # The third overtakes the second on its way.
    asks = (("a", 1, "1"), ("a", 3, "3"), ("b", 1, "other"), ("a", 2, "2"))
    for window, turn, text in asks:
        threads.append(threading.Thread(target=ask, args=(window, turn, text)))
        threads[-1].start()
        end = time.monotonic() + 60
        while not (read and asking._latest.get(window, 0) >= turn) and time.monotonic() < end:
            time.sleep(0.01)
    go.set()
    for thread in threads:
        thread.join()
    assert found == {"1": "1", "2": None, "other": "other", "3": "3"}
    assert "2" not in read


def test_sql_over_the_server(viewer: Viewer, monkeypatch: pytest.MonkeyPatch) -> None:
    # What is asked here takes some hundredths of a second; a busy machine may take more than five.
    monkeypatch.setattr(questions, "ask_bounded", partial(ask_bounded, seconds=120))
    status, said = post(viewer, "/api/sql", {"query": "select count(*) as n from tokens"})
    assert (status, said) == (200, {"columns": ["n"], "rows": [[1]], "more": False, "note": ""})
    _, asked = post(viewer, "/api/ask", {"text": "one two three"})
    question = {"query": "select token from tokens order by position", "example": asked["example"]}
    assert post(viewer, "/api/sql", question)[1]["rows"] == [["one"], ["two"], ["three"]]
    for query in (
        "select * from read_text('/etc/passwd')", "attach '/tmp/x.db'", "install httpfs",
        "copy edges to '/tmp/x.csv'", "select 1; select 2", "drop view edges", "",
    ):  # fmt: skip
        status, said = post(viewer, "/api/sql", {"query": query})
        assert status == 200 and list(said) == ["problem"]
        assert "\n" not in said["problem"] and "root:" not in said["problem"]
    status, said = post(viewer, "/api/sql", {"query": "select range as n from range(1000000000)"})
    assert status == 200 and len(said["rows"]) == 1000 and said["more"]
    assert post(viewer, "/api/sql", {"query": "select 1", "example": 7})[0] == 404
    assert len(get(viewer, "/api/questions")[1]["questions"]) == 10


@pytest.mark.slow
def test_sql_that_never_ends_leaves_the_server_alive(viewer: Viewer) -> None:
    query = "with recursive n as (select 1 as i union all select i + 1 from n) select max(i) from n"
    status, said = post(viewer, "/api/sql", {"query": query})
    assert status == 200
    assert "stopped after 5 s" in said["problem"] or "emory" in said["problem"]
    assert get(viewer, "/api/open")[0] == 200
    assert post(viewer, "/api/sql", {"query": "select 1"})[0] == 200


def test_what_is_a_model(tmp_path: Path) -> None:
    (tmp_path / "config.json").write_text("{}")
    assert _is_model(tmp_path) and _is_model(Path("minilm")) and _is_model(Path("owner/name"))
    assert not _is_model(tmp_path.parent) and not _is_model(Path("dog.loom"))
    assert not _is_model(Path("src/nowhere")) and not _is_model(Path("runs/nowhere.loom"))


def test_typing_shows_the_text(studio: Any, viewer: Viewer) -> None:
    page = studio.served(viewer)
    page.locator(".sheet > canvas:not(.waiting)").first.wait_for()
    box = page.get_by_label("a model reads")
    box.press_sequentially("one two three", delay=20)
    page.locator("h1", has_text="3 tokens").wait_for()
    assert box.input_value() == "one two three"
    assert page.evaluate("document.activeElement.id") == "headloom-ask"
    # The address line is written a moment later.
    until(page, lambda: "text=one+two+three" in page.url)
    page.reload()
    page.locator("h1", has_text="3 tokens").wait_for()
    page.keyboard.press("q")
    page.locator(".answer td").first.wait_for()
    assert page.locator(".questions button").count() == 10


def test_the_text_is_among_the_examples_while_it_is_shown(
    studio: Any, serving: Serving, make_trace: Callable[..., Trace]
) -> None:
    traces = [make_trace(["first"]), make_trace(["second", "one"])]
    collection = collect(traces, "a model", names=["one", "two"])
    collection.asking = Asking("a model", lambda text: make_trace(text.split()))
    page = studio.served(serving(collection))
    page.locator(".facts", has_text="1 token").wait_for()
    chooser = page.get_by_label("Example", exact=True).locator("option:checked")
    assert chooser.inner_text() == "one"
    text = "a text that is longer than a line of a list of examples is"
    page.get_by_label("a model reads").fill(text)
    page.locator(".facts", has_text="14 tokens").wait_for()
    assert chooser.inner_text() == f"“{text[:40]}…”"
    page.locator("select#headloom-example").select_option("two")
    page.locator(".facts", has_text="2 tokens").wait_for()
    names = page.locator("#headloom-example option").all_inner_texts()
    assert (names, chooser.inner_text()) == (["one", "two"], "two")


def test_a_text_that_cannot_be_read_says_so(studio: Any, viewer: Viewer) -> None:
    page = studio.served(viewer)
    page.get_by_label("a model reads").fill("a Z")
    page.locator(".ask [role=alert]", has_text="does not know 'Z'").wait_for()
    page.get_by_label("a model reads").fill("a b")
    page.locator("h1", has_text="2 tokens").wait_for()
    assert page.locator(".ask [role=alert]").inner_text() == ""


def test_an_emptied_text_and_back(studio: Any, viewer: Viewer) -> None:
    page = studio.served(viewer)
    page.locator(".sheet > canvas:not(.waiting)").first.wait_for()
    begun = page.locator("h1").inner_text()
    box = page.get_by_label("a model reads")
    box.fill("a b")
    page.locator("h1", has_text="2 tokens").wait_for()
    until(page, lambda: "text=a+b" in page.url)
    box.fill("")
    page.locator("h1", has_text=begun).wait_for()
    until(page, lambda: "text=" not in page.url)


class Writing:
    """A translator that writes 7 8 for every text."""

    tokenizer = SimpleNamespace(decode=lambda ids: "-".join(map(str, ids)))

    def __init__(self, make_trace: Callable[..., Trace]) -> None:
        self.make_trace = make_trace

    def unknown_parts(self, text: str) -> list[str]:
        return []

    def inputs(self, text: str, options: Any) -> Any:
        return {"source": torch.tensor([[3]]), "target": torch.tensor([[1, 7, 8]])}

    def trace(self, inputs: Any, output: Any, options: Any, *, description: Any) -> TraceData:
        trace = self.make_trace(["a", "b"])
        return replace(trace, model=dict(trace.model) | description)


def test_what_a_translator_wrote_stands_beside_its_text(
    serving: Serving, make_trace: Callable[..., Trace], studio: Any
) -> None:
    collection = collect([make_trace(["first"]), make_trace(["second"])], "a model")
    collection.asking = Asking("a model", Reader("a model", Writing(make_trace)))
    page = studio.served(serving(collection), "#view=matrix&text=x")
    page.locator(".chooser", has_text="→ 7-8").wait_for()
    page.keyboard.press("h")
    page.locator(".chooser", has_text="→ 7-8").wait_for()
