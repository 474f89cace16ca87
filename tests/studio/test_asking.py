"""A model that reads what is typed, and questions in SQL, over the studio's server."""

from __future__ import annotations

import json
import threading
import time
from collections.abc import Callable
from typing import Any

import pytest
from tests.studio.windows import Client, ask, until

from headloom.api.trace import Trace
from headloom.errors import InputError
from headloom.formats.trace import TraceData
from headloom.studio.asking import FIRST, LONGEST, Asking, SupersededError
from headloom.studio.page import collect
from headloom.studio.serving import Viewer

Serving = Callable[..., Viewer]


def post(viewer: Viewer, path: str, content: Any, **headers: str) -> tuple[int, Any]:
    """What the server answers to a question."""
    body = content if isinstance(content, bytes) else json.dumps(content).encode()
    headers = {"Content_Type": "application/json"} | headers
    status, _, said = Client(viewer).get(path, method="POST", body=body, **headers)
    return status, json.loads(said)


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
    assert ask(viewer, path) == (200, said["description"])
    assert ask(viewer, f"{path}/layers/99/heads/0/cells/0/0")[0] == 404
    assert ask(viewer, "/api/open")[1]["asks"] == "a model"
    for text in "abcdefgh":
        assert post(viewer, "/api/ask", {"text": text})[0] == 200
    status, gone = ask(viewer, path)
    assert status == 404 and "type it again" in gone["detail"]


def test_what_cannot_be_read_is_one_line(viewer: Viewer) -> None:
    said = {"problem": "this model does not know 'Z'."}
    assert post(viewer, "/api/ask", {"text": "a Z"}) == (200, said)
    for content in ({}, {"text": 1}, {"text": "x" * (LONGEST + 1)}, b"{", b"\xff", []):
        assert post(viewer, "/api/ask", content)[0] in (400, 422)
    assert post(viewer, "/api/ask", {"text": "fine"})[0] == 200


def test_without_a_model_nothing_is_read(serving: Serving, pair_trace: Trace) -> None:
    plain = serving(collect([pair_trace]))
    assert post(plain, "/api/ask", {"text": "a"})[0] == 404
    assert ask(plain, "/api/open")[1]["asks"] is None


def test_another_site_cannot_ask(viewer: Viewer) -> None:
    path, question = "/api/ask", {"text": "a"}
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


def test_typing_shows_the_text(studio: Any, viewer: Viewer) -> None:
    page = studio.served(viewer)
    page.locator(".sheet > canvas:not(.waiting)").first.wait_for()
    box = page.get_by_label("Text for a model")
    box.press_sequentially("one two three", delay=20)
    page.locator("h1", has_text="3 tokens").wait_for()
    assert box.input_value() == "one two three"
    assert page.evaluate("document.activeElement.id") == "headloom-ask"
    # The address line is written a moment later.
    until(page, lambda: "text=one+two+three" in page.url)
    page.reload()
    page.locator("h1", has_text="3 tokens").wait_for()


def test_an_emptied_text_and_back(studio: Any, viewer: Viewer) -> None:
    page = studio.served(viewer)
    page.locator(".sheet > canvas:not(.waiting)").first.wait_for()
    begun = page.locator("h1").inner_text()
    box = page.get_by_label("Text for a model")
    box.fill("a b")
    page.locator("h1", has_text="2 tokens").wait_for()
    until(page, lambda: "text=a+b" in page.url)
    box.fill("")
    page.locator("h1", has_text=begun).wait_for()
    until(page, lambda: "text=" not in page.url)
