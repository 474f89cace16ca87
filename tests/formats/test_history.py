"""Snapshots of the weight matrices: written, read, gone back from."""

from __future__ import annotations

import math
from pathlib import Path

import numpy as np
import pytest
import torch

import headloom
from headloom.errors import DataError, InputError
from headloom.formats.history import (
    MATRICES,
    MEASURES,
    History,
    LayerSnapshot,
    Snapshot,
    write_snapshot,
)


def layer(name: str, seed: int) -> LayerSnapshot:
    generator = torch.Generator().manual_seed(seed)
    queries = torch.randn(2, 4, 3, generator=generator)
    _, graph = headloom.attend(queries, queries, queries, keep=headloom.Top(3))
    shapes = {"W_Q": (2, 6, 3), "W_K": (2, 6, 3), "W_V": (2, 6, 3), "W_O": (2, 3, 6)}
    matrices = {key: torch.randn(*shapes[key], generator=generator) for key in MATRICES}
    measures: dict[str, list[float | None]] = {
        key: [seed + place / 10, None] for place, key in enumerate(MEASURES)
    }
    tokens = ["a", "ü", "", "\n"]
    return LayerSnapshot(name, "encoder", matrices, measures, graph, tokens, tokens)


@pytest.fixture
def history(tmp_path: Path) -> History:
    for step in (4, 0, 100_000_000):
        layers = [layer("first.attention", step % 7), layer("second", step % 7 + 1)]
        write_snapshot(tmp_path, Snapshot(step, None if step else 2.5, layers))
    return History(tmp_path)


def test_round_trip(history: History) -> None:
    assert history.steps == [0, 4, 100_000_000]
    assert [snapshot.step for snapshot in history] == history.steps
    assert len(history) == 3
    found = history[4]
    assert found.loss is None
    assert history[0].loss == 2.5
    for place, name in enumerate(("first.attention", "second")):
        expected, got = layer(name, 4 + place), found.layer(name)
        assert (got.kind, got.query_tokens) == ("encoder", ["a", "ü", "", "\n"])
        assert got.measures == expected.measures
        for key in MATRICES:
            assert torch.equal(got.matrices[key], expected.matrices[key])
        for field in ("keys", "scores", "weights", "lse", "entropy", "rest", "count"):
            assert torch.equal(getattr(got.graph, field), getattr(expected.graph, field))
        assert got.graph.length == 4
        assert torch.equal(got.graph.to_dense(), expected.graph.to_dense())


def test_measures_are_one_row_a_head(history: History) -> None:
    table = history.measures()
    assert list(table.columns) == ["step", "layer", "kind", "head", *MEASURES]
    assert table["step"].tolist() == [step for step in history.steps for _ in range(4)]
    assert all(table[name].dtype == "float64" for name in MEASURES)
    rows = table.to_dict("records")
    assert len(rows) == 3 * 2 * 2
    row = next(r for r in rows if (r["step"], r["layer"], r["head"]) == (4, "second", 0))
    assert row["kind"] == "encoder"
    assert row["norm_W_K"] == 5 + MEASURES.index("norm_W_K") / 10
    assert all(math.isnan(row["symmetry"]) for row in rows if row["head"] == 1)


def test_a_matrix_at_every_step_is_an_array(history: History) -> None:
    whole = history["W_Q"]
    assert whole.shape == (3, 2, 2, 6, 3)  # steps, layers, heads, width, depth
    for place, snapshot in enumerate(history):
        for number, each in enumerate(snapshot.layers):
            assert np.array_equal(whole[place, number], each.matrices["W_Q"].numpy())
    for key in (1, -1, "second"):
        assert np.array_equal(history["W_Q", key], whole[:, 1])
    for name in ("W_X", "W_O"):
        if name == "W_O":  # of another shape in another layer
            other = layer("second", 1)
            other.matrices["W_O"] = torch.zeros(2, 3, 5)
            write_snapshot(history.folder, Snapshot(0, None, [layer("first", 0), other]))
        with pytest.raises(InputError, match=rf"no '{name}' of one shape.*history\[\"W_Q\", 0\]"):
            history[name]
    assert history["W_O", 0].shape == (3, 2, 3, 6)
    with pytest.raises(DataError, match="no layer 7"):
        history["W_Q", 7]
    first = history.get("W_Q", layer=0, head=1, step=history.steps[0])
    assert np.array_equal(first, history["W_Q", 0][0, 1])
    with pytest.raises(DataError, match="step-00000999"):
        history.get("W_Q", layer=0, step=999)


def test_from_the_end(history: History) -> None:
    steps = history.steps
    assert [history[-1].step, history[-2].step, history[-3].step] == steps[::-1]
    with pytest.raises(DataError, match="no snapshot -4 from the end; there are 3"):
        history[-4]


def test_unknown_layer_and_step(history: History) -> None:
    with pytest.raises(DataError, match=r"no layer 'third'; it has first\.attention, second"):
        history[0].layer("third")
    with pytest.raises(DataError, match=r"step-00000001\.safetensors: no such snapshot"):
        history[1]


def test_a_damaged_snapshot(history: History) -> None:
    path = history.folder / "step-00000004.safetensors"
    path.write_bytes(path.read_bytes()[:-5])
    with pytest.raises(DataError, match="this snapshot is damaged or half-written"):
        history[4]


def test_no_history(tmp_path: Path) -> None:
    empty = tmp_path / "history"
    empty.mkdir()
    assert History(empty).steps == []
    with pytest.raises(DataError, match=r"history: no snapshots\. Give the folder of a run, as"):
        History(empty).measures()
    with pytest.raises(DataError, match="no snapshots"):
        History(empty)["W_Q"]
    for missing in (tmp_path / "no", str(tmp_path / "no")):
        with pytest.raises(DataError, match=r"no: no such history\. Give the folder of a run, as"):
            History(missing)
    (tmp_path / "run.json").write_text("{}")
    assert History(tmp_path / "no").steps == []  # of a run that keeps none
    assert History(tmp_path).folder == empty
    with pytest.raises(
        InputError, match=r"History: Linear; expected .* headloom\.monitor\(model\)"
    ):
        History(torch.nn.Linear(1, 1))  # type: ignore[arg-type]
    with pytest.raises(DataError, match="no snapshot -1 from the end; there are 0"):
        History(empty)[-1]
