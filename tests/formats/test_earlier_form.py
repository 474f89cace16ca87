"""A trace and a run of an earlier headloom open, and give the numbers that were written."""

from __future__ import annotations

from math import exp, log
from pathlib import Path

import pytest
import torch
from tests.formats import earlier_form as earlier
from tests.training.conftest import measures_of

import headloom
from headloom.api.model import TraceChoices
from headloom.api.run_model import RunModel
from headloom.formats.history import History
from headloom.training.inference import generate_text, open_run


@pytest.fixture
def trace(tmp_path: Path) -> headloom.Trace:
    earlier.write_trace(tmp_path / "earlier.loom")
    return headloom.open(tmp_path / "earlier.loom")


@pytest.fixture
def run_path(tmp_path: Path) -> Path:
    earlier.write_run(tmp_path / "run")
    return tmp_path / "run"


def test_every_edge_and_row_of_a_trace(trace: headloom.Trace) -> None:
    assert trace.sequences == {"tokens": earlier.TOKENS}
    assert trace.model == {"name": "earlier"}
    assert [layer.name for layer in trace.layers] == [
        "decoder.0.self_attention", "decoder.1.self_attention",
    ]  # fmt: skip
    for number, layer in enumerate(trace.layers):
        assert (layer.kind, layer.index, layer.shape) == ("decoder", number, (2, 3, 3))
        assert (layer.scale, layer.positions, layer.mask) == (1.0, "none", "causal")
        graph = layer.graph
        for head in range(2):
            for query in range(3):
                edges = earlier.EDGES[head][query]
                kept = graph.keys[head, query] >= 0
                assert graph.keys[head, query][kept].tolist() == [key for key, _, _ in edges]
                scores = [score for _, score, _ in edges]
                assert graph.scores[head, query][kept].tolist() == pytest.approx(scores)
                weights = [weight for _, _, weight in edges]
                assert graph.weights[head, query][kept].tolist() == pytest.approx(weights)
                lse, entropy, rest, count = earlier.ROWS[head][query]
                assert float(graph.lse[head, query]) == pytest.approx(lse)
                assert float(graph.entropy[head, query]) == pytest.approx(entropy)
                assert float(graph.rest[head, query]) == pytest.approx(rest)
                assert int(graph.count[head, query]) == count


def test_the_matrix_comes_back_where_queries_and_keys_are_kept(trace: headloom.Trace) -> None:
    first, second = trace.layers
    assert torch.equal(first.queries, torch.from_numpy(earlier.QUERIES))
    assert torch.equal(first.keys, torch.from_numpy(earlier.KEYS))
    assert first.value_norms[0].tolist() == earlier.VALUE_NORMS
    assert first.deviation == 1e-7
    assert first.matrix is not None
    dense = first.matrix.dense()
    expected = [[1, 0, 0], [1 / 3, 2 / 3, 0], [1 / 7, 2 / 7, 4 / 7]]
    torch.testing.assert_close(dense[0], torch.tensor(expected), atol=1e-6, rtol=0)
    uniform = [[1, 0, 0], [1 / 2, 1 / 2, 0], [1 / 3, 1 / 3, 1 / 3]]
    torch.testing.assert_close(dense[1], torch.tensor(uniform), atol=1e-6, rtol=0)
    # What the second layer lacks is not made up.
    assert second.queries is second.keys is second.value_norms is second.deviation is None
    assert second.matrix is None
    assert second.no_matrix


def test_what_is_asked_of_a_trace(trace: headloom.Trace) -> None:
    assert trace.verification is None
    assert list(trace.not_traced) == []
    answer = trace.sql("select sum(weight) as mass from edges where layer = 0 and head = 0")
    assert float(answer["mass"][0]) == pytest.approx(1 + 1 + 6 / 7)
    assert len(trace.heads()) == 4


def test_the_model_of_a_run(run_path: Path, tmp_path: Path) -> None:
    run = open_run(run_path)
    assert run.step == 1
    assert run.vocabulary.encode("ab?") == [4, 5, 1]
    with torch.no_grad():
        logits = run.model(torch.tensor([[4, 5, 1]]))
    assert logits[0].tolist() == [[0, 1, 2, 3, 4, 5]] * 3
    assert generate_text(run, "a", length=3, temperature=0) == "bbb"
    # Half of the held-out targets is a, with the logit 4, the other half b, with 5.
    measures = measures_of(run, "valid")
    expected = log(sum(exp(number) for number in range(6))) - 4.5
    assert measures["loss"] == pytest.approx(expected, abs=0.03)
    model = RunModel(run)
    options = TraceChoices()
    traced = model.trace(model.inputs("abab", options), tmp_path / "t.loom", options)
    # W_Q and W_K are zero, so that every weight is that of chance.
    assert traced.layers[0].graph.dense()[0, 3].tolist() == pytest.approx([0.25] * 4)


def test_the_history_of_a_run(run_path: Path) -> None:
    history = History(run_path / "history")
    assert history.steps == [0, 1]
    for step, snapshot in enumerate(history):
        assert snapshot.loss == earlier.LOSSES[step]
        (layer,) = snapshot.layers
        assert (layer.name, layer.kind) == ("decoder.0.self_attention", "decoder")
        for name, matrix in earlier.MATRICES.items():
            assert torch.equal(layer.matrices[name], torch.tensor(matrix) * (step + 1))
        assert layer.measures["symmetry"] == [0.25]
        assert layer.measures["gradient_norm_W_Q"] == [None]
        assert layer.graph.dense()[0].tolist() == [[1, 0], [0.75, 0.25]]
        assert layer.query_tokens == layer.key_tokens == ["a", "b"]
    losses = [report["validation_loss"] for report in open_run(run_path).folder.read_metrics()]
    assert losses == earlier.LOSSES
