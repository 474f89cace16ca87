"""Rows worked through, held against NumPy loops over the queries and keys, and the trace itself."""

from __future__ import annotations

import math
from dataclasses import replace
from typing import Any

import numpy as np
import pytest
import torch

import headloom
from headloom.analysis.worked_row import worked_row
from headloom.api.trace import Trace
from headloom.errors import InputError
from headloom.formats.trace import LayerInMemory

HEADS, QUERIES, KEYS, DEPTH = 4, 6, 9, 8


def arrays(queries: int = QUERIES, keys: int = KEYS, kv_heads: int = HEADS) -> tuple[Any, Any]:
    random = np.random.default_rng(3)
    shape = (HEADS, queries, DEPTH), (kv_heads, keys, DEPTH)
    return tuple(random.normal(size=size).astype(np.float32) for size in shape)


def shaw() -> Any:
    table = torch.randn(HEADS, 5, DEPTH, generator=torch.Generator().manual_seed(1))
    return headloom.Shaw(table)


#: By name: what `from_queries_keys` takes, and the score of a cell by hand.
TABLE = shaw().key_table.double().numpy()
SLOPES = np.array([0.5, 0.25, 0.125, 0.0625])
BIAS = np.random.default_rng(5).normal(size=(HEADS, QUERIES, KEYS)).astype(np.float32)
SINKS = np.array([0.3, -1.0, 2.0, 0.0], np.float32)
BUCKETS = np.random.default_rng(6).normal(size=(8, HEADS)).astype(np.float32)
ROOT = math.sqrt(DEPTH)


def by_hand(dot: float, q: Any, head: int, i: int, j: int, case: str) -> float:
    """The score of a cell, by the papers' formulas; minus infinity where it is hidden."""
    if case == "shaw":
        return (dot + float(q @ TABLE[head, min(max(j - i, -2), 2) + 2])) / ROOT
    if case == "alibi":
        return dot / ROOT - SLOPES[head] * abs(j - i)
    if case == "bias":
        return dot / ROOT + float(BIAS[head, i, j])
    if case == "softcap":
        return 2.5 * math.tanh(dot / ROOT / 2.5)
    if case == "causal":
        return dot / ROOT if j <= i + KEYS - QUERIES else -math.inf
    if case == "window":
        return dot / ROOT if -2 <= j - i <= 1 else -math.inf
    if case == "scale":
        return dot * 0.7
    return dot / ROOT


CASES: dict[str, dict[str, Any]] = {
    "plain": {},
    "grouped": {},
    "shaw": {"relative": shaw()},
    "alibi": {"relative": headloom.ALiBi(torch.from_numpy(SLOPES).float())},
    "bias": {"bias": BIAS},
    "softcap": {"softcap": 2.5},
    "causal": {"mask": headloom.causal(offset=KEYS - QUERIES)},
    "window": {"mask": headloom.window(2, 1)},
    "sinks": {"sinks": SINKS},
    "scale": {"scale": 0.7},
}


@pytest.mark.parametrize("case", CASES)
def test_every_number_of_a_weight_by_hand(case: str) -> None:
    queries, keys = arrays(kv_heads=2 if case == "grouped" else HEADS)
    trace = headloom.from_queries_keys(queries, keys, keep=headloom.Top(KEYS), **CASES[case])
    (layer,) = trace.layers
    graph = layer.graph
    for head in range(HEADS):
        of_head = keys[head // (HEADS // len(keys))].astype(np.float64)
        for i in range(QUERIES):
            q = queries[head, i].astype(np.float64)
            scores = [
                by_hand(float(np.sum(q * of_head[j])), q, head, i, j, case) for j in range(KEYS)
            ]
            total = sum(math.exp(score) for score in scores if score > -math.inf)
            total += math.exp(SINKS[head]) if case == "sinks" else 0.0
            row = worked_row(layer, head, i)
            for j in range(KEYS):
                weight = math.exp(scores[j]) / total if total else 0.0
                assert float(row.scores[j]) == pytest.approx(scores[j], abs=1e-12)
                assert float(row.weights[j]) == pytest.approx(weight, abs=1e-13)
                # The steps that are shown go from the products to the score, each from the last.
                assert row.products(j) == pytest.approx((q * of_head[j]).tolist(), abs=0)
                terms = row.terms(j)
                assert terms[0].result == pytest.approx(sum(row.products(j)), abs=1e-12)
                assert terms[-1].result == pytest.approx(scores[j], abs=1e-12)
                assert row.exponentials[j] / row.total == pytest.approx(weight, abs=1e-13)
            if total:
                assert row.lse == pytest.approx(math.log(total), abs=1e-12)
            # And they are those of the trace, within what float32 can hold.
            kept = graph.keys[head, i] >= 0
            for place in kept.nonzero()[:, 0].tolist():
                key = int(graph.keys[head, i, place])
                assert float(graph.weights[head, i, place]) == pytest.approx(
                    float(row.weights[key]), abs=2e-6
                )
                assert float(graph.scores[head, i, place]) == pytest.approx(
                    float(row.scores[key]), abs=2e-5
                )


def test_a_learned_bias_for_each_distance(pair_trace: Trace) -> None:
    queries, keys = arrays(QUERIES, QUERIES)
    table = torch.from_numpy(BUCKETS)
    trace = headloom.from_queries_keys(
        queries, keys, relative=headloom.Buckets(table, max_distance=16, bidirectional=True)
    )
    (layer,) = trace.layers
    row = worked_row(layer, 1, 3)
    names = [term.name for term in row.terms(2)]
    assert names == ["q · k", "scaled", "position"]
    weights = layer.graph.to_dense()[1, 3].double()
    assert torch.allclose(row.weights, weights, atol=2e-6)


def test_a_row_that_sees_no_key() -> None:
    queries, keys = arrays(2, 3)
    trace = headloom.from_queries_keys(queries, keys, mask=headloom.window(0, 0, offset=9))
    row = worked_row(trace.layers[0], 0, 1)
    assert row.weights.tolist() == [0.0, 0.0, 0.0] and row.lse == -math.inf
    assert row.terms(1)[-1].name == "mask" and row.strongest(5) == []
    assert row.strongest(5, 2) == [2]


def broken(number: float, *places: int) -> Any:
    """A layer of a model whose first head's query 1 held such a number."""
    queries, keys = (torch.from_numpy(array) for array in arrays())
    queries[0, 1, list(places)] = number
    (layer,) = headloom.from_queries_keys(*arrays()).layers
    _, graph = headloom.attend(queries, keys, keys, keep=headloom.Top(3), backend="torch")
    return replace(layer, data=LayerInMemory(graph, (queries, keys), layer.terms))


@pytest.mark.parametrize(("number", "places"), [(math.nan, (2,)), (math.inf, (2, 3, 4))])
def test_what_is_no_number_hides_no_key(number: float, places: tuple[int, ...]) -> None:
    layer = broken(number, *places)
    row = worked_row(layer, 0, 1)
    assert math.isnan(row.lse) and bool(layer.graph.lse[0, 1].isnan())
    # Infinities of one sign alone are a score of minus infinity, as of a hidden key.
    seen = row.allowed.nonzero()[:, 0].tolist()
    assert len(seen) == KEYS if math.isnan(number) else len(seen) > KEYS // 2
    assert row.weights[row.allowed].isnan().all()
    for key in seen:
        assert [term.name for term in row.terms(key)] == ["q · k", "scaled"]
        assert not math.isfinite(row.terms(key)[-1].result)
    others = [worked_row(layer, 0, 0), worked_row(layer, 1, 1)]
    assert all(math.isfinite(row.lse) and row.weights.isfinite().all() for row in others)


def test_what_was_not_kept_is_said_with_the_remedy() -> None:
    queries, keys = arrays()
    trace = headloom.from_queries_keys(queries, keys, queries_keys=False)
    with pytest.raises(InputError, match=r"not kept\. Trace the model again, with its"):
        worked_row(trace.layers[0], 0, 0)
