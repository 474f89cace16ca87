"""Questions from a page are bounded: no file, no loop without end, no thousand million rows."""

from __future__ import annotations

import time
from collections.abc import Callable
from pathlib import Path

import pytest

from weft.analysis.sql.bounded import LONGEST, QUESTIONS, ask_bounded
from weft.errors import InputError
from weft.traces import Trace


@pytest.fixture
def trace(make_trace: Callable[..., Trace]) -> Trace:
    return make_trace(["a", "b", "<script>", "d"])


def test_an_answer_is_that_of_weft_query(trace) -> None:
    answer = ask_bounded(trace, "select layer, count(*) as edges from edges group by 1 order by 1")
    expected = [
        [number, int((layer.graph.keys >= 0).sum())] for number, layer in enumerate(trace.layers)
    ]
    assert (answer.columns, answer.rows, answer.more) == (["layer", "edges"], expected, False)


@pytest.mark.parametrize("question", QUESTIONS, ids=lambda one: one[0])
def test_every_question_that_is_ready_has_an_answer(trace, question) -> None:
    assert ask_bounded(trace, question[1]).columns


def test_there_are_ten() -> None:
    assert len(QUESTIONS) == len({sql for _, sql in QUESTIONS}) == 10


def test_rows_are_bounded(trace) -> None:
    start = time.monotonic()
    answer = ask_bounded(trace, "select range as n from range(1000000000)", rows=20)
    assert answer.rows == [[n] for n in range(20)] and answer.more
    assert time.monotonic() - start < 60
    assert not ask_bounded(trace, "select range from range(20)", rows=20).more


@pytest.mark.parametrize(
    "query",
    [
        "with recursive n as (select 1 as i union all select i + 1 from n) select max(i) from n",
        "select count(*) from range(1000000000) a, range(1000000000) b",
        "select sum(a.range * b.range) from range(10000000) a, range(10000000) b",
    ],
)
def test_what_never_ends_is_stopped(trace, query) -> None:
    with pytest.raises(InputError, match=r"stopped after 0\.3 s|emory|Out of Range|Overflow"):
        ask_bounded(trace, query, seconds=0.3)
    assert ask_bounded(trace, "select 1 as one").rows == [[1]]


@pytest.mark.parametrize(
    "query",
    [
        "select repeat('x', 2000000000)",
    ],
)
def test_memory_is_bounded(trace, query) -> None:
    with pytest.raises(InputError):
        ask_bounded(trace, query, seconds=20)


def test_a_long_cell_is_cut(trace) -> None:
    ((cell,),) = ask_bounded(trace, "select repeat('x', 100000)").rows
    assert len(cell) <= 501


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
def test_nothing_but_the_views_is_read(trace, tmp_path: Path, query: str) -> None:
    path = tmp_path / "secret.csv"
    path.write_text("hidden,value\n1,2\n", "utf-8")
    with pytest.raises(InputError) as error:
        ask_bounded(trace, query.format(path=path, folder=tmp_path))
    assert "\n" not in str(error.value)
    assert [one.name for one in tmp_path.iterdir()] == ["secret.csv"]


def test_a_long_query_is_refused(trace) -> None:
    with pytest.raises(InputError, match="characters"):
        ask_bounded(trace, "select 1 " + " " * LONGEST)
