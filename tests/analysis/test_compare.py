"""Two traces side by side, against dense weights."""

from __future__ import annotations

import pytest
import torch
from tests.cli.conftest import headloom_main

import headloom
from headloom.analysis.compare import (
    changed_edges,
    compare,
    distance,
    first_difference,
    matched_layers,
)

__all__ = ["headloom_main"]
pytest.importorskip("pandas")


@pytest.fixture
def traces(language_model) -> tuple[headloom.Trace, headloom.Trace, list[list[torch.Tensor]]]:
    """The same tokens read by a model before and after its second layer changed, and dense."""
    tokens = torch.randint(1, 50, (40,), generator=torch.Generator().manual_seed(8))
    before = headloom.trace(language_model, tokens, keep=headloom.Top(6))
    with torch.no_grad():
        language_model.layers[1].w_q.weight[4:8] *= -3  # head 1
    after = headloom.trace(language_model, tokens, keep=headloom.Top(6))
    dense = [[layer.matrix.to_dense() for layer in trace.layers] for trace in (before, after)]
    return before, after, dense


def test_the_head_that_changed_is_found(traces) -> None:
    before, after, dense = traces
    found = compare(before, after)
    expected = torch.stack(
        [(a - b).abs().sum(-1).mean(-1) / 2 for a, b in zip(*dense, strict=True)]
    )
    table = found.heads
    for row in table.itertuples():
        assert row.exact
        assert row.distance == pytest.approx(float(expected[row.layer, row.head]), abs=1e-6)
    assert (table.iloc[0]["layer"], table.iloc[0]["head"]) == (1, 1)
    assert table.iloc[0]["distance"] > 0.05
    assert table.iloc[1]["distance"] < 1e-6
    assert found.tokens == (0, 40)
    difference = after.layers[1].graph.entropy[1].mean() - before.layers[1].graph.entropy[1].mean()
    assert table.iloc[0]["entropy_change"] == pytest.approx(float(difference))


def test_the_edge_that_changed_most_is_found(traces) -> None:
    before, after, dense = traces
    found = compare(before, after, edges=5)
    change = (dense[1][1] - dense[0][1])[1]
    (largest,) = (change.abs() == change.abs().max()).nonzero()[:1].tolist()
    edges = list(found.edges.itertuples())
    first = edges[0]
    assert (first.layer, first.head, [first.query, first.key]) == (1, 1, largest)
    for edge in edges:
        assert not edge.unkept
        assert edge.before == pytest.approx(
            float(dense[0][edge.layer][edge.head, edge.query, edge.key]), abs=1e-6
        )
        assert edge.after == pytest.approx(
            float(dense[1][edge.layer][edge.head, edge.query, edge.key]), abs=1e-6
        )
    changes = [abs(edge.after - edge.before) for edge in edges]
    assert changes == sorted(changes, reverse=True)
    assert first.query_token == before.tokens[largest[0]]


def test_of_kept_edges_a_change_is_at_least_so_much(traces, minilm_trace, minilm_top) -> None:
    before, after, dense = traces
    for layer, (a, b) in enumerate(zip(*dense, strict=True)):
        expected = (a - b).abs().sum(-1).mean(-1) / 2
        found, of_all = distance(before.layers[layer], after.layers[layer], exact=False)
        assert not of_all and bool((found <= expected + 1e-6).all())
        if layer:
            assert float(found[1]) > 0.5 * float(expected[1])
    for edge in compare(before, after, exact=False, edges=50).edges.itertuples():
        ends = (edge.before, dense[0]), (edge.after, dense[1])
        for name, (weight, of) in zip(("before", "after"), ends, strict=True):
            true = float(of[edge.layer][edge.head, edge.query, edge.key])
            if edge.unkept == name:  # the most that it can be
                assert true <= weight + 1e-6
            else:
                assert weight == pytest.approx(true, abs=1e-6)
    for one, two in zip(minilm_trace.layers, minilm_top.layers, strict=True):
        for exact in (None, False):
            assert float(distance(one, two, exact=exact)[0].max()) < 1e-6


def test_of_all_edges_beside_queries_and_keys_it_is_of_all_weights() -> None:
    given = torch.rand(1, 3, 7, 7, generator=torch.Generator().manual_seed(1)).softmax(-1)
    queries, keys = torch.randn(2, 1, 3, 7, 4, generator=torch.Generator().manual_seed(5))
    theirs = (queries[0].double() @ keys[0].double().mT / 2).softmax(-1)
    ours = headloom.from_weights(given, keep=headloom.All()).layers[0]
    other = headloom.from_queries_keys(queries, keys, keep=headloom.Top(2)).layers[0]
    expected = (given[0].double() - theirs).abs().sum(-1).mean(-1) / 2
    for pair in ((ours, other), (other, ours)):
        found, of_all = distance(*pair)
        assert of_all and torch.allclose(found.double(), expected, atol=1e-6)


def test_layers_that_do_not_fit(make_trace, minilm_trace, pair_trace) -> None:
    said = "2 queries and 2 keys in the first, 2 heads, 1 queries and 1 keys in the second"
    with pytest.raises(headloom.InputError, match=said):
        compare(make_trace(["a", "b"]), make_trace(["a"]))
    with pytest.raises(headloom.InputError, match="queries and keys were not kept"):
        compare(*[make_trace(["a", "b"], keep=1)] * 2, exact=True)
    part = type(pair_trace)(pair_trace.sequences, pair_trace.layers[1:], {})
    assert matched_layers(pair_trace, part) == [(1, 0), (2, 1)]
    with pytest.raises(
        headloom.InputError, match="first are encoder, of the second cross and decoder"
    ):
        matched_layers(minilm_trace, part)


def test_the_command(traces, tmp_path, headloom_main) -> None:
    before, after, _ = traces
    after.save(tmp_path / "c")
    words = "compare", str(tmp_path / "a"), str(tmp_path / "c"), "--limit", "3", "--json"
    before.save(tmp_path / "a")
    before.save(tmp_path / "b")
    found = headloom_main(*words).json()
    assert (found["heads"][0]["layer"], found["heads"][0]["head"]) == (1, 1)
    assert len(found["heads"]) == len(found["edges"]) == 3
    words = ("compare", str(tmp_path / "a"), str(tmp_path / "b"))
    assert headloom_main(*words).out.splitlines() == [
        "0 of 40 tokens differ.",
        "The weights are equal: none of the 8 heads changed.",
    ]
    found = headloom_main(*words, "--json").json()
    assert found["equal"] is True and found["edges"] == []
    assert {head["distance"] for head in found["heads"]} == {0.0}
    # What six edges of a row do not tell is not called equal.
    out = headloom_main(*words, "--kept").out
    assert out.splitlines()[1] == "The kept edges are the same; others are not known."
    assert "equal" not in out


@pytest.mark.parametrize("kept", [(0, 3), (1, 40), (3, 5)])
def test_the_most_changed_edges_are_found_whatever_was_kept(kept: tuple[int, int]) -> None:
    """By brute force over the edges that one of two traces kept, from weights in float64."""
    generator = torch.Generator().manual_seed(4)
    drawn = torch.randn(2, 2, 1, 40, 8, generator=generator) * 2
    layers = [
        headloom.from_queries_keys(*of, keep=headloom.Top(count)).layers[0]
        for of, count in zip(drawn, kept, strict=True)
    ]
    dense = [
        (queries.double() @ keys.double().mT / 8**0.5).softmax(-1)[0] for queries, keys in drawn
    ]
    difference, there = (dense[1] - dense[0]).abs(), torch.zeros(40, 40, dtype=torch.bool)
    for weights, count in zip(dense, kept, strict=True):
        there.scatter_(1, weights.topk(count).indices, True)
    expected = difference.masked_fill(~there, 0).flatten().topk(12).values
    found = changed_edges(*layers, 0, 12)[:12]
    assert not any(change.unkept for change in found)
    sizes = torch.tensor([abs(change.after - change.before) for change in found])
    assert torch.allclose(sizes.double(), expected, atol=1e-5)


def test_an_edge_that_is_as_before_is_not_listed(traces) -> None:
    before, after, _ = traces
    found = compare(before, after, edges=10_000)
    assert len(found.edges) and (found.edges["before"] != found.edges["after"]).all()
    assert not len(compare(before, before).edges)
    assert compare(before, before).most == 0


def test_the_first_token_that_differs_is_named(make_trace, pair_trace) -> None:
    one = make_trace(["a", " b", "c"])
    assert first_difference(one, make_trace(["a", " b", "c"])) == ""
    assert first_difference(one, make_trace(["a", "x\n", "y"]), ("A", "B")) == (
        "Token 1 is the first that differs: “␣b” in A, “x⏎” in B."
    )
    assert first_difference(one, make_trace(["a", " b"]), ("A", "B")) == (
        "There are 3 tokens in A, 2 in B: at token 2 only A goes on, with “c”."
    )
    assert first_difference(one, pair_trace, ("A", "B")) == (
        "The traces are of other kinds: A has tokens, B has source and target."
    )


def test_edges_name_the_tokens_of_both_traces(tmp_path, headloom_main) -> None:
    for seed, name in enumerate(("John", "Mary")):
        weights = torch.rand(1, 3, 3, generator=torch.Generator().manual_seed(seed)).softmax(-1)
        headloom.from_weights(weights, tokens=[f" {name}", "gave", "it"], save=tmp_path / name)
    first, second = (headloom.Trace.open(tmp_path / name) for name in ("John", "Mary"))
    table = compare(first, second, exact=False).edges
    for _, edge in table.iterrows():
        for end in ("query", "key"):
            assert edge[f"{end}_token"] == [" John", "gave", "it"][edge[end]]
            assert edge[f"other_{end}_token"] == [" Mary", "gave", "it"][edge[end]]
    out = headloom_main("compare", tmp_path / "John", tmp_path / "Mary").out
    assert "␣John/␣Mary" in out
    assert "gave/" not in out


def test_two_models_are_compared_on_a_text_and_two_paths_as_their_traces(traces, tmp_path) -> None:
    before, after, _ = traces
    for trace, name in ((before, "a"), (after, "b")):
        trace.save(tmp_path / name)
    compared = headloom.compare(tmp_path / "a", after)
    assert compared.to_pandas().equals(headloom.compare(before, tmp_path / "b").heads)
    assert "0 of 40 tokens differ." in repr(compared) and "distance" in repr(compared)
    minilm = headloom.load("minilm")
    same = headloom.compare("minilm", minilm.module, "a dog")
    assert not same.changed and same.tokens == (0, 4)
    for wrong, line in (
        (("minilm", "minilm"), "no such trace|not a trace"),
        ((minilm, minilm), r"give a text that both read: headloom.compare\(a, b, text\)"),
        ((before, after, "text"), "traces have texts of their own"),
    ):
        with pytest.raises(headloom.HeadloomError, match=line):
            headloom.compare(*wrong)
    with pytest.raises(AttributeError, match=r"Comparison has no to_frame; use to_pandas\(\)"):
        _ = compared.to_frame
