from __future__ import annotations

import dataclasses
import os

import networkx
import pandas
import pytest

import headloom
from headloom.api.export import write_graphml, write_trace_parquet


def test_graphml_holds_the_weights(pair_trace, tmp_path) -> None:
    layer, head = pair_trace.layer("cross", 0), 2
    dense = layer.graph.to_dense().numpy()[head]
    write_graphml(pair_trace, 2, head, tmp_path / "head.graphml")
    graph = networkx.read_graphml(tmp_path / "head.graphml")
    assert graph.is_directed()
    # An edge leads from the query to the key.
    assert graph.edges["query1", "key3"]["weight"] == pytest.approx(dense[1, 3], rel=1e-6)
    assert ("key3", "query1") not in graph.edges
    assert graph.nodes["key3"]["token"] == layer.key_tokens[3]


def test_hostile_tokens_survive_both_formats(make_trace, hostile_tokens, tmp_path) -> None:
    trace = make_trace(hostile_tokens)
    write_graphml(trace, 0, 0, tmp_path / "a.graphml")
    graph = networkx.read_graphml(tmp_path / "a.graphml")
    assert graph.nodes["0"]["token"] == "<script>alert(1)</script>"
    assert graph.nodes["7"]["token"] == "␀␇␛[31m"
    write_trace_parquet(trace, tmp_path / "a.parquet")
    table = pandas.read_parquet(tmp_path / "a.parquet")
    assert table.loc[table["query"] == 8, "query_token"].iloc[0] == "x" * 100_000


def test_a_picture_is_of_all_heads_or_of_the_one_that_is_chosen(pair_trace, tmp_path) -> None:
    pair_trace.save(tmp_path / "t")

    def drawn(name: str, layer: str | None, head: int | None) -> str:
        file = tmp_path / f"{name}.svg"
        assert headloom.export(tmp_path / "t", picture=file, layer=layer, head=head) == [file]
        return file.read_text("utf-8")

    assert "12 heads" in drawn("all", None, None)
    assert "layer 2 (cross 0), head 3" in drawn("one", "2", 3)
    assert "layer 2 (cross 0), mean of 4 heads" in drawn("mean", "2 (cross 0)", None)
    with pytest.raises(headloom.InputError, match="head 1 without a layer; give its layer too"):
        drawn("none", None, 1)


def test_graphml_and_parquet_say_the_same_of_a_layer(pair_trace, tmp_path) -> None:
    """The second cross layer of an encoder-decoder: its place in the trace, and among its kind."""
    first = pair_trace.layers
    more = tuple(
        dataclasses.replace(layer, index=1, name=f"second {layer.kind}") for layer in first
    )
    trace = dataclasses.replace(pair_trace, layers=(*first, *more))
    trace.save(tmp_path / "t")
    graphml, parquet = tmp_path / "g.graphml", tmp_path / "p.parquet"
    headloom.export(tmp_path / "t", parquet=parquet, graphml=graphml, layer="5", head=3)
    of = networkx.read_graphml(graphml).graph
    table = pandas.read_parquet(parquet)
    names = ["layer", "kind", "index", "name", "head"]
    assert [of[name] for name in names] == [5, "cross", 1, "second cross", 3]
    rows = table[(table["layer"] == 5) & (table["head"] == 3)]
    assert rows[names].drop_duplicates().to_numpy().tolist() == [[of[name] for name in names]]
    assert len(rows) == networkx.read_graphml(graphml).number_of_edges()


def test_outputs_are_checked_before_anything_is_written(pair_trace, tmp_path) -> None:
    pair_trace.save(tmp_path / "t")
    (tmp_path / "link").symlink_to("one")
    os.mkfifo(tmp_path / "pipe")
    before = sorted(tmp_path.iterdir())
    one = tmp_path / "one"
    two, picture = {"parquet": one, "graphml": tmp_path / "g"}, {"picture": tmp_path / "p.png"}
    for line, options in {
        "parquet and graphml name the same file": two | {"graphml": tmp_path / "link"},
        "layer 3: no such layer; the trace has layers 0 to 2": two | {"layer": "3"},
        "no head 4; the layer has heads 0 to 3": two | {"layer": "0", "head": 4},
        "export: no head 4": picture | {"layer": "0", "head": 4},
        "head 1 without a layer": picture | {"head": 1},
        "head 1 without a layer; give": {"parquet": one, "head": 1},
        "pipe: it is a pipe or a device": {"parquet": tmp_path / "pipe"},
        "t: it is a folder": {"parquet": tmp_path / "t"},
    }.items():
        with pytest.raises(headloom.HeadloomError, match=line):
            headloom.export(tmp_path / "t", **options)
        assert sorted(tmp_path.iterdir()) == before, line
    assert (tmp_path / "pipe").is_fifo()
