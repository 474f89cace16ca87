"""The table of heads: their roles and measures, filtered and sorted; or one of them in training."""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass
from pathlib import Path
from typing import TYPE_CHECKING

from headloom.analysis.heads.formation import Moment, formation, trace_of_snapshot
from headloom.analysis.heads.retrieval import find_needle, retrieval
from headloom.analysis.heads.roles import MEASURES, NO_NUMBER, ROLES, heads
from headloom.errors import DataError, InputError
from headloom.formats.history import History
from headloom.formats.run import RunFolder, is_run
from headloom.formats.trace import TraceData, layer_number

if TYPE_CHECKING:
    import pandas

__all__ = ["HeadChoice", "HeadTable", "find_traces", "head_table", "heads_in_training"]

#: The columns that a needle adds.
_NEEDLE = ("retrieval", "needle", "needle_chance", "needle_p")


@dataclass(frozen=True)
class HeadChoice:
    """The heads that a table has, and its order.

    every: also heads without a role.
    role, layer: only heads of that role, or layer.
    sort: the column to sort by, of equal retrieval by the mass on the needle; None: by layer and
        head, or with a needle by retrieval.
    limit: so many heads at most.
    needle: a text that stands twice, whose retrieval is measured; None: none.
    """

    every: bool = False
    role: str | None = None
    layer: str | None = None
    sort: str | None = None
    limit: int | None = None
    needle: str | None = None


@dataclass(frozen=True, eq=False)
class HeadTable:
    """A table of heads, and what it was made from.

    rows: a row a head; added: the columns of a needle; heads: how many there are in all.
    roles: how many heads have each role; texts, tokens: of the traces; layers: what they are
        called.
    """

    rows: pandas.DataFrame
    added: Sequence[str]
    heads: int
    roles: dict[str, int]
    texts: int
    tokens: int
    layers: list[str]


def head_table(
    paths: Sequence[Path], choice: HeadChoice, *, exact: bool | None = None
) -> HeadTable:
    """The roles and measures of the heads of traces.

    Args:
        paths: see `find_traces`.
        choice: see HeadChoice.
        exact: see `headloom.analysis.heads.roles.heads`.

    Raises: InputError: no such role, column or layer; DataError: no trace.
    """
    roles = (*ROLES, "broad", "mixed", NO_NUMBER)
    if choice.role is not None and choice.role not in roles:
        raise InputError(f"--role {choice.role}: no such role; there are {', '.join(roles)}.")
    traces = find_traces(paths)
    every = table = heads(traces, exact=exact)
    added: Sequence[str] = ()
    sort = choice.sort
    if choice.needle is not None:
        if len(traces) > 1:
            raise InputError("--needle works on one text. Give one trace.")
        table, added = _with_needle(table, traces[0], choice.needle), _NEEDLE
        sort = sort or "retrieval"
    if sort is not None and sort not in table.columns:
        raise InputError(f"--sort {sort}: no such column; there are {', '.join(table.columns)}.")
    if choice.layer is not None:
        table = table[table["layer"] == layer_number(traces[0], choice.layer)]
    counts = {str(role): int(count) for role, count in table["role"].value_counts().items()}
    if choice.role is not None:
        table = table[table["role"] == choice.role]
    elif not choice.every and not added:
        table = table[~table["role"].isin(["broad", "mixed"])]
    if sort is not None:
        # Many heads copy nothing: of these, who looks at the needle most comes first.
        columns = ["retrieval", "needle"] if sort == "retrieval" else [sort]
        rising = sort in ("layer", "head", "role")
        table = table.sort_values(columns, ascending=rising, kind="stable")
    rows = table if choice.limit is None else table.head(choice.limit)
    tokens = sum(len(next(iter(trace.sequences.values()))) for trace in traces)
    layers = [traces[0].label(number) for number in range(len(traces[0].layers))]
    return HeadTable(rows, added, len(every), counts, len(traces), tokens, layers)


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
    if measure not in MEASURES:
        raise InputError(
            f"--measure {measure}: no such measure of a head. Choose one of {', '.join(MEASURES)}."
        )
    if len(paths) != 1:
        raise InputError("--measure works on one run. Give one path.")
    return formation(_history(paths[0]), measure)


def _with_needle(table: pandas.DataFrame, trace: TraceData, text: str) -> pandas.DataFrame:
    """With columns: the share of the needle that each head copies, its mass there, and chance's."""
    import pandas

    copied = retrieval(trace, find_needle(trace.tokens, text))
    return table.merge(pandas.DataFrame(copied), how="left", on=["layer", "head"])
