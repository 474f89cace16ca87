"""The server as a client sees it: what it gives, and what it refuses."""

from __future__ import annotations

import json
import socket
import threading
import time
from collections.abc import Callable
from pathlib import Path
from typing import Any

import numpy as np
import pytest
from tests.studio.windows import Client

from headloom.api.trace import Trace
from headloom.studio.page import collect
from headloom.studio.serving import Viewer
from headloom.studio.tiles import MatrixTiles

Serving = Callable[..., Viewer]


@pytest.fixture
def client(serving: Serving, pair_trace: Trace) -> Client:
    return Client(serving(collect([pair_trace], "pair")))


def test_the_pieces_are_those_of_the_collection(
    client: Client, serving: Serving, pair_trace: Trace
) -> None:
    opened = client.json("/api/open")
    assert opened["title"] == "pair" and opened["live"] and not opened["history"]
    description = client.json("/api/examples/0")
    assert description["sequences"] == pair_trace.sequences
    assert [layer["kind"] for layer in description["layers"]] == ["encoder", "decoder", "cross"]
    assert all(layer["exact"] for layer in description["layers"])
    layer = pair_trace.layer("cross", 0)
    tile = np.frombuffer(
        client.get("/api/examples/0/layers/2/heads/1/matrix/max/0/0/0")[2], "<f2"
    ).reshape(4, 7)
    assert np.allclose(tile, layer.graph.to_dense()[1].numpy(), atol=5e-4)
    cell = client.json("/api/examples/0/layers/2/heads/1/cells/3/6")
    assert cell["weight"] == pytest.approx(float(layer.graph.to_dense()[1, 3, 6]), rel=1e-4)
    queries_of = client.get("/api/examples/0/layers/2/heads/1/queries/6")[2]
    rows = np.frombuffer(queries_of, "<u4", len(queries_of) // 8)
    assert sorted(rows.tolist()) == [0, 1, 2, 3]
    if layer.value_norms is not None:
        norms = np.frombuffer(client.get("/api/examples/0/layers/2/values")[2], "<f4")
        assert norms.shape == (4 * 7,)
    for _ in range(200):
        heads = client.json("/api/examples/0/heads")
        if heads["state"] != "measuring":
            break
        time.sleep(0.05)
    assert heads["state"] == "known"
    assert len(heads["heads"][2]) == 4


def test_no_other_host_and_a_strict_policy(client: Client) -> None:
    for host in ("evil.example", f"evil.example:{client.port}", "127.0.0.1:1", "127.0.0.1", ""):
        for path in ("/", "/api/open", "/studio.js"):
            assert client.get(path, host=host or "x")[0] == 403
    for host in (f"localhost:{client.port}", f"LOCALHOST:{client.port}", f"[::1]:{client.port}"):
        assert client.get("/api/open", host=host)[0] == 200
    for path in ("/", "/api/open", "/nowhere", "/studio.js"):
        headers = client.get(path)[1]
        policy = headers["content-security-policy"]
        assert "default-src 'none'" in policy and "unsafe" not in policy
        assert "frame-ancestors 'none'" in policy
        assert headers["x-content-type-options"] == "nosniff"
        assert "access-control-allow-origin" not in headers
    with socket.socket() as outside:
        # Only on the loopback: another address of this machine is not listened on.
        outside.settimeout(1)
        assert outside.connect_ex(("127.0.0.2", client.port)) != 0


@pytest.mark.parametrize(
    "path",
    [
        "/api/examples/1",
        "/api/examples/-1",
        "/api/examples/00",
        "/api/examples/0/layers/3/means",
        "/api/examples/0/layers/0/heads/4/edges/0",
        "/api/examples/0/layers/0/heads/0/edges/1",
        "/api/examples/0/layers/0/heads/0/edges/%2e%2e",
        "/api/examples/0/layers/0/heads/0/matrix/max/1/0/0",
        "/api/examples/0/layers/0/heads/0/matrix/max/0/0/1",
        "/api/examples/0/layers/0/heads/0/matrix/min/0/0/0",
        "/api/examples/0/layers/0/heads/0/cells/9/0",
        "/api/examples/0/layers/0/heads/0/queries/99999999999999999999",
        "/api/history",
        "/api/history/layers/0/weights",
        "/../../../etc/passwd",
        "/%2e%2e/%2e%2e/etc/passwd",
        "/static/../server.py",
        "/etc/passwd",
        "/.built",
        "/api/",
        "/docs",
    ],
)
def test_what_is_not_there_is_refused(client: Client, path: str) -> None:
    status, headers, body = client.get(path)
    assert status in (404, 422)
    assert headers["content-type"] == "application/json"
    assert json.loads(body)["detail"]
    assert b"root:" not in body


def test_only_reading(client: Client) -> None:
    for method in ("POST", "PUT", "DELETE", "PATCH"):
        assert client.get("/api/open", method=method)[0] == 405


def test_a_piece_is_sent_once(client: Client) -> None:
    path = "/api/examples/0/layers/0/means"
    _, headers, body = client.get(path)
    status, _, again = client.get(path, If_None_Match=headers["etag"])
    assert (status, again) == (304, b"")
    assert len(body) == 4 * 7 * 7
    assert client.get(path, If_None_Match='"of another server"')[0] == 200


def test_hostile_tokens_are_json(serving: Serving, make_trace, hostile_tokens) -> None:
    client = Client(serving(collect([make_trace(hostile_tokens)], "</script><b>")))
    status, headers, body = client.get("/")
    assert status == 200 and headers["content-type"].startswith("text/html")
    assert b"</script><b>" not in body and b"&lt;b&gt;" in body
    assert client.json("/api/examples/0")["sequences"]["tokens"] == hostile_tokens


def test_a_damaged_layer_is_one_clear_answer(
    serving: Serving, pair_trace: Trace, tmp_path: Path
) -> None:
    path = tmp_path / "t.loom"
    pair_trace.save(path)
    client = Client(serving(collect([Trace.open(path)])))
    edges = path / "edges.parquet"
    content = bytearray(edges.read_bytes())
    content[len(content) // 2] ^= 0xFF
    edges.write_bytes(content)
    fresh = Client(serving(collect([Trace.open(path)])))
    for _ in range(2):
        status, _, body = fresh.get("/api/examples/0/layers/0/heads/0/edges/0")
        said = json.loads(body)["detail"]
        assert status == 500
        assert "this trace is damaged: edges.parquet" in said and "\n" not in said
    assert fresh.get("/api/open")[0] == client.get("/api/open")[0] == 200


def test_what_takes_long_and_was_called_off_keeps_nobody_waiting(
    serving: Serving, long_trace, monkeypatch: pytest.MonkeyPatch
) -> None:
    """Of a long text tiles, and sums, wait for a pass over a matrix: others need the threads."""
    begun: list[int] = []
    make = MatrixTiles._make

    def slowly(self: MatrixTiles, number: int, head: int, *band: Any) -> None:
        begun.append(head)
        time.sleep(0.3)
        make(self, number, head, *band)

    monkeypatch.setattr(MatrixTiles, "_make", slowly)
    monkeypatch.setattr("headloom.studio.tiles._BAND_CELLS", 64 * 4096)
    client = Client(serving(collect([long_trace(4096)])))
    path = "/api/examples/0/layers/0/heads/0/matrix/max/4/0/0"
    for asked in (path, "/api/examples/0/layers/0/sums"):
        request = f"GET {asked} HTTP/1.1\r\nHost: 127.0.0.1:{client.port}\r\n\r\n".encode()
        for _ in range(60):
            with socket.create_connection(("127.0.0.1", client.port)) as left:
                left.sendall(request)
    assert client.get("/api/open")[0] == 200
    assert client.get("/api/examples/0/layers/0/heads/0/matrix/max/0/3/2")[0] == 200
    # A pass has 64 bands; nobody looks at head 0 any longer.
    assert len(begun) < 32


def test_a_pass_ends_when_nobody_waits_for_it_any_longer(
    serving: Serving, long_trace, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr("headloom.studio.tiles._BAND_CELLS", 64 * 4096)
    begun, made = threading.Event(), []
    make = MatrixTiles._make

    def noticed(self: MatrixTiles, number: int, head: int, found: Any, band: int) -> None:
        made.append((head, band))
        begun.set()
        time.sleep(0.05)
        make(self, number, head, found, band)

    monkeypatch.setattr(MatrixTiles, "_make", noticed)
    client = Client(serving(collect([long_trace(4096)])))
    path = "/api/examples/0/layers/0/heads/0/matrix/max/4/0/0"
    with socket.create_connection(("127.0.0.1", client.port)) as left:
        left.sendall(f"GET {path} HTTP/1.1\r\nHost: 127.0.0.1:{client.port}\r\n\r\n".encode())
        assert begun.wait(30)
    end = time.monotonic() + 30
    before = -1
    while before != len(made) and time.monotonic() < end:
        before = len(made)
        time.sleep(1)
    assert 0 < before < 64
    # Whoever comes back goes on from there: every band was made once.
    assert client.get(path)[0] == 200
    assert sorted(made) == [(0, band) for band in range(64)]
