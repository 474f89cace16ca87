"""Two traces side by side as the server gives them, against dense weights in float64."""

from __future__ import annotations

import dataclasses
import json
import time
from typing import Any

import numpy as np
import pytest
from tests.studio.test_server import Client

import headloom
from headloom.api.trace import Trace
from headloom.formats.trace import LayerInMemory
from headloom.studio.page import collect

Dense = np.ndarray[Any, np.dtype[np.float64]]


def compared(client: Client, pair: str = "0/1") -> dict[str, Any]:
    for _ in range(2400):
        found = client.json(f"/api/compare/{pair}")
        if found["state"] != "measuring":
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
    assert layer["numbers"] == [0, 0] and layer["exact"] == [True, True]
    expected = np.abs(after - before).sum(-1).mean(-1) / 2
    entropies = [-(np.where(dense > 0, dense * np.log(np.where(dense > 0, dense, 1)), 0))
                 .sum(-1).mean(-1) for dense in (before, after)]  # fmt: skip
    for head in range(2):
        low, high = layer["change"][head]
        assert low == high == pytest.approx(expected[head], abs=1e-6)
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
            assert edge["before"] == [pytest.approx(before[head][at], abs=1e-6)] * 2
            assert edge["after"] == [pytest.approx(after[head][at], abs=1e-6)] * 2
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


@pytest.mark.parametrize("kept_sides", [(True, True), (False, True), (True, False)])
def test_what_was_not_kept_is_never_more_than_sure(
    serving, drawn, kept_sides: tuple[bool, bool]
) -> None:
    length = 600
    (first, before), (second, after) = (
        drawn(seed, length, queries_keys=not kept)
        for seed, kept in zip((5, 6), kept_sides, strict=True)
    )
    client = Client(serving(collect([first, second])))
    (layer,) = compared(client)["layers"]
    assert layer["exact"] == [not kept for kept in kept_sides]
    distances = np.abs(after - before).sum(-1).mean(-1) / 2
    shown = 0
    for head in range(2):
        low, high = layer["change"][head]
        assert low < distances[head] < high
        for of in ("max", "mass"):
            for level in (0, 1, 2):
                size = 2**level
                expected = blocks(after[head], size, of) - blocks(before[head], size, of)
                part = expected[:256, :256]
                sure = tile(client, head, of, level).reshape(part.shape)
                # Of the sign of the true change, and not larger.
                assert (np.abs(sure) <= np.abs(part) + 1e-3).all()
                assert (sure * part >= -1e-6).all()
                shown += int((np.abs(sure) > 0.05).sum())
    assert shown > 100
    edges = client.json("/api/compare/0/1/layers/0/heads/0/edges")["edges"]
    assert any(edge[side][0] < edge[side][1] for edge in edges for side in ("before", "after"))
    for edge in edges:
        for side, dense in (("before", before), ("after", after)):
            low, high = edge[side]
            assert low - 1e-6 <= dense[0, edge["query"], edge["key"]] <= high + 1e-6


def test_traces_that_do_not_fit(serving, drawn, make_trace, pair_trace) -> None:
    other = make_trace(["a", "b"])
    collection = collect(
        [
            make_trace(["a", "<b>"]),
            other,
            make_trace(["a"]),
            make_trace(["a"], heads=3),
            pair_trace,
        ],
        names=["A", "B", "C", "D", "E"],
    )
    client = Client(serving(collection))
    found = compared(client)
    assert found["difference"] == "Token 1 is the first that differs: “<b>” in A, “b” in B."
    assert found["problem"] == "" and len(found["layers"]) == 1
    found = compared(client, "1/2")
    assert found["difference"] == (
        "There are 2 tokens in B, 1 in C: at token 1 only B goes on, with “b”."
    )
    assert "Compare traces of as many tokens" in found["problem"] and found["layers"] == []
    assert "Compare models of as many heads" in compared(client, "2/3")["problem"]
    assert compared(client, "0/4")["difference"].startswith("The traces are of other kinds")
    status, _, body = client.get("/api/compare/1/2/layers/0/heads/0/edges")
    assert status == 404 and "as many tokens" in json.loads(body)["detail"]


def test_equal_traces(serving, drawn) -> None:
    client = Client(serving(collect([drawn(1)[0], drawn(1)[0]])))
    assert compared(client)["layers"][0]["change"] == [[0, 0], [0, 0]]
    assert client.json("/api/compare/0/1/layers/0/heads/1/edges") == {"edges": []}
    assert not tile(client, 0, "max", 0).any()


@pytest.mark.parametrize(
    "path",
    [
        "0/0", "0/2", "2/0", "-1/0", "0/1.0", "0/01", "0/" + "9" * 400, "0/%2e%2e", "0/x",
        "0/1/layers/1/heads/0/edges", "0/1/layers/0/heads/2/edges", "0/1/layers/0/heads/-1/edges",
        "0/1/layers/0/heads/0/max/1/0/0", "0/1/layers/0/heads/0/max/0/1/0",
        "0/1/layers/0/heads/0/max/0/0/1", "0/1/layers/0/heads/0/min/0/0/0",
        "0/1/layers/0/heads/0/max/0/0/99999999999999", "0/1/layers/0/heads/0/max/0/0",
        "0/0/layers/0/heads/0/edges", "0/1/layers/0/heads/0/%00/0/0/0",
    ],
)  # fmt: skip
def test_what_is_not_there_is_refused_in_one_line(serving, drawn, path: str) -> None:
    client = Client(serving(collect([drawn(1)[0], drawn(2)[0]])))
    status, _headers, body = client.get(f"/api/compare/{path}")
    assert status in (404, 422)
    said = json.loads(body)["detail"]
    assert isinstance(said, str) and said and "\n" not in said and len(said) <= 500
    assert client.get(f"/api/compare/{path}", method="POST")[0] in (404, 405)


def test_a_damaged_layer_is_said(serving, drawn, tmp_path) -> None:
    for name, seed in (("a", 1), ("b", 2)):
        drawn(seed)[0].save(tmp_path / name)
    file = tmp_path / "b" / "rows.parquet"
    content = bytearray(file.read_bytes())
    content[len(content) // 2] ^= 0xFF
    file.write_bytes(content)
    client = Client(serving(collect([Trace.open(tmp_path / "a"), Trace.open(tmp_path / "b")])))
    state = compared(client)["state"]
    assert state.startswith("failed: ") and "this trace is damaged" in state
    status, _, body = client.get("/api/compare/0/1/layers/0/heads/0/edges")
    assert status == 500 and "this trace is damaged" in json.loads(body)["detail"]
    assert client.get("/api/examples/0/layers/0/heads/0/edges/0")[0] == 200


@pytest.mark.parametrize("queries_keys", [True, False])
def test_a_row_that_is_no_number_is_said_to_have_changed_nowhere(
    serving, drawn, queries_keys: bool
) -> None:
    """Of a model whose queries were NaN: every path answers, and the other rows are as they are."""
    (first, before), (second, after) = drawn(1), drawn(2)
    (layer,) = first.layers
    queries, keys = layer.queries.clone(), layer.keys
    queries[0, 5] = float("nan")
    _, graph = headloom.attend(queries, keys, keys, mask=headloom.causal(), keep=headloom.Top(8))
    data = LayerInMemory(graph, (queries, keys) if queries_keys else None, layer.terms)
    broken = Trace(dict(first.sequences), (dataclasses.replace(layer, data=data),))
    client = Client(serving(collect([broken, second])))
    (pair,) = compared(client)["layers"]
    assert pair["change"][0] == [None, None]
    assert None not in pair["change"][1]
    cells = tile(client, 0, "max", 0).reshape(40, 40)
    assert (cells[5] == 0).all()
    others = np.delete(np.arange(40), 5)
    assert (np.abs(cells[others]) <= np.abs(after[0] - before[0])[others] + 1e-3).all()
    assert (np.abs(cells[others]) > 0.05).any()
    edges = client.json("/api/compare/0/1/layers/0/heads/0/edges")["edges"]
    assert len(edges) == 12
    assert not [edge for edge in edges if edge["query"] == 5]
    for path in ("heads", "layers/0/heads/0/cells/5/1", "layers/0/heads/0/edge/5/1"):
        client.json(f"/api/examples/0/{path}")
    edge = client.json("/api/examples/0/layers/0/heads/0/edge/5/1")
    assert edge["trace"]["weight"] is None
    if queries_keys:
        assert edge["terms"][-1][0] != "mask"
        assert edge["softmax"]["count"] == 6
