"""`headloom view` as a person starts it, and `trace.view()`."""

from __future__ import annotations

import asyncio
import json
import logging
import signal
import socket
import threading
import time
import urllib.request
from contextlib import ExitStack, suppress
from pathlib import Path
from typing import Any

import pytest
from tests.forked import Forked, Loaded
from tests.slow import slow

import headloom
from headloom.api.trace import Trace
from headloom.studio.page import collect
from headloom.studio.runs import open_collection
from headloom.studio.serving import Viewer, view


@pytest.fixture
def trace_path(pair_trace: Trace, tmp_path: Path) -> Path:
    path = tmp_path / "pair.loom"
    pair_trace.save(path)
    return path


def test_headloom_view_prints_its_address_serves_and_stops(
    loaded: Loaded, trace_path: Path
) -> None:
    def headloom_view(port: object) -> Forked:
        return loaded.start("view", trace_path, "--port", port, "--no-browser")

    with headloom_view(0) as process:
        address = process.stdout.readline().decode().strip()
        assert address.startswith("http://127.0.0.1:")
        with urllib.request.urlopen(f"{address}api/open", timeout=20) as response:
            assert json.load(response)["title"] == "pair"
        # A second one on the same port: one clear line.
        port = address.rsplit(":", 1)[1].strip("/")
        with headloom_view(port) as second:
            out, errors = second.communicate()
            assert second.returncode == 2 and out == b""
        err = errors.decode()
        assert err.count("\n") == 1 and f"port {port} is in use" in err and "--port 0" in err
        process.send_signal(signal.SIGINT)
        out, errors = process.communicate()
        assert (process.returncode, out, errors) == (0, b"", b"")


def test_no_connection_outlives_the_server(pair_trace: Trace) -> None:
    viewer = Viewer(collect([pair_trace]), 0)
    viewer.start()
    place = ("127.0.0.1", int(viewer.address.strip("/").rsplit(":", 1)[1]))
    with ExitStack() as opened:
        connections: list[socket.socket] = []

        def connect() -> None:
            with suppress(OSError):
                while len(connections) < 10_000:
                    connections.append(socket.create_connection(place, timeout=10))
                    opened.enter_context(connections[-1])
                    time.sleep(0.0005)

        # As a browser does, which opens more than it needs: while the server ends, too.
        connecting = threading.Thread(target=connect)
        connecting.start()
        while len(connections) < 20:
            time.sleep(0.001)
        viewer.close()
        connecting.join()
        for connection in connections:
            with suppress(ConnectionResetError):
                assert connection.recv(1) == b""


#: Roles that keep a native kernel busy, for so many calls.
BUSY = """
import os, sys, torch, headloom
import headloom.studio.heads

q = torch.randn(8, 1024, 32)

def busy(trace):
    os.write(1, b"busy\\n")
    for _ in range({calls}):
        headloom.attend(q, q, q)
    return [[]]

headloom.studio.heads.head_roles = busy
"""


def test_ctrl_c_ends_at_once_what_still_computes(loaded: Loaded, trace_path: Path) -> None:
    program = BUSY.format(calls=10**9) + "from headloom.__main__ import main\nmain()"
    command = ("view", trace_path, "--port", 0, "--no-browser")
    with loaded.start(*command, program=program) as process:
        said = {process.stdout.readline().decode().partition("1:")[0] for _ in range(2)}
        assert said == {"busy\n", "http://127.0.0."}
        process.send_signal(signal.SIGINT)
        out, errors = process.communicate()
        assert (process.returncode, out, errors) == (0, b"", b"")


#: Whoever asks for an example waits.
WAITING = """
import os, threading
from headloom.studio.pieces import Pieces

def wait(pieces, number):
    os.write(1, b"asked\\n")
    threading.Event().wait()

Pieces.example = wait
from headloom.__main__ import main
main()
"""


@pytest.mark.parametrize("times", [2, *slow(1)])
def test_ctrl_c_is_silent_where_requests_wait(loaded: Loaded, trace_path: Path, times: int) -> None:
    command = ("view", trace_path, "--port", 0, "--no-browser")
    with loaded.start(*command, program=WAITING) as process, ExitStack() as requests:
        port = int(process.stdout.readline().decode().strip().strip("/").rsplit(":", 1)[1])
        for _ in range(2):
            one = requests.enter_context(socket.create_connection(("127.0.0.1", port)))
            line = f"GET /api/examples/0 HTTP/1.1\r\nHost: 127.0.0.1:{port}\r\n\r\n"
            one.sendall(line.encode())
            assert process.stdout.readline() == b"asked\n"
        for _ in range(times):
            process.send_signal(signal.SIGINT)
            time.sleep(0.3)
        out, errors = process.communicate()
        assert (process.returncode, out, errors) == (0, b"", b"")


def test_requests_that_a_closed_viewer_cancels_are_no_news(trace_path: Path) -> None:
    view(trace_path, port=0, browser=False).close()
    log = logging.getLogger("uvicorn.error")

    def is_told(message: str, cause: type[BaseException] | None) -> bool:
        found = (cause, cause(), None) if cause else None
        return bool(log.filter(log.makeRecord("", logging.ERROR, "", 0, message, (), found)))

    assert not is_told("Exception in ASGI application", asyncio.CancelledError)
    assert not is_told("Cancel 2 running task(s), timeout graceful shutdown exceeded", None)
    assert is_told("Exception in ASGI application", ZeroDivisionError)


@pytest.mark.slow
def test_a_program_that_ends_lets_its_viewer_finish(loaded: Loaded, trace_path: Path) -> None:
    rest = "from headloom.studio.serving import view\nview(sys.argv[1], port=0, browser=False)"
    with loaded.start(trace_path, program=BUSY.format(calls=30) + rest) as process:
        out, errors = process.communicate()
        assert (process.returncode, out, errors) == (0, b"busy\n", b"")


def test_what_cannot_be_opened_is_one_line(trace_path: Path, tmp_path: Path) -> None:
    with pytest.raises(headloom.DataError, match="no such trace or run"):
        open_collection(tmp_path / "nowhere.loom")
    (tmp_path / "empty").mkdir()
    with pytest.raises(headloom.DataError, match="not a trace"):
        open_collection(tmp_path / "empty")
    manifest = trace_path / "trace.json"
    content = json.loads(manifest.read_text())
    manifest.write_text(json.dumps(content | {"version": 99}))
    with pytest.raises(headloom.DataError, match=r"version 99.*Upgrade headloom"):
        open_collection(trace_path)
    manifest.write_text("{")
    with pytest.raises(headloom.DataError, match="damaged"):
        open_collection(trace_path)


def test_a_folder_of_traces_is_a_choice_of_examples(pair_trace: Trace, tmp_path: Path) -> None:
    for name in ("b", "a"):
        pair_trace.save(tmp_path / f"{name}.loom")
    found = open_collection(tmp_path)
    assert [example.name for example in found.examples] == ["a", "b"]
    assert found.history is None


@pytest.fixture
def part_damaged(pair_trace: Trace, tmp_path: Path) -> Path:
    """Three traces of which the first is damaged, and one of another version."""
    folder = tmp_path / "traces"
    folder.mkdir()
    for name in ("a-damaged", "good", "newer", "other"):
        pair_trace.save(folder / f"{name}.loom")
    (folder / "a-damaged.loom" / "trace.json").write_text("{")
    manifest = folder / "newer.loom" / "trace.json"
    manifest.write_text(json.dumps(json.loads(manifest.read_text()) | {"version": 99}))
    return folder


def test_a_damaged_trace_does_not_close_its_folder(part_damaged: Path) -> None:
    found = open_collection(part_damaged)
    assert [example.name for example in found.examples] == ["good", "other"]
    damaged, newer = found.damaged
    assert "a-damaged.loom" in damaged and "damaged" in damaged
    assert "newer.loom" in newer and "version 99" in newer
    with pytest.warns(UserWarning, match="left out: ") as warned:
        view(part_damaged, port=0, browser=False).close()
    assert len(warned) == 2 and "a-damaged.loom" in str(warned[0].message)
    for name in ("good", "other"):
        (part_damaged / f"{name}.loom" / "trace.json").write_text("[]")
    with pytest.raises(headloom.DataError, match=r"a-damaged\.loom.*Nor can the other 3"):
        open_collection(part_damaged)


def test_the_page_and_the_terminal_name_a_damaged_trace(
    loaded: Loaded, studio: Any, part_damaged: Path
) -> None:
    with loaded.start("view", part_damaged, "--port", 0, "--no-browser") as process:
        address = process.stdout.readline().decode().strip()
        first, second = process.errors().decode().splitlines()
        assert "left out" in first and "a-damaged.loom" in first
        assert "newer.loom" in second and "version 99" in second
        page = studio.open(address, address)
        notice = page.locator(".notice")
        notice.wait_for()
        assert "2 traces cannot be read and are left out." in notice.inner_text()
        assert "a-damaged.loom" in notice.inner_text() and "newer.loom" in notice.inner_text()
        page.locator(".stage .tile").first.wait_for()
        names = page.locator("#headloom-example option").all_inner_texts()
        assert names == ["good", "other"]
        studio.close()  # the roles of the heads are asked for, still


def test_a_trace_damaged_within_leaves_the_others(
    studio: Any, serving: Any, pair_trace: Trace, tmp_path: Path
) -> None:
    (tmp_path / "within").mkdir()
    for name in ("a", "b"):
        pair_trace.save(tmp_path / "within" / f"{name}.loom")
    edges = tmp_path / "within" / "a.loom" / "edges.parquet"
    edges.write_bytes(edges.read_bytes()[:-40])
    collection = open_collection(tmp_path / "within")
    if collection.damaged:  # known as soon as it is opened
        assert "a.loom" in collection.damaged[0]
        assert [example.name for example in collection.examples] == ["b"]
        return
    page = studio.served(serving(collection))
    page.locator(".message", has_text="edges.parquet").wait_for()
    page.locator("#headloom-example").select_option(label="b")
    page.locator(".stage .tile").first.wait_for()
    studio.problems.clear()  # the browser tells of the answer 500


def test_a_trace_views_itself(pair_trace: Trace) -> None:
    viewer = pair_trace.view(port=0, browser=False)
    try:
        with urllib.request.urlopen(viewer.address, timeout=20) as response:
            assert b"headloom-studio" in response.read()
    finally:
        viewer.close()
    port = int(viewer.address.rsplit(":", 1)[1].strip("/"))
    with socket.socket() as free:
        assert free.connect_ex(("127.0.0.1", port)) != 0


def test_ports_are_tried_in_order(pair_trace: Trace) -> None:
    first = Viewer(collect([pair_trace]))
    second = Viewer(collect([pair_trace]))
    try:
        assert first.address != second.address
    finally:
        first.close()
        second.close()
