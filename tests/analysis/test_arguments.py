"""Analyses that are given what does not fit: each says so in one line, whatever it is."""

from __future__ import annotations

import dataclasses
import inspect
import math
from collections.abc import Callable
from typing import Any, NamedTuple

import numpy as np
import pytest
import torch

import headloom
from headloom.analysis.alignment.align import align
from headloom.analysis.arguments import in_words, real_number
from headloom.analysis.compare import changed_edges, compare, first_difference, matched_layers
from headloom.analysis.compare import distance as row_distance
from headloom.analysis.dense_layer import layer_of_weights
from headloom.analysis.eviction.evict import evict
from headloom.analysis.graphs.components import components
from headloom.analysis.graphs.flow import attention_flow
from headloom.analysis.graphs.norms import given_by_edges, given_by_rows, norms_of_heads
from headloom.analysis.graphs.pagerank import pagerank
from headloom.analysis.graphs.paths import strongest_paths
from headloom.analysis.graphs.reciprocity import reciprocity
from headloom.analysis.graphs.rollout import (
    ends,
    passed_over,
    rollout,
    rollout_columns,
    rollout_rows,
)
from headloom.analysis.graphs.spectrum import effective_rank, energy_rank
from headloom.analysis.graphs.strength import heavy_hitters, received
from headloom.analysis.graphs.table import graph_measures
from headloom.analysis.heads import measures
from headloom.analysis.heads.formation import formation, trace_of_snapshot
from headloom.analysis.heads.patterns import allowed_keys, punctuation_marks, separators
from headloom.analysis.heads.retrieval import Needle, find_needle, needle_mass, retrieval
from headloom.analysis.heads.roles import head_roles, layer_scores, special_keys
from headloom.analysis.heads.similarity import clusters, similarity
from headloom.analysis.heads.sinks import looked_at, sink_keys
from headloom.analysis.heads.stripes import sink, vertical
from headloom.analysis.image_map import image_map
from headloom.analysis.joint_projection import joint_projection
from headloom.analysis.matrices.circuits import ov_circuit, qk_circuit
from headloom.analysis.matrices.composition import composition, composition_table
from headloom.analysis.matrices.projections import matrices_of
from headloom.analysis.matrices.table import history_measures, weight_measures
from headloom.analysis.overview import overview
from headloom.analysis.sql.query import ask, open_traces
from headloom.analysis.worked_row import worked_row
from headloom.formats.pharaoh import GoldLinks
from headloom.formats.traced_images import Tile, TracedImage


def drawn(*shape: int) -> torch.Tensor:
    return torch.randn(*shape, generator=torch.Generator().manual_seed(len(shape)))


TRACE: Any = headloom.from_queries_keys(
    drawn(2, 3, 6, 4), drawn(2, 3, 6, 4) + 1, drawn(2, 3, 6, 4), mask=headloom.causal(),
    tokens=["a", "b", "a", "b", "c", "d"],
)  # fmt: skip
LAYER = TRACE.layers[0]
PAIR: Any = headloom.from_weights(
    drawn(1, 3, 4, 4).softmax(-1), kind="cross",
    tokens={"source": ["the", "dog", "saw", "it"], "target": ["der", "hund", "sah", "es"]},
)  # fmt: skip
IMAGES = dataclasses.replace(
    TRACE,
    positions={
        "tokens": {
            "images": [0, 0, 0, 0, -1, -1], "tiles": [0, 0, 0, 0, -1, -1],
            "rows": [0, 0, 1, 1, -1, -1], "columns": [0, 1, 0, 1, -1, -1],
        }
    },
    images=(TracedImage((4, 4), (Tile((0, 0, 4, 4), 2, 2),)),),
)  # fmt: skip
MODEL = headloom.MultiHeadAttention(8, 2)
(MATRICES,) = matrices_of(MODEL)
CIRCUIT = ov_circuit(MATRICES)
NEEDLE = Needle(0, 3, 2)
LINKS = GoldLinks.of_line("0-0")


class Case(NamedTuple):
    function: Callable[..., Any]
    right: dict[str, Any]


OF_LAYERS = [
    Case(function, {"layer": LAYER})
    for name in measures.__all__
    if list(inspect.signature(function := getattr(measures, name)).parameters) == ["layer"]
]
CASES = [
    *OF_LAYERS,
    Case(TRACE.heads, {"exact": None}),
    Case(TRACE.rollout, {"kind": None, "exact": None}),
    Case(TRACE.evict, {"budgets": (0.5,), "policies": None, "prompt": None, "each_step": False}),
    Case(TRACE.sql, {"query": "select 1"}),
    Case(TRACE.layer, {"kind": "decoder", "index": 0}),
    Case(TRACE.save, {"path": None}),
    Case(headloom.Trace.of, {"data": TRACE}),
    Case(headloom.Trace.open, {"path": None}),
    Case(compare, {"first": TRACE, "second": TRACE, "exact": None, "edges": 3}),
    Case(row_distance, {"first": LAYER, "second": LAYER, "exact": None}),
    Case(lambda **given: changed_edges(0, **given), {"first": LAYER, "second": LAYER, "head": 0,
                                                     "wanted": 3, "exact": None}),
    Case(first_difference, {"first": TRACE, "second": TRACE}),
    Case(matched_layers, {"first": TRACE, "second": TRACE}),
    Case(layer_of_weights, {"weights": drawn(1, 2, 2), "tokens": None, "key_tokens": None,
                            "mask": "all", "keep": None}),
    Case(evict, {"trace": TRACE, "budgets": (0.5,), "policies": None, "prompt": None,
                 "each_step": False}),
    Case(components, {"source": LAYER.graph, "threshold": 0.1, "strong": False,
                      "together": False}),
    Case(attention_flow, {"trace": TRACE, "position": 1, "targets": 0, "kind": None,
                          "exact": None, "residual": 0.5, "edges": 32}),
    Case(given_by_edges, {"graph": LAYER.graph, "value_norms": LAYER.value_norms}),
    Case(given_by_rows, {"source": LAYER.graph, "value_norms": LAYER.value_norms}),
    Case(norms_of_heads, {"layer": LAYER}),
    Case(pagerank, {"source": LAYER.graph, "damping": 0.85, "tolerance": 1e-6, "steps": 99,
                    "edges": None}),
    Case(strongest_paths, {"trace": TRACE, "position": 1, "target": 0, "count": 5, "kind": None,
                           "exact": None, "residual": 0.5}),
    Case(reciprocity, {"source": LAYER.graph}),
    Case(rollout, {"trace": TRACE, "kind": None, "exact": None, "residual": 0.5, "force": False}),
    Case(rollout_rows, {"trace": TRACE, "positions": 1, "exact": None, "residual": 0.5}),
    Case(rollout_columns, {"trace": TRACE, "positions": 1, "exact": None, "residual": 0.5}),
    Case(passed_over, {"trace": TRACE, "kind": None}),
    Case(ends, {"trace": TRACE, "kind": None}),
    Case(effective_rank, {"source": LAYER.matrix}),
    Case(energy_rank, {"source": LAYER.graph, "leading": 32, "exact_up_to": 512, "seed": 0}),
    Case(heavy_hitters, {"source": LAYER.graph, "share": 0.9, "together": False}),
    Case(received, {"source": LAYER.graph, "value_norms": None}),
    Case(graph_measures, {"trace": TRACE, "by": "head", "exact": None, "share": 0.9,
                          "threshold": 0.1, "exact_rank": 512}),
    Case(measures.local_window, {"layer": LAYER, "reach": 4}),
    Case(measures.separator, {"layer": LAYER, "at": None}),
    Case(head_roles, {"traces": TRACE, "exact": None, "reach": 4, "alpha": 0.01, "least": 0.2}),
    Case(layer_scores, {"layer": LAYER, "special": None, "reach": 4, "sinks": None,
                        "without": ()}),
    Case(special_keys, {"trace": TRACE, "sequence": "tokens"}),
    Case(find_needle, {"tokens": ["a", "b", "c", "d", "a", "b"], "text": None}),
    Case(needle_mass, {"layer": LAYER, "needle": NEEDLE}),
    Case(retrieval, {"trace": TRACE, "needle": NEEDLE}),
    Case(similarity, {"trace": TRACE, "exact": None, "layers": None}),
    Case(clusters, {"alike": similarity(TRACE), "count": None, "distance": 0.5}),
    Case(looked_at, {"layer": LAYER, "reach": 4}),
    Case(sink_keys, {"layers": TRACE.layers, "reach": 4}),
    Case(sink, {"layer": LAYER, "at": [0]}),
    Case(vertical, {"layer": LAYER}),
    Case(lambda history: formation(history, "first"), {"history": None}),
    Case(trace_of_snapshot, {"snapshot": None}),
    Case(allowed_keys, {"layer": LAYER}),
    Case(separators, {"tokens": ["a", "b"]}),
    Case(punctuation_marks, {"tokens": ["a", "b"]}),
    Case(image_map, {"trace": IMAGES, "layer": 0, "head": 0, "token": 4, "image": 0,
                     "size": None}),
    Case(joint_projection, {"queries": LAYER.queries[0], "keys": LAYER.keys[0]}),
    Case(qk_circuit, {"layer": MATRICES, "embedding": None}),
    Case(ov_circuit, {"layer": MATRICES, "embedding": None}),
    Case(CIRCUIT.dense, {"head": 0}),
    Case(CIRCUIT.operator, {"head": 0}),
    Case(composition, {"first": CIRCUIT, "second": CIRCUIT}),
    Case(composition_table, {"layers": [MATRICES, MATRICES]}),
    Case(matrices_of, {"model": MODEL}),
    Case(weight_measures, {"layers": [MATRICES], "by": "layer"}),
    Case(history_measures, {"history": None}),
    Case(overview, {"layer": LAYER, "most": 3}),
    Case(ask, {"trace": TRACE, "query": "select 1"}),
    Case(open_traces, {"path": None}),
    Case(worked_row, {"layer": LAYER, "head": 0, "query": 0}),
]  # fmt: skip

#: Values that may all be wrong. What fits is taken as it is.
WRONG = [
    None, "dog", "", -1, 10**30, math.nan, math.inf, 0.5, True, [], ["x"], [None], {}, object(),
    drawn(3), torch.full((3, 6), math.nan), np.zeros((2, 2)), torch.zeros(2, 3, 3).to_sparse(),
    torch.zeros(3, 6, 6, dtype=torch.complex64), b"x", int, LAYER, TRACE, LAYER.graph,
]  # fmt: skip


@pytest.mark.filterwarnings("ignore:align. too few words")
@pytest.mark.parametrize(
    "case", CASES, ids=lambda case: getattr(case.function, "__name__", "function")
)
def test_what_does_not_fit_is_one_line(case: Case, tmp_path, monkeypatch) -> None:
    monkeypatch.chdir(tmp_path)  # a path that is right is one of a file
    function, right = case
    for name in right:
        for value in WRONG:
            try:
                function(**{**right, name: value})
            except headloom.HeadloomError as error:
                line = str(error)
                assert "\n" not in line and len(line) < 330, (name, value)
            else:
                of_type = name in ("trace", "layer", "first", "second", "history", "snapshot")
                assert not of_type or isinstance(value, (type(TRACE), type(LAYER))), (name, value)


def test_what_is_wrong_is_named() -> None:
    for wrong, line in (
        (lambda: rollout(TRACE, residual="dog"), "rollout: residual='dog'; expected a number from"),
        (lambda: rollout([TRACE]), "rollout: trace is a list of 1; expected one trace"),
        (
            lambda: rollout(LAYER),
            "rollout: trace is an object of type TraceLayer; expected a trace, as from "
            "headloom.trace",
        ),
        (lambda: received(None), "received: the weights are None, as of a layer whose queries"),
        (lambda: TRACE.heads(exact="yes"), "head_roles: exact='yes'; expected True, False or None"),
        (lambda: strongest_paths(TRACE, 0, 0, count=0), "paths: count is 0; expected a whole"),
        (lambda: align("a"), "align: traces is 'a'; expected a trace, or a list of traces"),
        (lambda: similarity(TRACE, layers=[2]), "no layer 2; the trace has layers 0 to 1"),
        (lambda: worked_row(LAYER, 3, 0), "worked_row: no head 3; the layer has heads 0 to 2"),
        (lambda: image_map(IMAGES, 0, 9, 4), "image_map: head 9; layer layers.0 has the heads 0"),
        (lambda: image_map(IMAGES, 0, 0, 4, image=3), "image_map: image 3; the text has one"),
        (lambda: TRACE.view(port=70_000, browser=False), "view: port is 70000; expected a whole"),
        (lambda: TRACE.view(port="dog", browser=False), "view: port is 'dog'; expected a whole"),
        (lambda: pagerank(LAYER.graph, damping=1), "damping=1; expected a number from 0, below 1"),
    ):
        with pytest.raises(headloom.InputError) as caught:
            wrong()
        assert line in str(caught.value)


def test_numbers_of_other_libraries_are_numbers() -> None:
    whole = rollout(TRACE)
    one = rollout_rows(TRACE, np.int64(-1)).values
    assert torch.allclose(one[0], whole[-1]) and torch.equal(
        rollout_rows(TRACE, torch.tensor([5])).values, one
    )
    assert torch.equal(rollout(TRACE, residual=np.float32(0.5)), whole)
    flow = attention_flow(TRACE, np.int64(5), np.arange(6))
    assert torch.equal(flow.lower, attention_flow(TRACE, 5, range(6)).lower)


def test_the_bounds_of_a_number_are_said() -> None:
    assert real_number("a", "b", 0.25) == 0.25
    for bounds, said in (
        ({}, "from 0 to 1"),
        ({"above": True}, "above 0, at most 1"),
        ({"below": True}, "from 0, below 1"),
        ({"above": True, "below": True}, "above 0, below 1"),
        ({"most": math.inf}, "from 0"),
    ):
        with pytest.raises(headloom.InputError, match=f"a: b=-1; expected a number {said}"):
            real_number("a", "b", -1, **bounds)
    assert in_words(torch.ones(2, 3)) == "a tensor (2, 3)"
    assert in_words(LAYER.graph) == "an object of type AttentionGraph"
    assert in_words([1, 2]) == "[1, 2]" and in_words([[1], [2]]) == "a list of 2"
