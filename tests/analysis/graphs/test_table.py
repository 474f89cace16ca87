"""The table of graph measures: each column is what its function says."""

from __future__ import annotations

import json
import re

import pytest
import torch

import headloom
from headloom.analysis.graphs.table import graph_measures
from headloom.api.trace import Trace
from headloom.cli import main
from headloom.formats.trace import LayerInMemory, TraceLayer
from headloom.mechanism.reference import graphs as reference

pytest.importorskip("pandas")


def test_a_row_for_each_head_and_each_layer(minilm_trace, minilm_weights) -> None:
    heads = graph_measures(minilm_trace)
    layers = graph_measures(minilm_trace, by="layer")
    assert list(zip(heads["layer"], heads["head"], strict=True)) == [
        (layer, head) for layer in range(6) for head in range(12)
    ]
    assert set(heads["source"]) == set(layers["source"]) == {"exact"}
    for number, weights in enumerate(minilm_weights):
        row = layers.iloc[number]
        mean = weights.mean(0)
        assert row["received_key"] == int(mean.sum(0).argmax())
        assert row["received_token"] == minilm_trace.tokens[row["received_key"]]
        assert row["received_share"] == pytest.approx(float(mean.sum(0).max()) / 19, abs=1e-5)
        assert row["pagerank"] == pytest.approx(float(reference.pagerank(mean).max()), abs=1e-5)
        of_heads = heads[heads["layer"] == number]
        assert row["entropy"] == pytest.approx(of_heads["entropy"].mean())
        assert row["reciprocity"] == pytest.approx(of_heads["reciprocity"].mean(), abs=1e-6)
    assert (heads["rank_low"] == heads["rank_high"]).all()


def test_kept_edges_give_intervals_that_hold_the_truth(minilm_trace, minilm_top) -> None:
    truth, kept = graph_measures(minilm_trace), graph_measures(minilm_top, exact=False)
    assert set(kept["source"]) == {"kept"}
    assert (kept["reciprocity"] <= truth["reciprocity"] + 1e-5).all()
    assert (truth["reciprocity"] <= kept["reciprocity_high"] + 1e-5).all()
    assert (kept["hitters"] <= truth["hitters"]).all()
    assert (truth["hitters"] <= kept["hitters_high"]).all()
    # Of the key that is named, which need not be the true one.
    for kept_row, layer, head in zip(kept.itertuples(), truth["layer"], truth["head"], strict=True):
        graph = minilm_trace.layers[layer].graph
        share = float(graph.strength()[head, kept_row.received_key]) / graph.shape[1]
        assert kept_row.received_share - 1e-6 <= share <= kept_row.received_share_high + 1e-6
    assert (kept["received_share"] < kept["received_share_high"]).any()
    assert (truth["received_share"] - truth["received_share_high"]).abs().max() < 1e-12
    assert truth["parts_certain"].all()
    # Parts that edges may join are no fewer than there are.
    assert (kept["parts"] >= truth["parts"]).all()
    certain = kept["parts_certain"].to_numpy(bool)
    assert not certain.all()
    assert (kept["parts"] == truth["parts"])[certain].all()
    assert (kept["entropy"] - truth["entropy"]).abs().max() < 1e-5


@pytest.mark.parametrize("by", ["head", "layer"])
def test_of_no_token_and_of_one(make_trace, by) -> None:
    nothing = graph_measures(make_trace([]), by=by)
    assert "received_key" not in nothing.columns
    assert len(nothing) == (2 if by == "head" else 1)
    alone = graph_measures(make_trace(["a"]), by=by)
    assert set(alone["received_share"]) == {1.0}
    assert (alone["pagerank"] - 1).abs().max() < 1e-6
    assert set(alone["parts"]) == {1}


@pytest.mark.parametrize("sinks", [False, True])
@pytest.mark.parametrize("keep", [2, 5])
def test_a_share_is_of_the_mass_on_keys(sinks, keep) -> None:
    """Which is less than the number of rows where one sees nothing, or a sink takes some."""
    queries = torch.randn(2, 5, 8, generator=torch.Generator().manual_seed(1))
    mask = torch.ones(5, 5).bool()
    mask[2] = False
    options = {"mask": mask, "sinks": torch.tensor([1.0, -1.0]) if sinks else None}
    _, graph = headloom.attend(queries, queries + 1, queries, keep=headloom.Top(keep), **options)
    _, dense = headloom.attend(queries, queries + 1, queries, keep=headloom.All(), **options)
    layer = TraceLayer(
        "l", "encoder", 0, (2, 5, 5), "tokens", "tokens", list("abcde"), list("abcde"), 8**-0.5,
        LayerInMemory(graph),
    )  # fmt: skip
    trace = Trace({"tokens": list("abcde")}, (layer,))
    shares = dense.sum(1) / dense.sum((1, 2))[:, None]
    rows = graph_measures(trace, exact=False).itertuples()
    for row, share in zip(rows, shares, strict=True):
        true = float(share[row.received_key])
        assert row.received_share - 1e-6 <= true <= row.received_share_high + 1e-6
        if keep == 5:
            assert row.received_share == pytest.approx(true, abs=1e-6)
            assert row.received_share_high == pytest.approx(true, abs=1e-6)
    (row,) = graph_measures(trace, exact=False, by="layer").itertuples()
    together = float(dense.sum((0, 1))[row.received_key] / dense.sum())
    assert row.received_share - 1e-6 <= together <= row.received_share_high + 1e-6


def test_between_two_sequences_some_measures_do_not_exist(pair_trace) -> None:
    table = graph_measures(pair_trace, by="layer")
    cross = table[table["kind"] == "cross"].iloc[0]
    assert cross["reciprocity"] != cross["reciprocity"]
    assert cross["hitters"] >= 1


def test_two_sequences_of_one_length_are_two(translator) -> None:
    same = {"source": torch.tensor([3, 9, 9, 2]), "target": torch.tensor([1, 8, 30, 41])}
    trace = headloom.trace(translator, same)
    for by in ("layer", "head"):
        table = graph_measures(trace, by=by).set_index("kind")
        of_two = table[["reciprocity", "pagerank", "parts"]].isna().all(axis=1)
        assert of_two["cross"].all() and not of_two[["encoder", "decoder"]].any()


def run(*arguments: object) -> int:
    try:
        main([str(argument) for argument in arguments])
    except SystemExit as stop:
        return int(stop.code or 0)
    return 0


def test_the_commands(minilm_trace, pair_trace, tmp_path, capsys) -> None:
    minilm_trace.save(tmp_path / "t")
    pair_trace.save(tmp_path / "pair")
    assert run("measures", tmp_path / "t", "--json") == 0
    said = json.loads(capsys.readouterr().out)["measures"]
    assert said[5]["pagerank_token"] == "[CLS]"
    assert round(said[5]["pagerank"], 4) == 0.2767
    assert run("measures", tmp_path / "pair", "--by", "head", "--csv") == 0
    assert len(capsys.readouterr().out.splitlines()) == 13
    assert run("measures", tmp_path / "t") == 0
    assert len(capsys.readouterr().out.splitlines()) == 7
    assert run("rollout", tmp_path / "t", "--token", "0") == 0
    out = capsys.readouterr().out
    assert re.search(r"^ +0\.6555\d\d       0  \[CLS\]$", out, re.MULTILINE)
    assert run("rollout", tmp_path / "t", "--token", "0", "--json") == 0
    assert round(json.loads(capsys.readouterr().out)["values"][18], 4) == 0.0876
    assert run("rollout", tmp_path / "pair", "--column", "--token", "-1", "--kept") == 0
    assert "went to:" in capsys.readouterr().out
    for bad in (("--by", "token"), ("--threshold", "0"), ("--share", "2")):
        assert run("measures", tmp_path / "t", *bad) == 2
        (line,) = capsys.readouterr().err.splitlines()
        assert bad[1] in line
    assert run("rollout", tmp_path / "t", "--token", "99") == 2
    assert "no position 99" in capsys.readouterr().err


def test_up_to_so_many_positions_the_rank_is_exact_and_else_between_bounds(
    tmp_path, capsys
) -> None:
    # Of 50 tokens the leading 32 directions are not all: each looks at itself and others alike.
    tokens = 0.7 * torch.randn(2, 50, 50, generator=torch.Generator().manual_seed(1))
    trace = headloom.from_queries_keys(tokens, tokens)
    trace.save(tmp_path / "t")

    def ranks(*options: object) -> tuple[float, float]:
        assert run("measures", tmp_path / "t", "--json", *options) == 0
        out = capsys.readouterr().out
        (row,) = json.loads(out)["measures"]
        assert "rank" not in out.split() and row["source"] == "exact"
        return row["rank_low"], row["rank_high"]

    squares = torch.linalg.svdvals(trace.layers[0].matrix.dense().double()).square()
    share = squares / squares.sum(-1, keepdim=True)
    expected = float(torch.exp(-(share * share.log()).sum(-1)).mean())
    assert ranks() == pytest.approx((expected, expected), rel=1e-4)
    low, high = ranks("--exact-rank", "49")
    assert low < expected < high and high / low > 1.2
    assert set(graph_measures(trace, exact_rank=50)["rank_low"]) == set(
        graph_measures(trace)["rank_high"]
    )


def test_layers_without_exact_weights(make_trace) -> None:
    with pytest.raises(headloom.InputError, match="queries and keys were not kept"):
        graph_measures(make_trace(["a", "b"], keep=1), exact=True)


def test_measures_of_rounded_queries_and_keys_say_so(tmp_path) -> None:
    parts = torch.randn(2, 1, 6, 4, generator=torch.Generator().manual_seed(1))
    for keep, said in ((headloom.Top(2), "rounded"), (headloom.Top(6), "exact")):
        path = tmp_path / said
        headloom.from_queries_keys(*parts, save=path, dtype=torch.float16, keep=keep)
        table = graph_measures(headloom.open(path))
        assert set(table["source"]) == {said}
    # All edges are those of the model: as of the trace that was never stored.
    own = graph_measures(headloom.from_queries_keys(*parts, keep=headloom.Top(6)))
    assert table["rank_low"].tolist() == pytest.approx(own["rank_low"].tolist(), abs=1e-5)
