"""`headloom view` as a person starts it, and `trace.view()`."""

from __future__ import annotations

import json
import signal
import socket
import urllib.request
from contextlib import closing
from pathlib import Path

import pytest
from tests.forked import Forked, Loaded

import headloom
from headloom.api.trace import Trace
from headloom.studio.page import collect
from headloom.studio.runs import open_collection
from headloom.studio.serving import Viewer


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


#: Roles that keep a native kernel busy, for so many calls.
BUSY = """
import os, sys, torch, headloom
import headloom.studio.collection

q = torch.randn(8, 1024, 32)

def busy(trace):
    os.write(1, b"busy\\n")
    for _ in range({calls}):
        headloom.attend(q, q, q)
    return [[]]

headloom.studio.collection.head_roles = busy
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
    with pytest.warns(UserWarning, match="skipped: ") as warned:
        headloom.view(part_damaged, port=0, browser=False).close()
    assert len(warned) == 2 and "a-damaged.loom" in str(warned[0].message)
    for name in ("good", "other"):
        (part_damaged / f"{name}.loom" / "trace.json").write_text("[]")
    with pytest.raises(headloom.DataError, match=r"a-damaged\.loom.*The other 3 cannot be read"):
        open_collection(part_damaged)


def test_a_trace_views_itself(pair_trace: Trace) -> None:
    with (
        closing(pair_trace.view(port=0, browser=False)) as viewer,
        urllib.request.urlopen(viewer.address, timeout=20) as response,
    ):
        assert b"headloom-studio" in response.read()
    port = int(viewer.address.rsplit(":", 1)[1].strip("/"))
    with socket.socket() as free:
        assert free.connect_ex(("127.0.0.1", port)) != 0


def test_ports_are_tried_in_order(pair_trace: Trace) -> None:
    with (
        closing(Viewer(collect([pair_trace]))) as one,
        closing(Viewer(collect([pair_trace]))) as two,
    ):
        assert one.address != two.address
