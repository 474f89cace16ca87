"""Alike heads: against the dense definition, and clusters that are known."""

from __future__ import annotations

import numpy as np
import pytest
import torch

import headloom
from headloom.analysis.heads.similarity import similarity
from headloom.api.trace import Trace


def test_against_the_definition(monkeypatch, minilm_trace: Trace, minilm_top: Trace) -> None:
    dense = torch.cat([layer.graph.to_dense() for layer in minilm_trace.layers]).double()
    roots = dense.sqrt()
    expected = torch.einsum("aij,bij->ab", roots, roots).numpy() / 19
    assert np.allclose(similarity(minilm_trace).affinity, expected, atol=1e-5)
    exact = similarity(minilm_top)
    assert exact.heads[13] == (1, 1)
    assert np.allclose(exact.affinity, expected, atol=1e-5)
    assert np.allclose(np.diag(exact.affinity), 1, atol=1e-5)
    few = torch.cat([layer.graph.to_dense() for layer in minilm_top.layers]).double().sqrt()
    expected = torch.einsum("aij,bij->ab", few, few).numpy() / 19
    assert np.allclose(similarity(minilm_top, exact=False).affinity, expected, atol=1e-5)
    monkeypatch.setattr("headloom.analysis.heads.similarity.BLOCK_CELLS", 19 * 72 * 3)
    assert np.allclose(similarity(minilm_top).affinity, exact.affinity, atol=1e-6)


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
    # Two heads of which one has all on its keys and one almost all on the sink.
    other = headloom.from_queries_keys(pair, pair, sinks=torch.tensor([-30.0, 12.0]))
    assert similarity(other).affinity[0, 1] < 0.1


def test_bad_questions(pair_trace: Trace) -> None:
    with pytest.raises(headloom.InputError, match="different sequences or sizes"):
        similarity(pair_trace)
    assert similarity(pair_trace, layers=[1]).affinity.shape == (4, 4)
