"""Of stored half precision every analysis gives what the rounded queries and keys give."""

from __future__ import annotations

from collections.abc import Callable
from pathlib import Path

import numpy as np
import pytest
import torch
from torch import Tensor

import headloom
from headloom.analysis.alignment.words import word_weights
from headloom.analysis.compare import distance
from headloom.analysis.eviction.evict import evict
from headloom.analysis.graphs import flow
from headloom.analysis.graphs.flow import attention_flow, of_rounded
from headloom.analysis.graphs.rollout import rollout_columns, rollout_rows, whole_rollout
from headloom.analysis.graphs.strength import received
from headloom.analysis.graphs.table import graph_measures, layer_source
from headloom.analysis.graphs.token_clusters import token_clusters
from headloom.formats.trace import TraceData, TraceLayer
from headloom.mechanism.reference import graphs as reference

LENGTH = 12


@pytest.fixture(params=[torch.float16, torch.bfloat16], ids=["float16", "bfloat16"])
def dtype(request: pytest.FixtureRequest) -> torch.dtype:
    found: torch.dtype = request.param
    return found


def _parts() -> tuple[Tensor, Tensor]:
    """Of three layers of two heads; all scores are some 32, as of trained models with biases."""
    queries, keys = torch.randn(2, 3, 2, LENGTH, 8, generator=torch.Generator().manual_seed(0))
    queries[..., 0], keys[..., 0] = 11.3, 7.7
    return queries, keys


@pytest.fixture
def half(dtype: torch.dtype, tmp_path: Path) -> TraceData:
    """Three edges of each row, and queries and keys that were rounded where they were stored."""
    path = tmp_path / "half"
    headloom.from_queries_keys(
        *_parts(), mask=headloom.causal(), kind="decoder", scale=0.37, keep=headloom.Top(3),
        dtype=dtype,
        save=path,
    )  # fmt: skip
    return headloom.open(path)


@pytest.fixture
def rounded(dtype: torch.dtype) -> TraceData:
    """Of the same rounded queries and keys, in float32: each row is the softmax of their scores."""
    queries, keys = (part.to(dtype).float() for part in _parts())
    return headloom.from_queries_keys(
        queries, keys, mask=headloom.causal(), kind="decoder", scale=0.37, keep=headloom.Top(3)
    )


def in_double(trace: TraceData) -> list[Tensor]:
    """The weights of each layer by the formula, averaged over heads, float64."""
    ahead = torch.ones(LENGTH, LENGTH, dtype=torch.bool).triu(1)
    found = []
    for layer in trace.layers:
        assert layer.queries is not None and layer.keys is not None
        scores = layer.queries.double() @ layer.keys.double().transpose(1, 2) * layer.scale
        found.append(scores.masked_fill(ahead, -torch.inf).softmax(-1).mean(0))
    return found


def test_the_case_is_one_where_rounding_shows(half: TraceData) -> None:
    """e^(rounded score - the model's log-sum-exp) sums to 1 only about; normalized to 1."""
    layer = half.layers[0]
    assert layer.matrix is not None and layer.normalised_matrix is not None
    assert float((layer.matrix.dense().sum(-1) - 1).abs().max()) > 1e-3
    assert float((layer.normalised_matrix.dense().sum(-1) - 1).abs().max()) < 1e-5
    assert layer.half_precision


def test_of_float32_the_normalised_matrix_is_the_matrix(rounded: TraceData) -> None:
    layer = rounded.layers[0]
    assert layer.normalised_matrix is layer.matrix and not layer.half_precision
    (alone,) = headloom.from_weights(torch.full((1, 2, 2), 0.5)).layers
    assert alone.normalised_matrix is None and not alone.half_precision


def test_shares_of_a_rollout_are_at_most_1_and_within_the_bound(half: TraceData) -> None:
    expected = reference.rollout(in_double(half))
    every = range(LENGTH)
    for found in (
        whole_rollout(half), rollout_rows(half, every), rollout_columns(half, every)
    ):  # fmt: skip
        assert float(found.values.max()) <= 1
        assert float((found.values.sum(1) - 1).abs().max()) < 1e-5
        short = (expected - found.values).clamp(min=0)
        assert bool((short.sum(1) <= found.bound).all()) and float(found.bound.max()) < 1e-4


def test_a_flow_lies_in_its_interval(half: TraceData) -> None:
    layers = [reference.with_residual(weights) for weights in in_double(half)]
    for exact in (None, True):
        found = attention_flow(half, LENGTH - 1, range(LENGTH), exact=exact)
        expected = reference.flow(layers, LENGTH - 1)
        assert float(found.upper.max()) <= 1
        assert bool((found.lower <= expected).all()) and bool((expected <= found.upper).all())


def test_a_flow_through_every_kept_edge_is_the_models_own(
    dtype: torch.dtype, tmp_path: Path
) -> None:
    own = headloom.from_queries_keys(*_parts(), scale=0.37, keep=headloom.All())
    own.save(tmp_path / "t", dtype=dtype)
    expected = attention_flow(own, 3, range(LENGTH))
    for exact in (None, True):
        found = attention_flow(headloom.open(tmp_path / "t"), 3, range(LENGTH), exact=exact)
        torch.testing.assert_close(found.lower, expected.lower, atol=1e-5, rtol=0)
        torch.testing.assert_close(found.upper, expected.upper, atol=1e-5, rtol=0)


def _measured(trace: TraceData) -> np.ndarray:
    # The entropy is the model's own, of its rows.
    table = graph_measures(trace).drop(columns="entropy").select_dtypes("number")
    return table.to_numpy(float)


def _evicted(trace: TraceData) -> Tensor:
    return evict(trace, budgets=(0.25, 4), policies=["h2o", "observed"]).lost_by_heads


ANALYSES: dict[str, Callable[[TraceData], object]] = {
    "received": lambda trace: received(layer_source("t", trace.layers[0], None)[0]).lower,
    "clusters": lambda trace: (
        token_clusters(layer_source("t", trace.layers[1], None)[0], 2).cut.lower
    ),
    "measures": _measured,
    "evict": _evicted,
}


@pytest.mark.parametrize("name", ANALYSES)
def test_an_analysis_of_whole_rows_is_that_of_the_rounded(
    half: TraceData, rounded: TraceData, name: str
) -> None:
    found, expected = (np.asarray(ANALYSES[name](trace)) for trace in (half, rounded))
    np.testing.assert_allclose(found, expected, atol=2e-5, rtol=2e-5)


def test_the_distance_of_two_traces_is_at_most_1(half: TraceData, rounded: TraceData) -> None:
    for ours, theirs in zip(half.layers, rounded.layers, strict=True):
        assert float(distance(ours, theirs).upper.max()) < 1e-6


def test_words_are_aligned_by_rows_that_sum_to_1(dtype: torch.dtype, tmp_path: Path) -> None:
    queries, keys = (part[:1] for part in _parts())
    words = [f"w{place}" for place in range(LENGTH)]
    sequences = {"source": words, "target": words}
    path = tmp_path / "cross"
    headloom.from_queries_keys(
        queries, keys, kind="cross", tokens=sequences, keep=headloom.Top(3), dtype=dtype, save=path
    )
    # The first word has no token before it, whose row could count.
    sums = word_weights(headloom.open(path)).weights.sum(-1)[:, 1:]
    torch.testing.assert_close(sums, torch.ones(sums.shape), atol=1e-5, rtol=0)


def test_with_sinks_a_row_and_its_sink_sum_to_1(dtype: torch.dtype, tmp_path: Path) -> None:
    queries, keys = (part[:1] for part in _parts())
    sinks = torch.tensor([34.0, 33.0])
    headloom.from_queries_keys(
        queries, keys, sinks=sinks, keep=headloom.Top(3), dtype=dtype, save=tmp_path / "t"
    )
    layer: TraceLayer = headloom.open(tmp_path / "t").layers[0]
    assert layer.normalised_matrix is not None
    taken = (sinks[:, None] - layer.normalised_matrix.lse).exp()
    row = layer.normalised_matrix.dense().sum(-1) + taken
    assert float(taken.max()) > 0.1
    torch.testing.assert_close(row, torch.ones(2, LENGTH), atol=1e-5, rtol=0)


def test_it_is_said_where_a_flow_is_of_the_rounded(
    half: TraceData, rounded: TraceData, dtype: torch.dtype, monkeypatch: pytest.MonkeyPatch
) -> None:
    name = str(dtype).removeprefix("torch.")
    assert f"queries and keys rounded to {name}" in str(of_rounded(half))
    assert of_rounded(half, exact=False) is None and of_rounded(rounded) is None
    # Of a long text it is that of the kept edges, which are the model's own.
    monkeypatch.setattr(flow, "CHEAP_CELLS", 2 * LENGTH**2 - 1)
    assert of_rounded(half) is None and of_rounded(half, exact=True) is not None
