"""Traces of edge lists: the edges that are there, and never more than that."""

from __future__ import annotations

from typing import Any

import numpy as np
import pytest
import torch

import headloom
from headloom.analysis.bounds import bounds
from headloom.mechanism.masks import as_mask, causal
from headloom.tracing.given_edges import from_edges

#: One head over three tokens, causal.
ROWS = [(0, 0, 0, 0, 1.0), (0, 0, 1, 1, 0.75), (0, 0, 1, 0, 0.25), (0, 0, 2, 2, 0.5),
        (0, 0, 2, 0, 0.3), (0, 0, 2, 1, 0.2)]  # fmt: skip


def columns(rows: list[Any], **more: Any) -> dict[str, Any]:
    names = ("layer", "head", "query", "key", "weight")
    made = {name: np.array([row[at] for row in rows]) for at, name in enumerate(names)}
    return made | {name: np.array(column) for name, column in more.items()}


def test_whole_rows_are_a_whole_matrix() -> None:
    trace = from_edges(columns(ROWS[::-1]), mask=causal(), tokens=["a", "b", "c"])
    (layer,) = trace.layers
    expected = torch.tensor([[1, 0, 0], [0.25, 0.75, 0], [0.3, 0.2, 0.5]])
    assert torch.equal(layer.graph.to_dense()[0], expected)
    assert (layer.kind, layer.mask, layer.matrix) == ("decoder", "causal", None)
    assert layer.graph.keys[0, 2].tolist() == [2, 0, 1]
    # -(0.5 ln 0.5 + 0.3 ln 0.3 + 0.2 ln 0.2), by hand.
    assert float(layer.graph.entropy[0, 2]) == pytest.approx(1.02965, abs=1e-5)
    assert layer.graph.rest.tolist() == [[0, 0, 0]]
    assert set(headloom.Trace.of(trace).heads()["source"]) == {"exact"}


@pytest.mark.parametrize("mask", [causal(), None])
def test_an_encoder_decoder_has_two_lengths(pair_trace: headloom.Trace, mask: Any) -> None:
    table = pair_trace.to_pandas()
    kinds = [layer.kind for layer in pair_trace.layers]
    given = {
        name: table[name].to_numpy() for name in ("layer", "head", "query", "key", "weight")
    } | {"kind": np.array([kinds[layer] for layer in table["layer"]])}
    trace = from_edges(given, mask=mask)
    for layer, known in zip(trace.layers, pair_trace.layers, strict=True):
        assert (layer.kind, layer.shape) == (known.kind, known.shape)
        assert (layer.queries_from, layer.keys_from) == (known.queries_from, known.keys_from)
        assert torch.allclose(layer.graph.to_dense(), known.graph.to_dense(), atol=1e-6)
        if mask is not None or layer.kind != "decoder":
            assert torch.equal(layer.graph.count, known.graph.count)


def of_pair(pair_trace: headloom.Trace, **more: Any) -> dict[str, Any]:
    """The table of the whole trace of an encoder-decoder, with the names of its tokens."""
    table = pair_trace.to_pandas()
    kinds = [layer.kind for layer in pair_trace.layers]
    given = {name: table[name].to_numpy() for name in ("layer", "head", "query", "key", "weight")}
    ends = list(zip(given["layer"], given["query"], given["key"], strict=True))
    layers = pair_trace.layers
    given["query_token"] = np.array([layers[at].query_tokens[query] for at, query, _ in ends])
    given["key_token"] = np.array([layers[at].key_tokens[key] for at, _, key in ends])
    return given | {"kind": np.array([kinds[layer] for layer in table["layer"]])} | more


def test_the_table_of_an_encoder_decoder_names_its_tokens(pair_trace: headloom.Trace) -> None:
    trace = from_edges(of_pair(pair_trace), mask=None)
    assert {name: list(of) for name, of in trace.sequences.items()} == {
        name: list(of) for name, of in pair_trace.sequences.items()
    }
    # One layer that looks from one at the other, said once for the whole table.
    table = of_pair(pair_trace)
    cross = table["kind"] == "cross"
    alone = {name: column[cross] for name, column in table.items() if name != "kind"}
    layer = from_edges(alone, mask=None, kind="cross").layers[0]
    assert list(layer.query_tokens) == list(pair_trace.sequences["target"])
    assert list(layer.key_tokens) == list(pair_trace.sequences["source"])


def test_a_token_of_an_encoder_decoder_has_one_name(pair_trace: headloom.Trace) -> None:
    table = of_pair(pair_trace)
    tokens = table["key_token"].astype(object)
    place = int(np.flatnonzero(table["kind"] == "cross")[-1])
    tokens[place] = "other"
    with pytest.raises(headloom.InputError, match=r"of the source is .*'other'"):
        from_edges(table | {"key_token": tokens}, mask=None)
    # A sequence of which an edge has no end keeps its numbers; the other one its names.
    some = {name: column[table["query"] != 1] for name, column in table.items()}
    whole = (some["kind"] == "cross") & (some["query"] == 0)
    some = {name: column[whole] for name, column in some.items()}
    some["query"] = some["query"] + 1
    layer = from_edges(some, mask=None, strongest=True).layers[0]
    assert list(layer.query_tokens) == ["position 0", "position 1"]
    assert list(layer.key_tokens) == list(pair_trace.sequences["source"])


def test_of_the_strongest_edges_the_rest_is_known_and_the_entropy_is_not() -> None:
    strongest = [row for row in ROWS if row[3:] != (1, 0.2)]
    with pytest.raises(
        headloom.InputError, match=r"query 2: its weights sum to 0\.8; expected 1.*1 such"
    ):
        from_edges(columns(strongest), mask=causal())
    trace = from_edges(columns(strongest), mask=causal(), strongest=True)
    graph = trace.layers[0].graph
    assert torch.allclose(graph.rest, torch.tensor([[0, 0, 0.2]]))
    assert graph.entropy.isnan().tolist() == [[False, False, True]]
    assert graph.count.tolist() == [[1, 2, 3]]
    table = headloom.Trace.of(trace).heads()
    assert table["source"].tolist() == ["kept"]
    assert bool(table["entropy"].isna().all())


def test_of_the_strongest_edges_little_is_left_over_too() -> None:
    size = 200
    weights = np.full((size, size), 1e-7)
    weights[np.arange(size), np.arange(size)] = 1 - 9e-4
    weights[:, 7] = np.maximum(weights[:, 7], 9e-4)  # of all queries together
    weights /= weights.sum(-1, keepdims=True)
    rows = [(0, 0, i, i, weights[i, i]) for i in range(size)]
    graph = from_edges(columns(rows), mask=None, strongest=True).layers[0].graph
    assert torch.allclose(graph.rest[0].double(), torch.tensor(1 - weights.diagonal()), atol=1e-6)
    got = bounds(graph, "received")
    assert (got.lower[0].numpy() <= weights.sum(0) + 1e-6).all()
    assert (got.upper[0].numpy() >= weights.sum(0) - 1e-6).all()


def test_a_mask_with_gaps_and_a_row_that_looks_nowhere() -> None:
    shown = as_mask(torch.tensor([[1, 0, 1], [0, 0, 0], [1, 1, 1]]).bool())
    rows = [(0, 0, 0, 0, 0.5), (0, 0, 0, 2, 0.4999), (0, 0, 2, 0, 1.0)]
    graph = from_edges(columns(rows), mask=shown, strongest=True).layers[0].graph
    assert graph.count.tolist() == [[2, 0, 3]]
    assert graph.rest.tolist() == [[0, 0, 0]]  # every key of a row is there, to rounding
    assert graph.lse.tolist() == [[0, -torch.inf, 0]]
    assert not graph.entropy.isnan().any()
    with pytest.raises(headloom.InputError, match="query 0: an edge at a key that the mask hides"):
        from_edges(columns([*rows, (0, 0, 0, 1, 0.0)]), mask=shown)


def changed(place: int, **values: Any) -> dict[str, Any]:
    made = columns(ROWS)
    for name, value in values.items():
        made[name] = made[name].copy()
        made[name][place] = value
    return made


@pytest.mark.parametrize(
    ("given", "options", "line"),
    [
        (changed(0, weight=np.nan), {}, "a weight of nan in row 0 of the table"),
        (changed(1, weight=-0.1), {}, r"a weight of -0\.1 in row 1"),
        (changed(1, weight=0.9), {}, r"query 1: its weights sum to 1\.15"),
        (changed(2, key=1), {}, "head 0, query 1: an edge occurs twice"),
        (changed(2, key=2), {}, "query 1: an edge at a key that the mask hides"),
        (changed(5, key=-1), {}, "the column key holds int64 from -1"),
        (
            columns([row for row in ROWS if row[2] != 1]),
            {},
            "query 1: its weights sum to 0; expected 1",
        ),
        (columns(ROWS), {"tokens": ["a", "b"]}, "has 3 positions, the sequence 'tokens' 2 tokens"),
        (columns(ROWS), {"kind": "both"}, "kind 'both'; expected"),
        (columns(ROWS, query_token=list("abbccc"), key_token=list("abacxb")), {}, "position 0 of"),
    ],
)
def test_what_is_no_list_of_edges_is_told_in_one_line(given, options, line) -> None:
    with pytest.raises(headloom.InputError, match=line) as raised:
        from_edges(given, mask=causal(), **options)
    assert "\n" not in str(raised.value)


def test_an_edge_list_takes_no_memory_by_the_square_of_its_positions() -> None:
    none = np.zeros(2, dtype=np.int64)
    few = {"layer": none, "head": none, "query": np.array([0, 200_000]), "key": np.array([0, 7]),
           "weight": np.array([1.0, 1.0])}  # fmt: skip
    graph = from_edges(few, mask=causal(), strongest=True).layers[0].graph  # 40 GB of cells
    assert graph.count[0, [0, 200_000]].tolist() == [1, 200_001]
    few["query"] = few["query"][::-1]
    with pytest.raises(headloom.InputError, match="query 0: an edge at a key that the mask hides"):
        from_edges(few, mask=causal(), strongest=True)
