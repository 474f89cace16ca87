"""SQL over traces: from disk, from memory, over a folder; nothing but traces can be read."""

from __future__ import annotations

import csv
import json
import re
from pathlib import Path

import pandas
import pytest
import torch
from tests.cli.conftest import headloom_main

import headloom
from headloom.api.trace import Trace
from headloom.formats.trace import TraceData
from headloom.formats.trace_writer import manifest_digest

pytest.importorskip("duckdb")
pytest.importorskip("pandas")
pa = pytest.importorskip("pyarrow")
pq = pytest.importorskip("pyarrow.parquet")

from headloom.analysis.sql.database import VIEWS  # noqa: E402
from headloom.analysis.sql.query import ask, open_traces  # noqa: E402

__all__ = ["headloom_main"]
DOCUMENT = Path(__file__).parents[3] / "docs" / "analysis.md"
DOCUMENTED = re.findall(r"^(\w[^\n]*\?)\n\n```sql\n(.*?)```", DOCUMENT.read_text(), re.S | re.M)


def test_every_view_is_the_same_from_disk_and_from_memory(translator, tmp_path) -> None:
    inputs = {"source": torch.tensor([3, 9, 9, 14]), "target": torch.tensor([1, 8, 30])}
    pair_trace = headloom.trace(translator, inputs, received=True)
    pair_trace.save(tmp_path / "t")
    opened = headloom.open(tmp_path / "t")
    for view in VIEWS:
        columns = ask(opened, f"from {view}").schema.names
        held, stored = (
            trace.query(f"select * from {view} order by all") for trace in (pair_trace, opened)
        )
        assert list(held.columns) == list(stored.columns) == columns
        assert len(held) == len(stored) > 0
        # Parquet keeps all bits; averages may be summed in another order.
        if view == "heads":
            assert held.round(5).equals(stored.round(5))
        else:
            assert held.equals(stored)


def test_a_part_of_a_saved_trace_answers_for_itself_alone(pair_trace, tmp_path) -> None:
    pair_trace.save(tmp_path / "t")
    opened = headloom.open(tmp_path / "t")
    part = Trace(opened.sequences, opened.layers[1:2], opened.model)
    assert part.query("select distinct layer from edges").layer.tolist() == [0]
    expected = float(opened.layers[1].graph.weights.sum())
    assert part.query("select sum(weight) as s from edges").s[0] == pytest.approx(
        expected, rel=1e-6
    )


def test_a_folder_of_traces_has_a_column_for_their_names(make_trace, tmp_path) -> None:
    (tmp_path / "deep").mkdir()
    names = ["a[1]'*?.loom", "deep/b.loom"]
    for length, name in enumerate(names, 3):
        make_trace([f"t{i}" for i in range(length)]).save(tmp_path / name)
    (tmp_path / ".half").mkdir()
    (tmp_path / ".half" / "trace.json").write_text("{")
    traces = open_traces(tmp_path)
    assert list(traces) == names
    for view in VIEWS:
        if view not in ("keys", "received"):  # which these traces do not know
            assert ask(traces, f"from {view}").schema.names[0] == "trace"
    counts = ask(traces, "select trace, count(*) from rows group by all order by all").table()
    assert counts.to_pydict() == {"trace": names, "count_star()": [6, 8]}
    tokens = ask(traces, "select count(*) from named where query_token is null").table()
    assert tokens.column(0).to_pylist() == [0]
    assert isinstance(open_traces(tmp_path / names[1]), TraceData)


@pytest.mark.parametrize(
    ("query", "said"),
    [
        ("selec 1", "syntax error"),
        ("select foo from edges", 'column "foo" not found'),
        (
            "select * from nope",
            "The views are edges, rows, keys, received, tokens, layers, heads, named",
        ),
        ("select 1; select 2", "2 statements"),
        ("copy (select 1) to '{folder}/t/edges.parquet'", "a COPY statement"),
        ("select * from read_text('{folder}/t/trace.json')", "Cannot access file"),
        ("select * from read_parquet('{folder}/other.parquet')", "Cannot access file"),
        ("select * from query('drop view edges')", "Expected a single SELECT"),
        ("with x as (delete from edges) select 1", "query: "),
        ("select * from tmp_path", "does not exist"),
        ("select error('boom') from edges", "boom"),
        ("select foo(1)", r'Did you mean "floor"\? The views are'),
        ("select (select * from range(2))", "can only return a single row"),
    ],
)
def test_what_is_no_question_is_one_clear_line(make_trace, tmp_path, query, said) -> None:
    make_trace(["a", "b"]).save(tmp_path / "t")
    pq.write_table(ask(make_trace(["a"]), "from rows").table(), tmp_path / "other.parquet")
    before = {file: file.read_bytes() for file in tmp_path.rglob("*") if file.is_file()}
    with pytest.raises(headloom.InputError, match=said) as caught:
        headloom.open(tmp_path / "t").query(query.format(folder=tmp_path))
    assert "\n" not in str(caught.value)
    assert {file: file.read_bytes() for file in tmp_path.rglob("*") if file.is_file()} == before


def test_a_trace_that_is_damaged_while_it_is_asked(make_trace, tmp_path) -> None:
    make_trace(["a", "b"]).save(tmp_path / "t")
    trace = headloom.open(tmp_path / "t")
    edges = tmp_path / "t" / "edges.parquet"
    edges.write_bytes(b"\0" * edges.stat().st_size)
    with pytest.raises(headloom.DataError, match=r"damaged: edges\.parquet") as caught:
        trace.query("from edges")
    assert "\n" not in str(caught.value)


@pytest.mark.parametrize(
    "query", ["from edges", "from named", "select * from EDGES join rows using (layer)"]
)
def test_a_table_that_was_changed_is_not_read(make_trace, tmp_path, query) -> None:
    """Though it is whole Parquet, with its columns."""
    make_trace(["a", "b"]).save(tmp_path / "t")
    edges = tmp_path / "t" / "edges.parquet"
    table = pq.read_table(edges)
    halved = pa.array([weight.as_py() / 2 for weight in table["weight"]], pa.float32())
    place = table.column_names.index("weight")
    pq.write_table(table.set_column(place, "weight", halved), edges)
    # As many bytes as the manifest says, which is checked when the trace is opened.
    manifest = tmp_path / "t" / "trace.json"
    content = json.loads(manifest.read_text())
    content["files"]["edges.parquet"]["bytes"] = edges.stat().st_size
    content["sha256"] = manifest_digest(content)
    manifest.write_text(json.dumps(content))
    with pytest.raises(headloom.DataError, match=r"edges\.parquet.*does not match its digest"):
        headloom.open(tmp_path / "t").query(query)


def test_the_command_prints_and_writes(make_trace, tmp_path, headloom_main) -> None:
    make_trace(["a", "b", "c"], heads=1).save(tmp_path / "t")
    question = (
        "select query, round(sum(weight), 3) as mass from edges group by query order by query"
    )
    words = ("query", tmp_path / "t", question)
    lines = ["query  mass", "    0     1", "    1     1", "and 1 more rows"]
    assert headloom_main(*words, "--limit", "2").out.splitlines() == lines
    said = headloom_main(*words, "--json").json()
    assert said == {"columns": ["query", "mass"], "rows": [[0, 1.0], [1, 1.0], [2, 1.0]]}
    for suffix in ("csv", "parquet", "json"):
        headloom_main(*words, "-o", tmp_path / f"a.{suffix}")
    with (tmp_path / "a.csv").open() as file:
        assert [row["query"] for row in csv.DictReader(file)] == ["0", "1", "2"]
    assert pq.read_table(tmp_path / "a.parquet").column("query").to_pylist() == [0, 1, 2]
    assert json.loads((tmp_path / "a.json").read_text())[2] == {"query": 2, "mass": 1.0}
    refused = headloom_main(*words, "-o", tmp_path / "a.xls").one_line()
    assert "ends in .csv, .parquet, .json" in refused
    # Null is what is no number.
    asked = headloom_main("query", tmp_path / "t", "select 'nan'::double as a", "--json")
    assert asked.out == '{"columns": ["a"], "rows": [[null]]}\n'


@pytest.mark.parametrize("question", DOCUMENTED, ids=lambda pair: pair[0][:40])
def test_the_questions_of_the_documentation_have_answers(minilm_trace, question) -> None:
    answer = minilm_trace.query(question[1])
    assert len(answer) > 0
    assert not answer.isna().any().any()


def test_answers_of_the_documentation_are_right(minilm_trace, minilm_weights) -> None:
    asked = {name: minilm_trace.query(query) for name, query in DOCUMENTED}
    stack = torch.stack(minilm_weights)  # layers, heads, queries, keys
    received = asked["Which tokens receive most in the kept edges, over all layers and heads?"]
    assert received.received[0] == pytest.approx(float(stack.sum((0, 1, 2)).max()), abs=1e-3)
    sink = asked["How much of each layer's mass is on the first token, the sink of many models?"]
    assert sink.sink.tolist() == pytest.approx(stack[..., 0].mean((1, 2)).tolist(), abs=1e-5)
    special = asked["How much goes to special tokens, by layer, at least and at most?"]
    both = (stack[..., 0] + stack[..., 18]).mean((1, 2)).tolist()
    assert special.at_least.tolist() == pytest.approx(both, abs=1e-5)
    assert special.at_most.tolist() == pytest.approx(both, abs=1e-5)
    previous = asked["Which heads look at the previous token?"].iloc[0]
    assert (previous["layer"], previous["head"]) == (0, 2)
    assert previous["previous"] == pytest.approx(0.9998, abs=5e-5)


def test_a_view_without_data_says_what_would_fill_it(make_trace) -> None:
    with pytest.raises(headloom.InputError, match="received=True; there are none here"):
        ask(make_trace(["a", "b"]), "select * from received")


def test_whole_numbers_stay_whole_and_an_answer_may_go_to_a_file(make_trace, tmp_path) -> None:
    trace = make_trace(["a", "b", "c"], heads=1)
    asked = "select case when query = 1 then query end as q, [query] as l from rows order by query"
    table = headloom.query({"one": trace}, asked)
    assert table["q"].tolist() == [pandas.NA, 1, pandas.NA] and str(table["q"].dtype) == "Int64"
    assert headloom.query(trace, asked, output=tmp_path / "a.csv") == 3
    assert (tmp_path / "a.csv").read_text().splitlines()[2] == '1,"[1]"'
