"""`headloom clusters`: a row for each layer, the tokens of each cluster, and errors."""

from __future__ import annotations

import csv
import io
import json
from pathlib import Path

import pytest
import torch
from tests.cli.conftest import Command

import headloom


@pytest.fixture(scope="module")
def path(tmp_path_factory: pytest.TempPathFactory) -> Path:
    """Two heads of eight tokens: odd ones look at odd ones; a sink at the first in one of them."""
    path = tmp_path_factory.mktemp("clusters") / "t.loom"
    places = torch.eye(2).repeat(4, 1).expand(2, -1, -1) * 3
    keys = places.clone()
    keys[1, 0] = 6.0
    headloom.from_queries_keys(
        places, keys, tokens=[f"w{number}" for number in range(8)], kind="encoder",
        keep=headloom.Top(2),
        save=path,
    )  # fmt: skip
    return path


def test_a_row_for_each_layer(headloom_main: Command, path: Path) -> None:
    result = headloom_main("clusters", path, "--count", 2, "--csv")
    (row,) = csv.DictReader(io.StringIO(result.out))
    assert row["clusters"] == "2" and row["source"] == "exact"
    assert 0 <= float(row["least"]) <= float(row["cut"]) == float(row["cut_high"])
    report = json.loads(headloom_main("clusters", path, "--json").out)
    assert [each["layer"] for each in report["layers"]] == [0]


def test_the_tokens_of_each_cluster(headloom_main: Command, path: Path) -> None:
    words = ("clusters", path, "--layer", 0, "--head", 0, "--count", 2)
    result = headloom_main(*words)
    assert "Layer 0, head 0: normalized cut 0.0034; no" in result.out
    assert "no division into as many has less than 0.003" in result.out
    assert "Cluster 0: 4 positions; of what they give and receive 99.8%" in result.out
    even, odd = result.out.split("Cluster 1")
    assert all(f"w{place}" in (odd if place % 2 else even) for place in range(8))
    table = list(csv.DictReader(io.StringIO(headloom_main(*words, "--csv").out)))
    assert [row["cluster"] for row in table] == ["0", "1"] * 4
    assert len(headloom_main(*words, "--csv", "--limit", 3).out.splitlines()) == 4
    report = json.loads(headloom_main(*words, "--json", "--limit", 1).out)
    assert report["labels"] == [0, 1] * 4
    for least, most in report["stays"]:
        assert 0.998 < least <= most < 0.999


def test_fewer_clusters_than_asked_for_are_said(headloom_main: Command, path: Path) -> None:
    result = headloom_main("clusters", path, "--count", 20)
    assert "8 clusters, not 20: there are no more positions that have attention." in result.err
    assert "clusters, not" not in headloom_main("clusters", path, "--count", 3).err


def test_without_the_sink_and_from_kept_edges(headloom_main: Command, path: Path) -> None:
    words = ("clusters", path, "--layer", 0, "--head", 1, "--count", 2, "--without", 0)
    assert json.loads(headloom_main(*words, "--json").out)["labels"] == [-1, *[0, 1] * 3, 0]
    assert "1 left out, or without any attention." in headloom_main(*words).out
    kept = headloom_main(*words, "--kept").out
    assert " to " in kept.splitlines()[0] and "no division" not in kept
    assert "Of the kept edges" in kept


@pytest.mark.parametrize(
    ("words", "error"),
    [
        (
            ("--layer", 3),
            "--layer 3: no such layer; the trace has layers 0 to 0. Give a number, or a path.",
        ),
        (("--layer", 0, "--head", 9), "token_clusters: no head 9; the layer has heads 0 to 1."),
        (("--without", 80), "token_clusters: no position 80; the sequence has positions 0 to 7."),
        (("--head", 1), "--head 1 of no layer; give its --layer too."),
    ],
)
def test_what_is_not_there(
    headloom_main: Command, path: Path, words: tuple[object, ...], error: str
) -> None:
    result = headloom_main("clusters", path, *words)
    assert (result.code, result.out, result.err) == (2, "", f"headloom: {error}\n")


def test_a_trace_between_two_sequences(headloom_main: Command, tmp_path: Path) -> None:
    place = tmp_path / "t.loom"
    headloom.from_weights(
        torch.full((1, 2, 3), 1 / 3),
        tokens={"source": ["x", "y", "z"], "target": ["a", "b"]},
        kind="cross",
        save=place,
    )
    result = headloom_main("clusters", place)
    assert result.code == 2 and "does a sequence look at itself" in result.err
