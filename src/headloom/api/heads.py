"""The table of heads: their roles and measures, filtered and sorted; or one of them in training."""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass
from pathlib import Path
from typing import TYPE_CHECKING

from headloom.analysis.heads.formation import Moment, formation, trace_of_snapshot
from headloom.analysis.heads.retrieval import find_needle, retrieval
from headloom.analysis.heads.roles import NO_NUMBER, ROLES, heads
from headloom.errors import DataError, InputError
from headloom.formats.history import History
from headloom.formats.run import RunFolder, is_run
from headloom.formats.trace import TraceData, layer_number

if TYPE_CHECKING:
    import pandas


@dataclass(frozen=True, eq=False)
class HeadTable:
    """A table of heads, and what it was made from.

    rows: a row a head; heads: how many there are in all; roles: how many have each role.
    """

    rows: pandas.DataFrame
    heads: int
    roles: dict[str, int]
    traces: Sequence[TraceData]


def head_table(
    paths: Sequence[Path],
    *,
    every: bool = False,
    role: str | None = None,
    layer: str | None = None,
    sort: str | None = None,
    limit: int | None = None,
    needle: str | None = None,
    exact: bool | None = None,
) -> HeadTable:
    """The roles and measures of the heads of traces.

    Args:
        paths: see `find_traces`.
        every: also heads without a role.
        role, layer: only heads of that role, or layer.
        sort: the column to sort by, of equal retrieval by the mass on the needle; None: by layer
            and head, or with a needle by retrieval.
        limit: so many heads at most.
        needle: a text that stands twice, whose retrieval is measured: four more columns.
        exact: see `headloom.analysis.heads.roles.heads`.

    Raises: InputError: no such role, column or layer; DataError: no trace.
    """
    roles = (*ROLES, "broad", "mixed", NO_NUMBER)
    if role is not None and role not in roles:
        raise InputError(f"--role {role}: no such role; there are {', '.join(roles)}.")
    traces = find_traces(paths)
    table = heads(traces, exact=exact)
    count = len(table)
    if needle is not None:
        if len(traces) > 1:
            raise InputError("--needle works on one text. Give one trace.")
        copied = retrieval(traces[0], find_needle(traces[0].tokens, needle))
        table = table.merge(type(table)(copied), how="left", on=["layer", "head"])
        sort = sort or "retrieval"
    if sort is not None and sort not in table.columns:
        raise InputError(f"--sort {sort}: no such column; there are {', '.join(table.columns)}.")
    if layer is not None:
        table = table[table["layer"] == layer_number(traces[0], layer)]
    counts = {str(name): int(n) for name, n in table["role"].value_counts().items()}
    if role is not None:
        table = table[table["role"] == role]
    elif not every and needle is None:
        table = table[~table["role"].isin(["broad", "mixed"])]
    if sort is not None:
        # Many heads copy nothing: of these, who looks at the needle most comes first.
        columns = ["retrieval", "needle"] if sort == "retrieval" else [sort]
        rising = sort in ("layer", "head", "role")
        table = table.sort_values(columns, ascending=rising, kind="stable")
    return HeadTable(table if limit is None else table.head(limit), count, counts, traces)


def find_traces(paths: Sequence[Path]) -> list[TraceData]:
    """The traces at some paths: each one, or a folder of several; of a run, its probe at the end.

    Raises: DataError: there is none.
    """
    traces = []
    for path in paths:
        if is_run(path):
            past = _history(path)
            traces.append(trace_of_snapshot(past[past.steps[-1]]))
            continue
        inside = sorted(path.glob("*/trace.json")) if path.is_dir() else []
        if inside and not (path / "trace.json").exists():
            traces += [TraceData.open(manifest.parent) for manifest in inside]
        else:
            traces.append(TraceData.open(path))
    if not traces:
        raise DataError("no trace is given. Make one: headloom trace MODEL --text ... -o t.loom")
    return traces


def _history(path: Path) -> History:
    """The history of a run. Raises: DataError: not a run, or one without snapshots."""
    past = History(RunFolder.open(path).history)
    if not past.steps:
        raise DataError(f"{path}: this run has no snapshots. Train with training.history = true.")
    return past


def heads_in_training(paths: Sequence[Path], measure: str) -> list[Moment]:
    """A measure of every head of a run, snapshot by snapshot.

    Raises: InputError: no such measure; several paths. DataError: not a run.
    """
    if len(paths) != 1:
        raise InputError("--measure works on one run. Give one path.")
    return formation(_history(paths[0]), measure)
