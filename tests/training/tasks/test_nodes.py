"""The task `nodes`: reading graphs, both settings, and a run from training to trace."""

from __future__ import annotations

import json
from pathlib import Path
from typing import Any

import numpy as np
import pytest
import scipy.sparse
import torch
from typer.testing import CliRunner

import headloom
from headloom.cli.commands import app
from headloom.errors import InputError
from headloom.training.sections import NodesConfig
from headloom.training.tasks.nodes import NodeData, nodes_task, read_nodes


def arrays(**changes: Any) -> dict[str, Any]:
    """Two cliques of 10 nodes with an edge between; a node's class is its clique.

    Features say the class of nodes 0 and 10 only: the others must ask their neighbours.
    """
    pairs = [(i, j) for c in (0, 10) for i in range(c, c + 10) for j in range(c, c + 10) if i != j]
    features = np.random.default_rng(0).random((20, 6)).astype(np.float32)
    features[0], features[10] = np.eye(6)[0] * 9, np.eye(6)[1] * 9
    content: dict[str, Any] = {
        "x": features,
        "edge_index": np.array([*pairs, (9, 10), (10, 9)]).T,
        "y": np.arange(20) // 10,
        "train": np.array([0, 1, 2, 10, 11, 12]),
        "val": np.array([3, 13]),
        "test": np.array([4, 5, 6, 7, 8, 14, 15, 16, 17, 18]),
    }
    content |= changes
    return {name: array for name, array in content.items() if array is not None}


def saved(folder: Path, **changes: Any) -> Path:
    path = folder / "graph.npz"
    np.savez(path, **arrays(**changes))
    return path


def test_masks_are_numbers_of_nodes(tmp_path: Path) -> None:
    expected, content = read_nodes(saved(tmp_path)), arrays()
    masks = {
        f"{name}_mask": np.isin(np.arange(20), content[name]) for name in ("train", "val", "test")
    }
    masked = read_nodes(saved(tmp_path, **{"train": None, "val": None, "test": None} | masks))
    assert masked.classes == ["0", "1"] and torch.equal(masked.labels, expected.labels)
    assert masked.splits.keys() == expected.splits.keys() == {"train", "valid", "test"}
    for split, chosen in expected.splits.items():
        assert torch.equal(masked.splits[split], chosen.sort().values)


def test_features_that_are_mostly_zero(tmp_path: Path) -> None:
    dense = read_nodes(saved(tmp_path)).features
    rows = scipy.sparse.csr_array(dense.numpy())
    parts = {"x_data": rows.data, "x_indices": rows.indices, "x_indptr": rows.indptr}
    parts |= {"x": None, "x_shape": np.array(rows.shape)}
    assert torch.equal(read_nodes(saved(tmp_path, **parts)).features, dense)
    for name, wrong in [("x_indices", rows.indices + 9), ("x_shape", np.array([2, 6])),
                        ("x_indptr", rows.indptr[::-1]), ("x_data", rows.data[:-1])]:  # fmt: skip
        with pytest.raises(InputError, match="x_data, x_indices, x_indptr, x_shape"):
            read_nodes(saved(tmp_path, **parts | {name: wrong}))


def test_features_are_divided_by_their_sum_and_edges_turned() -> None:
    graph = read_nodes_of(x=np.array([[1.0, 3.0], [0.0, 0.0]]), edge_index=np.array([[0], [1]]))
    assert graph.row_normalised().features.tolist() == [[0.25, 0.75], [0.0, 0.0]]
    assert graph.undirected().edge_index.tolist() == [[0, 1], [1, 0]]


def read_nodes_of(**changes: Any) -> Any:
    x, edge_index = changes["x"], changes["edge_index"]
    count = len(x)
    splits = {"train": torch.arange(count), "valid": torch.arange(count)}
    return NodeData(
        torch.tensor(x), torch.tensor(edge_index), torch.arange(count),
        [str(n) for n in range(count)], [str(n) for n in range(count)], splits,
    ).checked("test")  # fmt: skip


def test_a_task_of_an_undirected_graph_goes_both_ways(tmp_path: Path) -> None:
    path = str(saved(tmp_path, edge_index=np.array([[0, 3, 5], [1, 3, 4]])))
    for undirected, expected in ((False, {(0, 1), (3, 3), (5, 4)}), (True, None)):
        task = nodes_task(NodesConfig(kind="nodes", graph=path, undirected=undirected), 1)
        edges = {tuple(edge) for edge in task.batch([0]).inputs["edge_index"].T.tolist()}
        assert edges == (expected or {(0, 1), (1, 0), (3, 3), (4, 5), (5, 4)})


def test_inductive_training_does_not_see_other_nodes(tmp_path: Path) -> None:
    path = str(saved(tmp_path))
    whole = nodes_task(NodesConfig(kind="nodes", graph=path), 1)
    apart = nodes_task(NodesConfig(kind="nodes", graph=path, setting="inductive"), 1)
    train = {0, 1, 2, 10, 11, 12}
    seen = apart.batch([0]).inputs["edge_index"]
    assert seen.shape == (2, 12) and set(seen.flatten().tolist()) == train
    assert whole.batch([0]).inputs["edge_index"].shape == (2, 182)
    assert apart.validation(1)[0].inputs["edge_index"].shape == (2, 182)
    targets = whole.batch([0]).targets
    assert set((targets != whole.ignored).nonzero().flatten().tolist()) == train


@pytest.mark.parametrize(
    ("changes", "message"),
    [
        ({"edge_index": np.array([[0], [20]])}, "'edge_index' names node 20; there are 20 nodes"),
        ({"x": np.zeros((19, 6))}, "20 labels for 19 rows of features"),
        ({"y": np.where(np.arange(20) == 4, -1, np.arange(20) // 10)}, "its label is unknown"),
        ({"x": None}, "'x' is missing; it holds edge_index"),
        ({"y": np.arange(20) / 10}, "'y' is float64; expected whole numbers"),
        ({"val": None}, "no node is in 'valid'"),
        ({"test": np.array([15, -1])}, "'test' names node -1"),
        ({"test": np.array([9, 2])}, "node 2 is in 'train' and in 'test'"),
        ({"train": None, "train_mask": np.ones(3, dtype=bool)}, "a mask of shape (3,)"),
        ({"classes": np.array(["one"])}, "a label is 1; classes has 1 names"),
        ({"edge_index": np.zeros((3, 2), dtype=int)}, "edge_index is (3, 2); expected (2, edges)"),
    ],
)
def test_bad_graphs_are_one_line(tmp_path: Path, changes: dict[str, Any], message: str) -> None:
    with pytest.raises(headloom.HeadloomError) as caught:
        read_nodes(saved(tmp_path, **changes))
    assert message in str(caught.value) and "\n" not in str(caught.value)


def test_from_training_to_a_trace(tmp_path: Path) -> None:
    """A run learns from neighbours what features do not say, is evaluated, traced and read."""
    (tmp_path / "run.toml").write_text(
        f"""
        [task]
        kind = "nodes"
        graph = "{saved(tmp_path)}"
        [model]
        heads = 2
        width = 8
        dropout = 0.1
        attention_dropout = 0.1
        [training]
        optimiser = "adam"
        peak_learning_rate = 0.02
        schedule = "constant"
        warmup = 0
        label_smoothing = 0.0
        max_steps = 60
        validate_every = 10
        better = "loss-and-accuracy"
        """
    )

    def headloom_command(*arguments: str) -> str:
        result = CliRunner().invoke(app, list(arguments))
        assert result.exit_code == 0, result.output
        return result.output

    run, trace = str(tmp_path / "run"), str(tmp_path / "t.loom")
    headloom_command("train", str(tmp_path / "run.toml"), "--run", run)
    report = json.loads(headloom_command("evaluate", run, "--json"))
    assert report["accuracy"] == 1.0 and report["nodes"] == 10 and report["split"] == "test"
    assert "20 nodes" in headloom_command("trace", run, "-o", trace)
    opened = headloom.open(trace)
    assert opened.tokens[9:11] == ["9:0", "10:1"]
    assert [layer.name for layer in opened.layers] == ["convolutions.0", "convolutions.1"]
    graph = opened.layers[0].graph
    assert graph.shape == (2, 20, 20)
    # Every neighbour is kept, and the node itself: of node 9 all of its clique and node 10.
    assert graph.count[:, 9].tolist() == [11, 11] and set(graph[0, 9].keys.tolist()) == {*range(11)}
    torch.testing.assert_close(graph.weights.sum(-1), torch.ones(2, 20))
    assert opened.layers[0].matrix is None
    headloom_command("heads", trace)
    words = ["trace", run, "--text", "x", "-o", str(tmp_path / "x.loom")]
    error = CliRunner().invoke(app, words).exception
    assert f"{run} reads its graph alone. Leave the inputs out." in str(error)


def test_other_data_than_a_run_learned_are_refused(tmp_path: Path) -> None:
    config = NodesConfig(kind="nodes", graph=str(saved(tmp_path)))
    known = nodes_task(config, 1).description
    saved(tmp_path, x=np.ones((20, 5), dtype=np.float32))
    with pytest.raises(headloom.InputError, match="differ from those of this run"):
        nodes_task(config, 1, known)
