"""Notes as the server takes and gives them."""

from __future__ import annotations

import http.client
import json
from pathlib import Path
from typing import Any

import pytest

from weft.studio.pack import pack
from weft.studio.page import collect
from weft.studio.serving import Viewer
from weft.traces import Trace


def sent(viewer: Viewer, path: str, body: Any = None, **headers: str) -> tuple[int, Any]:
    """The status and the JSON of an answer; a body is sent by POST."""
    port = int(viewer.address.rsplit(":", 1)[1].strip("/"))
    connection = http.client.HTTPConnection("127.0.0.1", port, timeout=300)
    content = body if isinstance(body, bytes) or body is None else json.dumps(body).encode()
    named = {"Content-Type": "application/json", **headers}
    connection.request("GET" if body is None else "POST", f"/api/{path}", content, named)
    response = connection.getresponse()
    said = response.read()
    connection.close()
    return response.status, json.loads(said)


@pytest.fixture
def stored(pair_trace: Trace, tmp_path: Path) -> Trace:
    pair_trace.save(tmp_path / "pair.weft")
    return Trace.open(tmp_path / "pair.weft")


NOTES = "examples/0/notes"


def test_notes_are_kept_beside_the_trace(serving, stored: Trace) -> None:
    viewer = serving(collect([stored]))
    assert sent(viewer, NOTES) == (200, {"notes": [], "writable": True, "problem": ""})
    _, found = sent(viewer, f"{NOTES}/add", {"text": "one", "layer": 2, "head": 1})
    edge = {"text": "two", "layer": 0, "head": 3, "query": 6, "key": 0}
    _, found = sent(viewer, f"{NOTES}/add", edge)
    assert [(note["text"], note["query"], note["earlier"]) for note in found["notes"]] == [
        ("one", None, False), ("two", 6, False),
    ]  # fmt: skip
    one = found["notes"][0]
    seen = {"id": one["id"], "version": 1}
    assert sent(viewer, f"{NOTES}/change", {**seen, "text": "three"})[0] == 200
    # Another tab that saw the first version.
    status, said = sent(viewer, f"{NOTES}/change", {**seen, "text": "four"})
    assert status == 409 and "changed this note meanwhile" in said["detail"]
    assert sent(viewer, f"{NOTES}/remove", seen)[0] == 409
    file = Path(str(stored.folder) + ".notes.json")
    assert [note["text"] for note in json.loads(file.read_text())["notes"]] == ["three", "two"]
    # Another server, and an exported page, which shows them only.
    later = collect([Trace.open(stored.folder)])
    assert len(sent(serving(later), NOTES)[1]["notes"]) == 2
    _, packed = pack(later)[NOTES]
    assert [note["text"] for note in packed["notes"]] == ["three", "two"]
    assert packed["writable"] is False


def test_notes_of_an_earlier_trace_say_so(
    serving, stored: Trace, make_trace, tmp_path: Path
) -> None:
    sent(serving(collect([stored])), f"{NOTES}/add", {"text": "x", "layer": 2, "head": 3})
    make_trace(["a"]).save(stored.folder, overwrite=True)
    _, found = sent(serving(collect([Trace.open(stored.folder)])), NOTES)
    assert [note["earlier"] for note in found["notes"]] == [True]


def test_read_only_and_in_memory(serving, stored: Trace, pair_trace: Trace) -> None:
    only = collect([stored])
    only.read_only = True
    viewer = serving(only)
    assert sent(viewer, NOTES)[1]["writable"] is False
    note = {"text": "x", "layer": 0, "head": 0}
    for path, body in (
        ("add", note), ("change", {"id": "a", "version": 1, "text": "x"}),
        ("remove", {"id": "a", "version": 1}),
    ):  # fmt: skip
        status, said = sent(viewer, f"{NOTES}/{path}", body)
        assert status == 403 and "only read here" in said["detail"]
    memory = serving(collect([pair_trace]))
    assert sent(memory, NOTES)[1] == {"notes": [], "writable": False, "problem": ""}
    status, said = sent(memory, f"{NOTES}/add", note)
    assert status == 404 and "in memory alone" in said["detail"]


GOOD = {"text": "x", "layer": 0, "head": 0}


@pytest.mark.parametrize(
    ("path", "body", "expected"),
    [
        ("add", {**GOOD, "layer": 3}, 404),
        ("add", {**GOOD, "head": 4}, 404),
        ("add", {**GOOD, "query": 7, "key": 0}, 404),
        ("add", {**GOOD, "query": 0, "key": 7}, 404),
        ("add", {**GOOD, "query": 0}, 422),
        ("add", {**GOOD, "layer": -1}, 422),
        ("add", {**GOOD, "layer": "0"}, 422),
        ("add", {**GOOD, "layer": 10**30}, 422),
        ("add", {**GOOD, "text": "x" * 2001}, 422),
        ("add", {**GOOD, "text": None}, 422),
        ("add", {**GOOD, "id": "../../x"}, 422),
        ("add", {"text": "x"}, 422),
        ("add", b"{", 422),
        ("add", b"\xff\xfe", 422),
        ("add", b"[" * 50_000, 400),
        ("change", {"id": "a", "version": 1, "text": "x" * 2001}, 422),
        ("change", {"id": "../x", "version": 1, "text": "x"}, 409),
        ("remove", {"id": "x" * 65, "version": 1}, 422),
        ("remove", {"id": "a", "version": 1.5}, 422),
    ],
)
def test_hostile_requests_are_refused_in_one_line(
    serving, stored: Trace, path: str, body: Any, expected: int
) -> None:
    viewer = serving(collect([stored]))
    status, said = sent(viewer, f"{NOTES}/{path}", body)
    assert status == expected, said
    assert isinstance(said["detail"], str) and said["detail"] and "\n" not in said["detail"]
    assert len(said["detail"]) <= 500
    assert not Path(str(stored.folder) + ".notes.json").exists()


def test_a_page_of_another_site_writes_nothing(serving, stored: Trace) -> None:
    viewer = serving(collect([stored]))
    for origin in ("http://evil.example", "null", "http://127.0.0.1:1"):
        assert sent(viewer, f"{NOTES}/add", GOOD, Origin=origin)[0] == 403
    assert sent(viewer, f"{NOTES}/add", {**GOOD, "text": "  "})[1]["problem"].startswith("notes:")
    assert sent(viewer, NOTES)[1]["notes"] == []


def test_what_is_meant_for_other_traces_is_refused(serving, stored: Trace) -> None:
    collection = collect([stored])
    viewer = serving(collection)
    note = {"text": "one", "layer": 0, "head": 0}
    status, said = sent(viewer, f"{NOTES}/add", note, **{"Weft-Traces": "0123456789ab"})
    assert status == 412 and "started again, with other traces" in said["detail"]
    assert sent(viewer, NOTES)[1]["notes"] == []
    named = {"Weft-Traces": collection.traces}
    assert sent(viewer, f"{NOTES}/add", note, **named)[0] == 200
    assert len(sent(viewer, NOTES, **named)[1]["notes"]) == 1


def test_damaged_notes_are_said_and_the_trace_is_shown(serving, stored: Trace) -> None:
    file = Path(str(stored.folder) + ".notes.json")
    file.write_text("{}")
    viewer = serving(collect([stored]))
    found = sent(viewer, NOTES)[1]
    assert found["notes"] == [] and "not the notes of a trace" in found["problem"]
    assert "not the notes" in sent(viewer, f"{NOTES}/add", GOOD)[1]["problem"]
    assert file.read_text() == "{}"
    assert sent(viewer, "examples/0")[0] == 200


def test_the_digest_is_of_what_is_in_the_trace(stored: Trace, make_trace, tmp_path: Path) -> None:
    stored.folder.rename(tmp_path / "renamed.weft")
    same = collect([Trace.open(tmp_path / "renamed.weft")]).opening()["digests"]
    make_trace(["a"]).save(tmp_path / "other.weft")
    other = collect([Trace.open(tmp_path / "other.weft")]).opening()["digests"]
    assert same != other and all(len(digest) == 12 for digest in same + other)
    assert collect([make_trace(["a"])]).opening()["digests"] == [""]
