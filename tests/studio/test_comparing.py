"""Two traces side by side as the server gives them, against dense weights in float64."""

from __future__ import annotations

import json
import time
from typing import Any

import numpy as np
import pytest
from tests.studio.windows import Client

from headloom.api.trace import Trace
from headloom.studio.page import collect

Dense = np.ndarray[Any, np.dtype[np.float64]]


def compared(client: Client, pair: str = "0/1") -> dict[str, Any]:
    for _ in range(2400):
        found = client.json(f"/api/compare/{pair}")
        if found["whole"]:
            return found
        time.sleep(0.05)
    raise AssertionError("still measuring")


def tile(client: Client, head: int, of: str, level: int, row: int = 0, column: int = 0) -> Dense:
    path = f"/api/compare/0/1/layers/0/heads/{head}/{of}/{level}/{row}/{column}"
    status, _, body = client.get(path)
    assert status == 200, body
    return np.frombuffer(body, "<f2").astype(np.float64)


def blocks(dense: Dense, size: int, of: str) -> Dense:
    """The largest weight, or the mass that a row has in it, of each block of cells."""
    queries, keys = dense.shape
    whole = np.zeros((-(-queries // size) * size, -(-keys // size) * size))
    whole[:queries, :keys] = dense  # beyond them zeros, which change neither
    cells = whole.reshape(len(whole) // size, size, -1, size)
    if of == "max":
        return cells.max((1, 3))
    rows = np.minimum(size, queries - size * np.arange(len(cells)))
    return cells.sum((1, 3)) / rows[:, None]


def test_exact_traces(serving, drawn) -> None:
    (first, before), (second, after) = drawn(1), drawn(2)
    client = Client(serving(collect([first, second], names=["a", "b"])))
    found = compared(client)
    assert (found["names"], found["difference"], found["problem"]) == (["a", "b"], "", "")
    (layer,) = found["layers"]
    assert layer["numbers"] == [0, 0] and layer["exact"]
    expected = np.abs(after - before).sum(-1).mean(-1) / 2
    entropies = [-(np.where(dense > 0, dense * np.log(np.where(dense > 0, dense, 1)), 0))
                 .sum(-1).mean(-1) for dense in (before, after)]  # fmt: skip
    for head in range(2):
        assert layer["change"][head] == pytest.approx(expected[head], abs=1e-6)
        assert layer["entropy"][head] == pytest.approx(
            entropies[1][head] - entropies[0][head], abs=1e-5
        )
        difference = after[head] - before[head]
        cells = tile(client, head, "max", 0).reshape(40, 40)
        assert np.allclose(cells, difference, atol=5e-4)
        edges = client.json(f"/api/compare/0/1/layers/0/heads/{head}/edges")["edges"]
        place = np.unravel_index(np.abs(difference).argmax(), difference.shape)
        assert [edges[0]["query"], edges[0]["key"]] == list(place)
        for edge in edges:
            at = edge["query"], edge["key"]
            assert edge["before"] == pytest.approx(before[head][at], abs=1e-6)
            assert edge["after"] == pytest.approx(after[head][at], abs=1e-6)
    turned = compared(client, "1/0")["layers"][0]
    assert turned["change"] == layer["change"]
    assert turned["entropy"] == [-grown for grown in layer["entropy"]]


def test_from_afar(serving, drawn) -> None:
    """2,100 tokens: levels 0 to 4, tiles at the edge among them."""
    length = 2100
    (first, before), (second, after) = drawn(3, length), drawn(4, length)
    client = Client(serving(collect([first, second])))
    for of in ("max", "mass"):
        for level in (1, 3, 4):
            size = 2**level
            expected = blocks(after[0], size, of) - blocks(before[0], size, of)
            last = (len(expected) - 1) // 256
            for row, column in ((0, 0), (last, 0), (last, last)):
                part = expected[row * 256 : (row + 1) * 256, column * 256 : (column + 1) * 256]
                found = tile(client, 0, of, level, row, column).reshape(part.shape)
                assert np.allclose(found, part, atol=1e-3), (of, level, row, column)


def test_traces_that_do_not_fit(serving, drawn, make_trace, pair_trace) -> None:
    traces = [make_trace(list(tokens)) for tokens in (["a", "<b>"], "ab", "a")]
    traces += [make_trace(["a"], heads=3), pair_trace]
    client = Client(serving(collect(traces, names=list("ABCDE"))))
    found = compared(client)
    assert found["difference"] == "Token 1 is the first that differs: “<b>” in A, “b” in B."
    assert found["problem"] == "" and len(found["layers"]) == 1
    found = compared(client, "1/2")
    assert found["difference"] == (
        "There are 2 tokens in B, 1 in C: at token 1 only B goes on, with “b”."
    )
    assert "Both need the same numbers of heads and tokens" in found["problem"]
    assert found["layers"] == []
    assert compared(client, "0/4")["difference"].startswith("The traces are of other kinds")
    status, _, body = client.get("/api/compare/1/2/layers/0/heads/0/edges")
    assert status == 404 and "numbers of heads and tokens" in json.loads(body)["detail"]


def test_a_damaged_layer_is_said(serving, drawn, tmp_path) -> None:
    for name, seed in (("a", 1), ("b", 2)):
        drawn(seed)[0].save(tmp_path / name)
    file = tmp_path / "b" / "rows.parquet"
    content = bytearray(file.read_bytes())
    content[len(content) // 2] ^= 0xFF
    file.write_bytes(content)
    client = Client(serving(collect([Trace.open(tmp_path / "a"), Trace.open(tmp_path / "b")])))
    for path in ("/api/compare/0/1", "/api/compare/0/1/layers/0/heads/0/edges"):
        status, _, body = client.get(path)
        assert status == 500 and "this trace is damaged" in json.loads(body)["detail"]
    assert client.get("/api/examples/0/layers/0/heads/0/edges/0")[0] == 200
