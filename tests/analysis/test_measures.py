"""The tables of measures: each column is what its function says, and the verbs print them."""

from __future__ import annotations

from pathlib import Path

import pytest
import torch

import headloom
from headloom.analysis import measures
from headloom.analysis.graphs.flow import attention_flow
from headloom.analysis.graphs.token_clusters import token_clusters
from headloom.analysis.measures import graph_measures
from headloom.mechanism.reference import graphs as reference

pytest.importorskip("pandas")


def test_a_row_for_each_head_and_each_layer(minilm_trace, minilm_weights) -> None:
    heads, layers = graph_measures(minilm_trace), graph_measures(minilm_trace, by="layer")
    assert list(zip(heads["layer"], heads["head"], strict=True)) == [
        (layer, head) for layer in range(6) for head in range(12)
    ]
    assert set(heads["source"]) == set(layers["source"]) == {"exact"}
    for number, weights in enumerate(minilm_weights):
        row, of_heads = layers.iloc[number], heads[heads["layer"] == number]
        mean = weights.mean(0)
        assert row["received_key"] == int(mean.sum(0).argmax())
        assert row["received_token"] == minilm_trace.tokens[row["received_key"]]
        assert row["received_share"] == pytest.approx(float(mean.sum(0).max()) / 19, abs=1e-5)
        assert row["pagerank"] == pytest.approx(float(reference.pagerank(mean).max()), abs=1e-5)
        for head, of_head in zip(of_heads.itertuples(), weights, strict=True):
            received = of_head.sum(0)
            assert head.received_key == int(received.argmax())
            assert head.received_share == pytest.approx(float(received.max()) / 19, abs=1e-5)
            both = float(reference.reciprocity(of_head))
            assert head.reciprocity == pytest.approx(both, abs=1e-5)
        for name in ("entropy", "reciprocity", "rank"):
            assert row[name] == pytest.approx(of_heads[name].mean(), abs=1e-5)


def test_of_kept_edges_what_they_lack_is_said(minilm_trace, minilm_top) -> None:
    truth, kept = graph_measures(minilm_trace), graph_measures(minilm_top, exact=False)
    assert set(kept["source"]) == {"kept"} and not truth["rest"].any()
    for row in kept.itertuples():
        graph = minilm_top.layers[row.layer].graph
        assert row.rest == pytest.approx(float(graph.rest[row.head].mean()), abs=1e-6)
        strength = graph.strength()[row.head]
        assert row.received_share == pytest.approx(float(strength.max() / strength.sum()), abs=1e-6)
    assert (kept["entropy"] - truth["entropy"]).abs().max() < 1e-5
    # Parts that edges may join are no fewer than there are.
    assert (kept["parts"] >= truth["parts"]).all()
    table = measures.graphs(minilm_top, exact=False)
    (note,) = table.attrs["notes"]
    assert note == "Of the kept edges; rest is the mean mass of a row on other keys."
    few = headloom.from_weights(torch.rand(1, 9, 9).softmax(-1), keep=headloom.Top(3))
    with pytest.raises(headloom.InputError, match="were not kept"):
        graph_measures(few, exact=True)


@pytest.mark.parametrize("by", ["head", "layer"])
def test_of_no_token_and_of_one(make_trace, by) -> None:
    nothing = graph_measures(make_trace([]), by=by)
    assert len(nothing) == (2 if by == "head" else 1)
    alone = graph_measures(make_trace(["a"]), by=by)
    assert set(alone["received_share"]) == {1.0} == set(alone["rank"])
    assert (alone["pagerank"] - 1).abs().max() < 1e-6
    assert set(alone["parts"]) == {1}


def test_a_share_is_of_the_mass_on_keys() -> None:
    """Which is less than the number of rows where one sees nothing, or a sink takes some."""
    queries = torch.randn(2, 5, 8, generator=torch.Generator().manual_seed(1))
    mask = torch.ones(5, 5).bool()
    mask[2] = False
    options = {"mask": mask, "sinks": torch.tensor([1.0, -1.0])}
    trace = headloom.from_queries_keys(queries, queries + 1, keep=headloom.Top(2), **options)
    _, dense = headloom.attend(queries, queries + 1, queries, keep=headloom.All(), **options)
    shares = dense.sum(1) / dense.sum((1, 2))[:, None]
    for row, share in zip(graph_measures(trace).itertuples(), shares, strict=True):
        assert row.received_share == pytest.approx(float(share.max()), abs=1e-6)
    (row,) = graph_measures(trace, by="layer").itertuples()
    assert row.received_share == pytest.approx(float(dense.sum((0, 1)).max() / dense.sum()))


def test_two_sequences_of_one_length_are_two(translator) -> None:
    same = {"source": torch.tensor([3, 9, 9, 2]), "target": torch.tensor([1, 8, 30, 41])}
    trace = headloom.trace(translator, same)
    for by in ("layer", "head"):
        table = graph_measures(trace, by=by).set_index("kind")
        of_two = table[["reciprocity", "pagerank", "parts"]].isna().all(axis=1)
        assert of_two["cross"].all() and not of_two[["encoder", "decoder"]].any()


def test_the_rank_of_many_positions_is_left_out(minilm_trace) -> None:
    assert graph_measures(minilm_trace, by="layer", exact_rank=18)["rank"].isna().all()


def test_measures_of_rounded_queries_and_keys_say_so(tmp_path) -> None:
    parts = torch.randn(2, 1, 6, 4, generator=torch.Generator().manual_seed(1))
    for keep, source in ((headloom.Top(2), "rounded"), (headloom.Top(6), "exact")):
        path = tmp_path / source
        headloom.from_queries_keys(*parts, save=path, dtype=torch.float16, keep=keep)
        table = measures.graphs(headloom.open(path))
        assert set(table["source"]) == {source}
        assert any("float16" in note for note in table.attrs["notes"]) == (source == "rounded")
    # All edges are those of the model: as of the trace that was never stored.
    own = graph_measures(headloom.from_queries_keys(*parts, keep=headloom.Top(6)), by="layer")
    assert table["rank"].tolist() == pytest.approx(own["rank"].tolist(), abs=1e-5)


@pytest.fixture
def odd(tmp_path: Path) -> Path:
    """Two heads of eight tokens: odd ones look at odd ones; a sink at the first in one of them."""
    places = torch.eye(2).repeat(4, 1).expand(2, -1, -1) * 3
    keys = places.clone()
    keys[1, 0] = 6.0
    tokens = [f"w{number}" for number in range(8)]
    headloom.from_queries_keys(
        places, keys, tokens=tokens, kind="encoder", keep=headloom.Top(2), save=tmp_path / "odd"
    )
    return tmp_path / "odd"


def test_clusters_of_layers_and_of_a_head(odd: Path) -> None:
    trace = headloom.open(odd)
    (row,) = measures.clusters(trace, count=2).itertuples()
    assert (row.clusters, row.source) == (2, "exact") and 0 <= row.least <= row.cut
    table = measures.clusters(trace, layer="0", head=0, count=2)
    found = token_clusters(trace.layers[0].matrix, 2, head=0)
    by_position = table.sort_values("position")
    assert by_position["cluster"].tolist() == found.labels.tolist() == [0, 1] * 4
    assert f"head 0: normalized cut {found.cut:.4f}" in table.attrs["title"]
    fewer = measures.clusters(trace, count=20)
    assert any(note.startswith("8 clusters, not 20") for note in fewer.attrs["notes"])
    assert "Of the kept edges." in measures.clusters(trace, exact=False).attrs["notes"]


def test_rollout_and_flow(minilm_trace, minilm_top, pair_trace) -> None:
    table = measures.rollout(minilm_trace, token=0)
    assert table.attrs["title"] == "[CLS] (0) holds:"
    by_position = table.sort_values("position")["share"].round(4).tolist()
    assert [by_position[0], by_position[18]] == pytest.approx([0.6555, 0.0876], abs=1e-6)
    assert table["share"].is_monotonic_decreasing
    column = measures.rollout(pair_trace, reached=True)
    assert column.attrs["title"].endswith("went to:")
    assert not any("Rows lack" in note for note in column.attrs["notes"])
    flows = measures.flow(minilm_trace, token=-1)
    expected = attention_flow(minilm_trace, -1, [2, -1])
    found = dict(zip(flows["position"], flows["flow"], strict=True))
    assert [found[2], found[18]] == pytest.approx(expected.tolist())
    assert "Along the kept edges" in measures.flow(minilm_top, exact=False).attrs["notes"][-1]
    long = headloom.from_weights(torch.full((1, 257, 257), 1 / 257), keep=headloom.Top(2))
    with pytest.raises(headloom.InputError, match="257 input positions"):
        measures.flow(long)
    # Half of 1 comes past the layer; of the other half, 2 weights of 257 were kept.
    (note,) = measures.rollout(long, reached=True).attrs["notes"]
    assert note.startswith(
        f"Rows lack up to {0.5 * 255 / 257:.2g}: what went along edges that were"
    )
