from __future__ import annotations

import os
from dataclasses import replace
from pathlib import Path

import pyarrow.parquet as pq
import pytest
import torch
from hypothesis import given, settings
from hypothesis import strategies as st
from tests.formats.conftest import assert_same

import headloom
from headloom.api.trace import Trace
from headloom.formats.trace import LayerInMemory, TraceLayer
from headloom.formats.trace_writer import writing_trace


def test_a_trace_comes_back_as_it_was(pair_trace, tmp_path) -> None:
    pair_trace.save(tmp_path / "t.loom")
    assert_same(pair_trace, headloom.open(tmp_path / "t.loom"))
    assert sorted(path.name for path in (tmp_path / "t.loom").iterdir()) == [
        "edges.parquet", "keys.parquet", "queries_keys.safetensors", "rows.parquet", "trace.json",
    ]  # fmt: skip
    # Saved again from the disk, it is the same folder once more.
    headloom.open(tmp_path / "t.loom").save(tmp_path / "again.loom")
    for name in (path.name for path in (tmp_path / "t.loom").iterdir()):
        assert (tmp_path / "t.loom" / name).read_bytes() == (
            tmp_path / "again.loom" / name
        ).read_bytes()


@settings(max_examples=30, deadline=None)
@given(tokens=st.lists(st.text(), min_size=0, max_size=6), keep=st.integers(0, 8))
def test_any_tokens_and_sizes_come_back(tmp_path_factory, tokens, keep) -> None:
    length = len(tokens)
    queries = torch.randn(2, length, 4)
    # The last query may look at no key: minus infinity, and no edges.
    allowed = torch.ones(length, length, dtype=torch.bool)
    if length:
        allowed[-1] = False
    _, graph = headloom.attend(queries, queries, queries, mask=allowed, keep=headloom.Top(keep))
    layer = TraceLayer(
        "a",
        "encoder",
        0,
        (2, length, length),
        "tokens",
        "tokens",
        tokens,
        tokens,
        0.5,
        LayerInMemory(graph),
    )
    path = tmp_path_factory.mktemp("any") / "t"
    Trace({"tokens": tokens}, (layer,)).save(path)
    found = headloom.open(path)
    assert found.tokens == tokens
    kept = found.layers[0].graph
    width = min(keep, length)
    assert kept.shape == (2, length, length)
    assert torch.equal(kept.keys, graph.keys[..., :width])
    assert torch.equal(kept.scores, graph.scores[..., :width])
    assert torch.equal(kept.lse, graph.lse)
    assert found.layers[0].queries is None


def test_layers_are_read_when_they_are_asked_for(pair_trace, tmp_path) -> None:
    path = tmp_path / "t"
    pair_trace.save(path)
    trace = headloom.open(path)
    first = trace.layers[0].graph
    (path / "edges.parquet").unlink()
    assert trace.layers[0].graph is first
    with pytest.raises(headloom.DataError, match=r"damaged: edges\.parquet is missing"):
        _ = trace.layers[1].graph


def test_a_tile_needs_no_edges(pair_trace, tmp_path) -> None:
    path = tmp_path / "t"
    pair_trace.save(path)
    (path / "edges.parquet").write_bytes(bytes((path / "edges.parquet").stat().st_size))
    layer = headloom.open(path).layers[1]
    assert torch.allclose(layer.matrix.to_dense(), pair_trace.layers[1].graph.to_dense(), atol=1e-6)
    with pytest.raises(headloom.DataError, match=r"damaged: edges\.parquet"):
        _ = layer.graph


def test_one_row_group_a_layer(pair_trace, tmp_path) -> None:
    pair_trace.save(tmp_path / "t")
    for name in ("edges.parquet", "rows.parquet"):
        with pq.ParquetFile(tmp_path / "t" / name) as file:
            assert file.num_row_groups == 3
            assert file.read_row_group(2)["layer"].unique().to_pylist() == [2]


def test_queries_that_a_smaller_type_does_not_reach_are_refused(tmp_path: Path) -> None:
    queries = torch.tensor([[[1.0, 2.0], [7e4, 0.0]]])
    trace = headloom.from_queries_keys(queries[None], torch.ones(1, 1, 2, 2), tokens=["a", "b"])
    said = r"layer 0: its queries reach 7e\+04, float16 ends at 6.55e\+04. Store them as float32 or"
    with pytest.raises(headloom.InputError, match=said):
        trace.save(tmp_path / "t", dtype=torch.float16)
    assert not list(tmp_path.iterdir())
    trace.save(tmp_path / "t", dtype=torch.bfloat16)


@pytest.mark.parametrize("dtype", [torch.float32, torch.bfloat16, torch.float16])
def test_queries_and_keys_may_be_stored_smaller(pair_trace, tmp_path, dtype) -> None:
    pair_trace.save(tmp_path / "t", dtype=dtype)
    layer = headloom.open(tmp_path / "t").layers[2]
    assert layer.queries.dtype == layer.keys.dtype == dtype
    assert torch.equal(layer.queries, pair_trace.layers[2].queries.to(dtype))
    with pytest.raises(headloom.InputError, match="float32, bfloat16 or float16"):
        pair_trace.save(tmp_path / "u", dtype=torch.float64)


def test_a_trace_is_not_overwritten_unless_asked(pair_trace, make_trace, tmp_path) -> None:
    pair_trace.save(tmp_path / "t")
    with pytest.raises(
        headloom.DataError, match="exists already, and overwrite=True was not given"
    ):
        pair_trace.save(tmp_path / "t")
    (tmp_path / "file").write_text("dear")
    with pytest.raises(headloom.DataError, match=r"it exists already\."):
        pair_trace.save(tmp_path / "file")
    (tmp_path / "file").unlink()
    make_trace(["a"]).save(tmp_path / "t", overwrite=True)
    assert headloom.open(tmp_path / "t").tokens == ["a"]
    assert [path.name for path in tmp_path.iterdir()] == ["t"]


def test_overwriting_replaces_traces_only(make_trace, tmp_path, monkeypatch) -> None:
    trace = make_trace(["a"])
    dear = tmp_path / "dear"
    dear.mkdir()
    (dear / "thesis").write_text("years")
    (tmp_path / "file").write_text("x")
    monkeypatch.chdir(dear)
    for path in (dear, tmp_path / "file", Path()):
        with pytest.raises(headloom.DataError, match="is not overwritten: it is no trace"):
            trace.save(path, overwrite=True)
    (dear / "trace.json").write_text('{"format": "other"}')
    with pytest.raises(headloom.DataError, match="has no format 'headloom-trace'"):
        trace.save(dear, overwrite=True)
    assert sorted(file.name for file in dear.iterdir()) == ["thesis", "trace.json"]
    assert sorted(file.name for file in tmp_path.iterdir()) == ["dear", "file"]
    # A damaged trace is one still, but nothing that someone laid beside it is lost.
    trace.save(tmp_path / "t")
    manifest = tmp_path / "t" / "trace.json"
    manifest.write_bytes(manifest.read_bytes()[:40])
    trace.save(tmp_path / "t", overwrite=True)
    assert headloom.open(tmp_path / "t").tokens == ["a"]
    (tmp_path / "t" / "notes.md").write_text("mine")
    with pytest.raises(headloom.DataError, match=r"besides a trace it holds 'notes\.md'"):
        trace.save(tmp_path / "t", overwrite=True)


def test_nothing_is_left_of_a_trace_that_failed(pair_trace, tmp_path) -> None:
    layer = pair_trace.layers[0]
    sequences = pair_trace.sequences

    def write(*layers, fail=None) -> None:
        with writing_trace(tmp_path / "t", sequences) as writer:
            for layer in layers:
                writer.append(layer)
            if fail:
                raise fail

    with pytest.raises(KeyboardInterrupt):
        write(layer, fail=KeyboardInterrupt())
    with pytest.raises(headloom.InputError, match="at least one layer"):
        write()
    with pytest.raises(
        headloom.InputError, match="4 queries of the sequence 'source', which has 7"
    ):
        write(layer, replace(pair_trace.layers[1], queries_from="source"))
    with pytest.raises(headloom.DataError, match="no space left on device"):
        write(layer, fail=OSError(28, "No space left on device"))
    assert list(tmp_path.iterdir()) == []


@pytest.mark.skipif(os.geteuid() == 0, reason="root may write everywhere")
def test_a_folder_that_is_not_writable(pair_trace, tmp_path) -> None:
    tmp_path.chmod(0o500)
    with pytest.raises(headloom.DataError, match="permission denied"):
        pair_trace.save(tmp_path / "t")


def test_a_trace_written_anew_while_it_is_open_is_not_mixed_with_the_old(tmp_path: Path) -> None:
    def saved(seed: int) -> None:
        parts = torch.randn(2, 1, 2, 5, 4, generator=torch.Generator().manual_seed(seed))
        headloom.from_queries_keys(parts[0][0], parts[1][0]).save(tmp_path / "t", overwrite=True)

    saved(1)
    opened = headloom.open(tmp_path / "t")
    first = opened.layers[0].graph.weights
    saved(2)
    with pytest.raises(headloom.DataError, match=r"rewritten, moved or removed since it was"):
        opened.layers[0].queries  # noqa: B018 - read from the other trace's file
    assert not torch.equal(headloom.open(tmp_path / "t").layers[0].graph.weights, first)
