"""Questions from a page are bounded: no file, no loop without end, no thousand million rows."""

from __future__ import annotations

import sys
import time
from collections.abc import Callable
from functools import partial
from pathlib import Path

import pytest

import headloom
from headloom.analysis.sql.bounded import BoundedAnswer, ask_bounded
from headloom.api.trace import Trace
from headloom.errors import DataError, InputError

pytest.importorskip("duckdb")


Asked = Callable[..., BoundedAnswer]


@pytest.fixture
def trace(make_trace: Callable[..., Trace]) -> Trace:
    return make_trace(["a", "b", "<script>", "d"])


@pytest.fixture
def asked(trace: Trace) -> Asked:
    # What never ends says so soon; a busy machine may take more than five seconds for the others.
    return partial(ask_bounded, trace, seconds=60)


def test_an_answer_is_that_of_headloom_query(trace, asked) -> None:
    answer = asked("select layer, count(*) as edges from edges group by 1 order by 1")
    expected = [
        [number, int((layer.graph.keys >= 0).sum())] for number, layer in enumerate(trace.layers)
    ]
    assert (answer.columns, answer.rows, answer.more) == (["layer", "edges"], expected, False)
    with pytest.raises(InputError, match="made with received=True: none here"):
        asked("select * from received")


def test_a_damaged_trace_says_so_and_the_next_question_is_answered(trace, tmp_path: Path) -> None:
    trace.save(tmp_path / "t")
    path = tmp_path / "t" / "edges.parquet"
    whole = bytearray(path.read_bytes())
    whole[len(whole) // 2] ^= 1
    path.write_bytes(whole)
    damaged = headloom.open(tmp_path / "t")
    with pytest.raises(DataError, match=r"edges\.parquet"):
        ask_bounded(damaged, "select * from edges")
    assert ask_bounded(trace, "select count(*) from tokens").rows == [[4]]
    assert ask_bounded(damaged, "select count(*) from tokens").rows == [[4]]


def test_rows_are_bounded(asked) -> None:
    answer = asked("select range as n from range(1000000000)", rows=20)
    assert answer.rows == [[n] for n in range(20)] and answer.more
    assert not asked("select range from range(20)", rows=20).more


@pytest.mark.parametrize(
    "query",
    [
        "with recursive n as (select 1 as i union all select i + 1 from n) select max(i) from n",
        "select count(*) from range(1000000000) a, range(1000000000) b",
        "select sum(a.range * b.range) from range(10000000) a, range(10000000) b",
        # DuckDB looks for no interruption inside of one function.
        "select repeat('x', 2000000000)",
        "select length(repeat(repeat('x', 1000000), 1000))",
    ],
)
def test_what_never_ends_is_stopped(asked, query) -> None:
    start = time.monotonic()
    with pytest.raises(
        InputError, match=r"stopped after 0\.3 s|emory|allocat|Out of Range|Overflow"
    ):
        asked(query, seconds=0.3)
    assert time.monotonic() - start < 30  # of a busy machine; without an end it is 45 s or more
    assert asked("select 1 as one").rows == [[1]]


@pytest.mark.skipif(sys.platform != "linux", reason="the system bounds there what a process takes")
def test_memory_is_bounded(asked) -> None:
    """Of what DuckDB's own limit does not see too."""
    with pytest.raises(InputError, match=r"allocat|memory"):
        asked("select length(repeat(repeat('x', 1000000), 2500))")


def test_a_module_in_the_working_folder_is_not_run(trace, tmp_path: Path, monkeypatch) -> None:
    (tmp_path / "duckdb.py").write_text("open('was_run', 'w')")
    monkeypatch.chdir(tmp_path)
    assert ask_bounded(trace, "select 1").rows == [[1]]
    assert [one.name for one in tmp_path.iterdir()] == ["duckdb.py"]


def test_cells_that_json_does_not_hold(asked) -> None:
    query = (
        "select 'nan'::double, 1e308 * 10, -1e308 * 10, [1, 2], {'a': 1}, chr(0), null, true,"
        " 170141183460469231731687303715884105727, date '2000-01-02'"
    )
    assert asked(query).rows == [
        ["nan", "inf", "-inf", "[1, 2]", "{'a': 1}", "␀", None, True,
         "170141183460469231731687303715884105727", "2000-01-02"]
    ]  # fmt: skip
    with pytest.raises(InputError, match=r"^query: .*out of range"):
        asked("select date '200000-01-01'")


@pytest.mark.parametrize(
    "query",
    [
        "select * from read_csv('{path}')",
        "select * from read_text('{path}')",
        "select * from read_blob('{path}')",
        "select * from '{path}'",
        "select * from glob('{folder}/*')",
        "select * from read_parquet('{folder}/*.parquet')",
        "copy edges to '{folder}/out.csv'",
        "attach '{folder}/new.db'",
        "install httpfs",
        "load httpfs",
        "set enable_external_access = true",
        "create table t as select 1",
        "pragma database_list",
        "select 1; select 2",
        "call pragma_version()",
        "export database '{folder}/all'",
        "explain analyze copy edges to '{folder}/out.csv'",
        "select getenv('HOME')",
        "",
        "(" * 5000,
    ],
)
def test_nothing_but_the_views_is_read(asked, tmp_path: Path, query: str) -> None:
    path = tmp_path / "secret.csv"
    path.write_text("hidden,value\n1,2\n", "utf-8")
    with pytest.raises(InputError) as error:
        asked(query.format(path=path, folder=tmp_path))
    assert "\n" not in str(error.value)
    assert [one.name for one in tmp_path.iterdir()] == ["secret.csv"]
