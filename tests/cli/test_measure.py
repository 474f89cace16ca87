"""`headloom measure`: what each measure prints is what the library says."""

from __future__ import annotations

import csv
import io
from pathlib import Path
from typing import Any

import pytest
import torch
from tests.cli.conftest import Command

import headloom
from headloom.analysis.graphs.flow import attention_flow
from headloom.analysis.measures import graph_measures


@pytest.fixture(scope="module")
def path(tmp_path_factory: pytest.TempPathFactory) -> Path:
    """Two heads of eight tokens: odd ones look at odd ones; a sink at the first in one of them."""
    path = tmp_path_factory.mktemp("measure") / "t.loom"
    places = torch.eye(2).repeat(4, 1).expand(2, -1, -1) * 3
    keys = places.clone()
    keys[1, 0] = 6.0
    headloom.from_queries_keys(
        places, keys, tokens=[f"w{number}" for number in range(8)], kind="encoder",
        keep=headloom.Top(2), save=path,
    )  # fmt: skip
    return path


@pytest.fixture
def rows(headloom_main: Command) -> Any:
    """A function that asks for comma-separated values, and compares them with JSON."""

    def ask(*words: object) -> list[dict[str, str]]:
        table = list(csv.DictReader(io.StringIO(headloom_main("measure", *words, "--csv").out)))
        content = headloom_main("measure", *words, "--json").json()
        assert [list(row) for row in content["rows"]] == [list(row) for row in table]
        return table

    return ask


def test_rollout_and_flow(headloom_main: Command, path: Path, rows: Any) -> None:
    trace = headloom.open(path)
    whole = trace.rollout()
    for token in (-1, 2):
        held = {int(row["position"]): float(row["share"])
                for row in rows("rollout", path, "--token", token)}  # fmt: skip
        assert list(held.values()) == sorted(held.values(), reverse=True)
        for place, share in held.items():
            assert share == pytest.approx(float(whole[token, place]), abs=1e-6)
        reached = {int(row["position"]): float(row["share"])
                   for row in rows("rollout", path, "--token", token, "--reached")}  # fmt: skip
        assert reached[5] == pytest.approx(float(whole[5, token]), abs=1e-6)
    table = rows("flow", path, "--token", 2)
    expected = attention_flow(trace, 2, range(8))
    for row in table:
        place = int(row["position"])
        assert float(row["flow"]) == pytest.approx(float(expected[place]), abs=1e-6)
        assert row["token"] == f"w{place}"
    out = headloom_main("measure", "rollout", path, "--token", 2, "--limit", 3).out.splitlines()
    assert out[0] == "w2 (2) holds:" and out[1].split() == ["position", "token", "share"]
    assert out[5] == "and 5 more rows"


def test_clusters(headloom_main: Command, path: Path, rows: Any) -> None:
    (row,) = rows("clusters", path, "--count", 2)
    assert row["clusters"] == "2" and row["source"] == "exact"
    of_head = ("clusters", path, "--layer", 0, "--head", 0, "--count")
    found = [(row["cluster"], int(row["position"]) % 2) for row in rows(*of_head, 2)]
    assert found == [("0", 0)] * 4 + [("1", 1)] * 4
    out = headloom_main("measure", *of_head, 20).out
    assert "8 clusters, not 20: there are no more positions" in out


def test_graph_measures_by_name(headloom_main: Command, path: Path, rows: Any) -> None:
    table = rows("graph", path, "--by", "head")
    expected = graph_measures(headloom.open(path), by="head").to_dict("records")
    assert list(table[0]) == list(expected[0])
    for name in ("received", "pagerank", "reciprocity", "rank", "parts"):
        columns = set(rows(name, path, "--by", "head")[0])
        assert {"layer", "kind", "head", "source"} < columns
        assert all(column.startswith((name, "l", "k", "h", "s", "rest")) for column in columns)
    assert headloom_main("measure", "graph", path).out.splitlines()[1].startswith("0 ")


def test_projections(headloom_main: Command, runs: Path, rows: Any) -> None:
    pytest.importorskip("transformers")
    run = runs / "translation"
    assert [row["kind"] for row in rows("projections", run)] == ["encoder", "decoder", "cross"]
    pairs = rows("projections", run, "--by", "pair")
    assert len(pairs) == 3 * 2 * 2
    assert int(pairs[0]["layer"]) > int(pairs[0]["from_layer"])
    assert "times_random: " in headloom_main("measure", "projections", run, "--by", "pair").out
    symmetry = [float(row["symmetry"]) for row in rows("projections", "minilm")]
    assert [round(number, 4) for number in symmetry[:2]] == [0.4051, 0.6399]


@pytest.mark.parametrize(
    ("words", "message"),
    [
        ("rollout T --token 99", "no position 99; the sequence has positions 0 to 7."),
        ("rollout T --kind x", "the trace has no x layer"),
        ("rollout T --by head", "by: rollout has no such option. Leave it out."),
        ("flow T --token 99", "no position 99"),
        ("clusters T --head 1", "head 1 of no layer; give its layer too."),
        ("clusters T --layer 3", "layer 3: no such layer; the trace has layers 0 to 0."),
        ("clusters T --layer 0 --head 9", "no head 9; the layer has heads 0 to 1."),
        ("graph T --by token", "by='token'; expected"),
        ("projections R --by word", "by='word'; expected one of"),
        ("projections T", "It is a trace: headloom heads, headloom measure"),
        ("size T", "'size' is not one of"),
    ],
)
def test_what_is_not_there(
    headloom_main: Command, path: Path, runs: Path, words: str, message: str
) -> None:
    places = {"T": path, "R": runs / "language"}
    line = [places.get(word, word) for word in words.split()]
    assert message in headloom_main("measure", *line).one_line()
