"""A layer over texts: against `trace.heads()`, and against loops over the dense weights."""

from __future__ import annotations

import math
from collections import defaultdict

import numpy as np
import pytest

import headloom
from headloom.analysis.heads.corpus import QUANTILES, CorpusLayer
from headloom.api.trace import Trace

TEXTS = [
    "[CLS] the cat saw the dog [SEP]",
    "[CLS] a dog [SEP]",
    "[CLS] so the sea was the sea [SEP]",
]


def trace_of(text: str, seed: int, layers: int = 2) -> Trace:
    tokens = text.split()
    random = np.random.default_rng(seed)
    queries, keys = random.normal(size=(2, layers, 3, len(tokens), 8))
    return headloom.from_queries_keys(queries * 2, keys, tokens=tokens, keep=headloom.Top(16))


@pytest.fixture
def traces() -> list[Trace]:
    return [trace_of(text, seed) for seed, text in enumerate(TEXTS)]


@pytest.fixture
def layer(traces: list[Trace]) -> CorpusLayer:
    found = CorpusLayer(traces[0], 1)
    for number, trace in enumerate(traces):
        found.add(number, trace)
    return found


def test_scores_are_those_of_heads(layer: CorpusLayer, traces: list[Trace]) -> None:
    tables = [trace.heads() for trace in traces]
    for head in range(3):
        spreads = layer.spreads(head)
        for name in ("previous", "next", "same", "first", "entropy", "distance", "duplicate"):
            values = [
                float(table[(table["layer"] == 1) & (table["head"] == head)][name].iloc[0])
                for table in tables
            ]
            known = [value for value in values if math.isfinite(value)]
            assert spreads[name].values == len(known)
            assert spreads[name].mean == pytest.approx(sum(known) / len(known), rel=1e-5)
            assert spreads[name].quantiles == pytest.approx(np.quantile(known, QUANTILES), rel=1e-5)
            assert values[spreads[name].highest] == max(known)
            assert values[spreads[name].lowest] == min(known)
            assert sum(spreads[name].counts) == len(known)


@pytest.mark.parametrize("sinks", [True, False])
def test_exemplars_and_words_by_hand(layer: CorpusLayer, traces: list[Trace], sinks: bool) -> None:
    for head in range(3):
        best, received = [], defaultdict(float)
        counts: dict[str, int] = defaultdict(int)
        rows = 0
        for number, trace in enumerate(traces):
            dense = trace.layers[1].graph.to_dense()[head].double()
            rows += len(dense)
            edges = []
            for key, token in enumerate(trace.tokens):
                if not sinks and (key == 0 or token in ("[CLS]", "[SEP]")):
                    continue
                counts[token] += 1
                received[token] += float(dense[:, key].sum())
                edges += [(float(dense[query, key]), query, key) for query in range(len(dense))]
            weight, query, key = max(edges)
            best.append((weight, number, query, key))
        best.sort(reverse=True)
        found = layer.exemplars(head, sinks=sinks)
        assert [(one.text, one.query, one.key) for one in found] == [one[1:] for one in best]
        assert [one.weight for one in found] == pytest.approx([one[0] for one in best], abs=1e-6)
        one = found[0]
        graph = traces[one.text].layers[1].graph
        assert one.score == pytest.approx(
            math.log(one.weight) + float(graph.lse[head, one.query]), abs=1e-4
        )
        words = layer.words(head, sinks=sinks)
        order = sorted(received, key=lambda word: -received[word])
        assert [word.word for word in words] == order
        for word in words:
            assert word.share == pytest.approx(received[word.word] / rows, abs=1e-6)
            assert word.count == counts[word.word]
            assert word.mean == pytest.approx(received[word.word] / word.count, abs=1e-5)
        if sinks:
            assert sum(word.share for word in words) == pytest.approx(1.0, abs=1e-5)
    assert not layer.bounds


def test_a_query_without_a_choice_is_no_exemplar() -> None:
    tokens = ["The", "cat", "sat", "on"]
    queries, keys = np.random.default_rng(3).normal(size=(2, 1, 2, 4, 8))
    trace = headloom.from_queries_keys(queries, keys, tokens=tokens, mask=headloom.causal())
    layer = CorpusLayer(trace, 0)
    layer.add(0, trace)
    for head in range(2):
        dense = trace.layers[0].graph.to_dense()[head]
        assert float(dense[0, 0]) == 1
        (one,) = layer.exemplars(head, sinks=True)
        assert one.weight == pytest.approx(float(dense[1:].max()), abs=1e-6)
        assert float(dense[one.query, one.key]) == pytest.approx(one.weight, abs=1e-6)
        assert one.query > 0
    alone = headloom.from_queries_keys(queries[:, :, :1], keys[:, :, :1], tokens=["The"])
    layer = CorpusLayer(alone, 0)
    layer.add(0, alone)
    assert layer.exemplars(0, sinks=True) == []


@pytest.mark.parametrize("whole", [True, False])
def test_words_are_of_all_weights_or_of_the_kept_edges(whole: bool) -> None:
    random = np.random.default_rng(1)
    queries, keys = random.normal(size=(2, 1, 2, 30, 8))
    names = [str(place) for place in range(30)]
    trace = headloom.from_queries_keys(
        queries, keys, keep=headloom.Top(3), tokens=names, queries_keys=whole
    )
    layer = CorpusLayer(trace, 0)
    layer.add(0, trace)
    assert layer.bounds != whole
    graph = headloom.from_queries_keys(queries, keys, keep=headloom.Top(30)).layers[0].graph
    dense = graph.to_dense() if whole else trace.layers[0].graph.to_dense()
    for word in layer.words(0, sinks=True):
        assert word.share == pytest.approx(float(dense[0, :, int(word.word)].sum()) / 30, abs=1e-6)
    assert layer.spreads(0)["previous"].bounds == (not whole)
    assert layer.spreads(0)["entropy"].bounds == 0
