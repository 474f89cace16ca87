"""`headloom heads`: the table, its filters, its formats, its errors."""

from __future__ import annotations

import csv
import io
from collections.abc import Callable
from pathlib import Path
from typing import Any

import pytest
from tests.cli.conftest import Command

import headloom


@pytest.fixture
def traces(make_trace: Callable[..., Any], tmp_path: Path) -> Path:
    """A folder of two traces of one model."""
    (tmp_path / "traces").mkdir()
    for number in (1, 2):
        make_trace([f"t{i % 5}" for i in range(20)]).save(tmp_path / "traces" / f"{number}.loom")
    return tmp_path / "traces"


def test_table_csv_and_json_agree(headloom_main: Command, traces: Path) -> None:
    trace = traces / "1.loom"
    table = headloom_main("heads", trace, "--all")
    assert table.code == 0
    assert table.out.splitlines()[0].split()[:3] == ["layer", "head", "role"]
    assert "2 of 2 heads; 1 text, 20 tokens." in table.out
    rows = list(csv.DictReader(io.StringIO(headloom_main("heads", trace, "--csv").out)))
    content = headloom_main("heads", trace, "--json").json()
    assert content["traces"] == [str(trace)]
    assert [row["role"] for row in rows] == [head["role"] for head in content["heads"]]
    assert float(rows[1]["same"]) == pytest.approx(content["heads"][1]["same"])
    assert content["heads"][0]["separator"] is None


def test_a_folder_of_traces_is_put_together(headloom_main: Command, traces: Path) -> None:
    both = headloom_main("heads", traces, "--all")
    assert both.code == 0
    assert "2 texts, 40 tokens" in both.out
    named = headloom_main("heads", traces / "1.loom", traces / "2.loom", "--all")
    assert named.out == both.out


def test_filters_and_order(headloom_main: Command, traces: Path) -> None:
    trace = traces / "1.loom"
    words = ("heads", trace, "--json")
    rows = headloom_main(*words, "--sort", "entropy", "--limit", "1").json()["heads"]
    every = headloom_main(*words).json()["heads"]
    assert rows == [max(every, key=lambda row: row["entropy"])]
    none = headloom_main("heads", trace, "--role", "induction")
    assert none.code == 0
    assert none.out.startswith("0 of 2 heads")
    assert headloom_main("heads", trace, "--all", "--limit", 0).out.startswith("0 of 2 heads")


def test_a_needle(headloom_main: Command, traces: Path) -> None:
    trace = traces / "1.loom"
    words = ("heads", trace, "--needle", "t3 t4 t0")
    rows = headloom_main(*words, "--json").json()["heads"]
    assert {"retrieval", "needle", "needle_chance", "needle_p"} <= set(
        headloom_main(*words).out.splitlines()[0].split()
    )
    assert all(0 <= row["retrieval"] <= 1 for row in rows)
    assert all(0 < row["needle"] < 1 for row in rows)
    # Sorted by what is copied, and of equal heads by the mass on the needle.
    places = [(row["retrieval"], row["needle"]) for row in rows]
    assert places == sorted(places, reverse=True)
    rows = headloom_main(*words, "--sort", "layer", "--json").json()["heads"]
    assert [(row["layer"], row["head"]) for row in rows] == [(0, 0), (0, 1)]
    assert "one text" in headloom_main("heads", traces, "--needle", "t3").one_line()


def test_a_run_by_its_probe_and_along_its_history(headloom_main: Command, runs: Path) -> None:
    last = headloom_main("heads", runs / "dates", "--all")
    assert last.code == 0, last.err
    assert "of 6 heads" in last.out
    content = headloom_main("heads", runs / "dates", "--measure", "first", "--json").json()
    names = ["0.0", "0.1", "1.0", "1.1", "2.0", "2.1"]
    assert list(content["steps"][0]) == ["step", "loss", *names]
    assert [each["step"] for each in content["steps"]] == [0, 1, 2, 3]
    for arguments, said in (
        ((runs / "dates", "--measure", "size"), "measure='size'; expected one of \"previous\""),
        ((runs / "dates", runs / "dates", "--measure", "first"), "one run"),
        ((runs, "--measure", "first"), "not a headloom run"),
    ):
        assert said in headloom_main("heads", *arguments).one_line()


@pytest.mark.parametrize(
    ("arguments", "said"),
    [
        (("--sort", "size"), "no such column"),
        (("--role", "king"), "no such role"),
        (("--layer", "7"), "the trace has layers 0 to 0"),
        (("--exact",), "not known exactly"),
        (("--needle", "b"), "0 times"),
    ],
)
def test_bad_options(
    headloom_main: Command,
    make_trace: Callable[..., Any],
    tmp_path: Path,
    arguments: tuple[str, ...],
    said: str,
) -> None:
    make_trace(["a"] * 9, keep=3).save(tmp_path / "t.loom")
    result = headloom_main("heads", tmp_path / "t.loom", *arguments)
    assert said in result.one_line()


def test_a_layer_has_one_name_which_options_take(
    headloom_main: Command, pair_trace: headloom.Trace, tmp_path: Path
) -> None:
    pair_trace.save(tmp_path / "t")
    names = [f"{n} ({layer.kind} {layer.index})" for n, layer in enumerate(pair_trace.layers)]
    for words in (("heads", tmp_path / "t", "--all"), ("measure", "graph", tmp_path / "t")):
        rows = headloom_main(*words).out.splitlines()[1:]
        assert {row[: row.index(")") + 1].strip() for row in rows if ")  " in row} == set(names)
    for name in (names[2], "2", pair_trace.layers[2].name):
        chosen = headloom_main("heads", tmp_path / "t", "--all", "--layer", name)
        of_layer = [line for line in chosen.out.splitlines() if line.startswith(names[2])]
        assert chosen.code == 0 and len(of_layer) == pair_trace.layers[2].heads
        out = tmp_path / "p.svg"
        drawn = headloom_main("export", tmp_path / "t", "--picture", out, "--layer", name)
        assert drawn.code == 0 and f"layer {names[2]}, mean of" in out.read_text()
    one = headloom_main("measure", "clusters", tmp_path / "t", "--layer", names[1])
    assert f"Layer {names[1]}, the mean of" in one.out
    there = f"the trace has layers 0 to {len(names) - 1}."
    contrary = f"{names[2][:-2]}7)"
    for wrong, right in (("-1", there), ("five", there), (contrary, f"layer 2 is {names[2]}, of")):
        for verb in (("heads",), ("measure", "clusters")):
            refused = headloom_main(*verb, tmp_path / "t", "--layer", wrong).one_line()
            assert refused.startswith(f"headloom: layer {wrong}: no such layer; {right}")
