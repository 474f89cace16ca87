"""Alike heads: against the dense definition, the bound, and clusters that are known."""

from __future__ import annotations

import numpy as np
import pytest
import torch

import headloom
from headloom.analysis.dense_layer import layer_of_weights
from headloom.analysis.heads.similarity import clusters, similarity
from headloom.api.trace import Trace


def test_against_the_definition_and_between_the_bounds(
    minilm_trace: Trace, minilm_top: Trace
) -> None:
    dense = torch.cat([layer.graph.dense() for layer in minilm_trace.layers]).double()
    roots = dense.sqrt()
    expected = torch.einsum("aij,bij->ab", roots, roots).numpy() / 19
    assert np.allclose(similarity(minilm_trace).affinity, expected, atol=1e-5)
    exact = similarity(minilm_top)
    assert exact.heads[13] == (1, 1)
    assert np.allclose(exact.affinity, expected, atol=1e-5)
    assert np.allclose(np.diag(exact.affinity), 1, atol=1e-5)
    kept = similarity(minilm_top, exact=False)
    assert (kept.affinity <= expected + 1e-6).all()
    assert (kept.upper >= expected - 1e-6).all()
    # Where nearly all is kept, the bound says something: the previous-token head and others.
    assert (kept.upper - kept.affinity)[2].mean() < 0.4


@pytest.mark.parametrize("layers", [[0], [1], [2], None])
def test_causal_grouped_and_positioned_heads(layers, translator, language_model) -> None:
    """Exact from few edges, queries and keys: causal, grouped, rotary, between two sequences."""
    if layers is None:
        model, inputs = language_model, torch.tensor([3, 9, 9, 14, 27, 5, 2])
    else:
        model = translator
        inputs = {"source": torch.tensor([3, 9, 9, 14]), "target": torch.tensor([1, 8, 30])}
    whole, part = (
        headloom.trace(model, inputs, keep=keep) for keep in (headloom.All(), headloom.Top(1))
    )
    expected = similarity(whole, layers=layers)
    assert np.allclose(np.diag(expected.affinity), 1, atol=1e-6)
    found = similarity(part, layers=layers, exact=True)
    assert np.allclose(found.affinity, expected.affinity, atol=1e-5)


def test_many_rows_are_put_together_in_blocks(monkeypatch, minilm_top: Trace) -> None:
    from headloom.analysis.heads import similarity as module

    whole, kept = similarity(minilm_top), similarity(minilm_top, exact=False)
    monkeypatch.setattr(module, "BLOCK_CELLS", 19 * 72 * 3)
    monkeypatch.setattr(module, "BLOCK_EDGES", 72 * 4 * 5)
    assert np.allclose(similarity(minilm_top).affinity, whole.affinity, atol=1e-6)
    assert np.allclose(similarity(minilm_top, exact=False).upper, kept.upper, atol=1e-6)


def test_clusters_of_copies() -> None:
    """Three kinds of heads, slightly different copies, spread over two layers."""
    generator = torch.Generator().manual_seed(6)
    kinds = torch.randn(3, 20, 20, generator=generator) * 4
    order = [0, 1, 2, 0, 0, 1, 0, 2, 1, 0]
    scores = torch.stack([kinds[k] for k in order])
    weights = (scores + 0.1 * torch.randn(scores.shape, generator=generator)).softmax(-1)
    layers = layer_of_weights(weights[:4]), layer_of_weights(weights[4:])
    found = clusters(similarity(Trace({"tokens": layers[0].query_tokens}, layers)))
    # The largest cluster is 0; then that of head 1, then that of head 2.
    assert found.tolist() == order
    assert len(set(clusters(similarity(Trace({"tokens": ["a"]}, layers)), count=2).tolist())) == 2


@pytest.mark.parametrize("gap", [15.0, 16.0, 16.5, 17.0, 18.0])
def test_the_bound_holds_of_weights_that_float32_rounds_away(gap: float) -> None:
    """All but nothing on key 0 in one head, on key 1 in the other; a root makes it count."""
    scores = torch.tensor([[[gap, 0.0, -1.0]], [[0.0, gap + 0.3, -1.0]]], dtype=torch.float64)
    layer = layer_of_weights(scores.softmax(-1), ["q"], key_tokens=["a", "b", "c"], keep=1)
    roots = scores.softmax(-1)[:, 0].sqrt().numpy()
    kept = similarity(Trace({"target": ["q"], "source": list("abc")}, (layer,)))
    assert kept.affinity[0, 1] <= roots[0] @ roots[1] <= kept.upper[0, 1]


@pytest.mark.parametrize("kept", [2, 6])
def test_what_is_on_a_sink_is_alike_too(kept: int) -> None:
    generator = torch.Generator().manual_seed(0)
    one = torch.randn(1, 1, 6, 4, generator=generator)
    pair = one.expand(1, 2, 6, 4)
    sinks = torch.tensor([1.5, 1.5])
    trace = headloom.from_queries_keys(pair, pair, sinks=sinks, keep=headloom.Top(kept))
    assert float(trace.layers[0].graph.rest.mean()) > 0.1
    alike = similarity(trace)
    assert alike.affinity == pytest.approx(np.ones((2, 2)), abs=1e-5)
    assert clusters(alike).tolist() == [0, 0]
    bounds = similarity(trace, exact=False)
    assert (bounds.affinity <= 1 + 1e-6).all() and (bounds.upper >= 1 - 1e-6).all()
    # Two heads of which one has all on its keys and one almost all on the sink.
    other = headloom.from_queries_keys(pair, pair, sinks=torch.tensor([-30.0, 12.0]))
    assert similarity(other).affinity[0, 1] < 0.1


def test_bad_questions(pair_trace: Trace, minilm_top: Trace) -> None:
    with pytest.raises(headloom.InputError, match="different sequences or sizes"):
        similarity(pair_trace)
    assert similarity(pair_trace, layers=[1]).affinity.shape == (4, 4)
    with pytest.raises(headloom.InputError, match="no layer 6; the trace has layers 0 to 5"):
        similarity(minilm_top, layers=[6])
    alike = similarity(minilm_top)
    with pytest.raises(headloom.InputError, match="count=0"):
        clusters(alike, count=0)
    with pytest.raises(headloom.InputError, match="distance=3"):
        clusters(alike, distance=3)
