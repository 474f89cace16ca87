"""`weft heads`: what each head is for, as a table."""

from __future__ import annotations

import json
import math
from pathlib import Path
from typing import TYPE_CHECKING, Annotated, Any

import typer

from weft.cli.output import exact_output
from weft.cli.terminal import print_table
from weft.errors import DataError, InputError

if TYPE_CHECKING:
    import pandas
    from rich.table import Table

    from weft.formats.history import History
    from weft.formats.trace import TraceData

__all__ = ["find_traces", "heads"]

#: Columns that are always shown, and those that are shown of heads with a role.
_FIRST = ("layer", "head", "role", "score", "null", "null_sd", "z", "p")
_LAST = ("broad", "entropy", "distance")
_NEEDLE = ("retrieval", "needle", "needle_null", "needle_p")


def heads(
    paths: Annotated[
        list[Path],
        typer.Argument(
            metavar="TRACE...", help="Traces of one model, or their folder; or a training run."
        ),
    ],
    every: Annotated[
        bool, typer.Option("--all", help="Every head and measure, not only heads with a role.")
    ] = False,
    role: Annotated[str | None, typer.Option(help="Only heads of this role.")] = None,
    layer: Annotated[int | None, typer.Option(min=0, help="Only heads of this layer.")] = None,
    sort: Annotated[
        str | None, typer.Option(help="By this column, largest first; default: by layer and head.")
    ] = None,
    limit: Annotated[int | None, typer.Option(min=1, help="At most so many heads.")] = None,
    exact: Annotated[
        bool | None,
        typer.Option(
            "--exact/--kept",
            help="Exact to the last measure, or from the kept edges alone; default: exact where "
            "that is cheap.",
        ),
    ] = None,
    reach: Annotated[int, typer.Option(min=0, help="Tokens on either side that are local.")] = 4,
    alpha: Annotated[
        float, typer.Option(help="The chance of one false role among all heads, at most.")
    ] = 0.01,
    least: Annotated[
        float, typer.Option(help="The smallest effect that makes a role, 0 to 1.")
    ] = 0.2,
    clusters: Annotated[
        int | None,
        typer.Option(min=0, help="Clusters of heads that look alike: how many; 0: by distance."),
    ] = None,
    needle: Annotated[
        str | None,
        typer.Option(
            help="A part of the text that stands twice: which heads fetch it where it is written "
            "again; '' for the longest one."
        ),
    ] = None,
    history: Annotated[
        str | None,
        typer.Option(
            metavar="MEASURE", help="Of a run: this measure of every head, snapshot by snapshot."
        ),
    ] = None,
    as_csv: Annotated[bool, typer.Option("--csv", help="Print comma-separated values.")] = False,
    as_json: Annotated[
        bool, typer.Option("--json", help="Print one JSON object as the last line.")
    ] = False,
) -> None:
    """What each head of a traced model is for, and what chance would score."""
    from weft.analysis.heads.roles import NO_NUMBER, ROLES
    from weft.analysis.heads.roles import heads as table_of

    if history is not None:
        _check_alone(role, layer, sort, limit, exact, clusters, needle)
        _along(paths, history, as_csv, as_json)
        return
    roles = (*ROLES, "broad", "mixed", NO_NUMBER)
    if role is not None and role not in roles:
        raise InputError(f"--role {role}: no such role; there are {', '.join(roles)}.")
    traces = find_traces(paths)
    if len(traces) > 1 and (clusters is not None or needle is not None):
        raise InputError("--clusters, --needle: are of one text; give one trace.")
    table = table_of(traces, exact=exact, reach=reach, alpha=alpha, least=least)
    more: list[str] = []
    if clusters is not None:
        table, more = _with_clusters(table, traces[0], clusters, exact), ["cluster"]
    if needle is not None:
        table, more = _with_needle(table, traces[0], needle), [*more, *_NEEDLE]
        sort = "retrieval" if sort is None else sort
    whole = len(table)
    if sort is not None and sort not in table.columns:
        raise InputError(f"--sort {sort}: no such column; there are {', '.join(table.columns)}.")
    if layer is not None:
        if not (table["layer"] == layer).any():
            raise InputError(f"--layer {layer}: the trace has 0 to {int(table['layer'].max())}.")
        table = table[table["layer"] == layer]
    counts = table["role"].value_counts()
    if role is not None:
        table = table[table["role"] == role]
    elif not every and not more and not as_csv and not as_json:
        table = table[~table["role"].isin(["broad", "mixed"])]
    if sort is not None:
        table = table.sort_values(sort, ascending=sort in ("layer", "head", "role"), kind="stable")
    table = table if limit is None else table.head(limit)
    if as_csv:
        table.to_csv(exact_output(), index=False)
        return
    left_out = print_table(_rich_table(table, every, more), wide=every, needed=(*_FIRST[:4], *more))
    tokens = sum(len(next(iter(trace.sequences.values()))) for trace in traces)
    counted = ", ".join(f"{count} {name}" for name, count in counts.items())
    texts = f"{len(traces)} text{'s' if len(traces) != 1 else ''}, {tokens:,} tokens"
    print(f"{len(table)} of {whole} heads; {texts}. Roles: {counted}.")
    if len(table) < whole and role is None and layer is None and limit is None:
        print("Heads without a role are left out; --all shows them.")
    if left_out:
        print(f"No room for {', '.join(left_out)}: --csv and wider terminals show them.")
    if as_json:
        rows = [
            {name: None if _is_nan(value) else value for name, value in row.items()}
            for row in table.to_dict("records")
        ]
        print(json.dumps({"traces": [str(path) for path in paths], "heads": rows}, default=str))


def find_traces(paths: list[Path]) -> list[TraceData]:
    """The traces at some paths: each one, or a folder of several; of a run, its probe at the end.

    Raises: DataError: there is none.
    """
    from weft.formats.trace import TraceData

    found = []
    for path in paths:
        if (path / "run.json").is_file():
            from weft.analysis.heads.formation import trace_of_snapshot

            past = _history(path)
            found.append(trace_of_snapshot(past[past.steps[-1]]))
            continue
        inside = sorted(path.glob("*/trace.json")) if path.is_dir() else []
        if inside and not (path / "trace.json").exists():
            found += [TraceData.open(manifest.parent) for manifest in inside]
        else:
            found.append(TraceData.open(path))
    if not found:
        raise DataError("no trace is given. Make one: weft trace MODEL --text ... -o t.weft")
    return found


def _history(path: Path) -> History:
    """The history of a run.

    Raises: DataError: not a run, or one without snapshots.
    """
    from weft.formats.history import History
    from weft.formats.run import RunFolder

    past = History(RunFolder.open(path).history)
    if not past.steps:
        raise DataError(f"{path}: this run has no snapshots; it was trained without a history.")
    return past


def _check_alone(*given: object) -> None:
    """Raise an InputError where --history is given with an option that it would pass over."""
    names = ("--role", "--layer", "--sort", "--limit", "--exact/--kept", "--clusters", "--needle")
    named = [name for name, value in zip(names, given, strict=True) if value is not None]
    if named:
        raise InputError(
            f"--history: prints every head of a run, and takes no {', '.join(named)}. Leave "
            f"{'it' if len(named) == 1 else 'them'} out."
        )


def _along(paths: list[Path], measure: str, as_csv: bool, as_json: bool) -> None:
    """Print a measure of every head along a training."""
    from rich.table import Table

    from weft.analysis.heads.formation import formation

    if len(paths) != 1:
        raise InputError("--history: of one run; give one path.")
    moments = formation(_history(paths[0]), measure)
    heads = [f"{layer}.{head}" for layer, head in moments[0].scores]
    rows = [
        ["" if loss is None else f"{loss:.4f}", *(_said(measure, score) for score in scores)]
        for loss, scores in ((one.loss, one.scores.values()) for one in moments)
    ]
    if as_csv:
        print(",".join(("step", "loss", *heads)))
        for one, row in zip(moments, rows, strict=True):
            print(",".join((str(one.step), *row)))
        return
    table = Table(box=None, pad_edge=False, header_style="bold")
    for name in ("step", "loss", *heads):
        table.add_column(name, justify="right", no_wrap=True)
    for one, row in zip(moments, rows, strict=True):
        table.add_row(str(one.step), *row)
    print_table(table, wide=True)
    if as_json:
        steps = [
            {
                "step": one.step,
                "loss": one.loss,
                "heads": [None if _is_nan(score) else score for score in one.scores.values()],
            }
            for one in moments
        ]
        print(
            json.dumps({"run": str(paths[0]), "measure": measure, "heads": heads, "steps": steps})
        )


def _is_nan(value: Any) -> bool:
    return isinstance(value, float) and math.isnan(value)


def _with_clusters(
    table: pandas.DataFrame, trace: TraceData, count: int, exact: bool | None
) -> pandas.DataFrame:
    """With a column: the cluster of each head, from 0 for the largest; NaN where there is none."""
    from weft.analysis.heads.similarity import clusters, similarity

    first = trace.layers[0]
    alike = [
        number
        for number, layer in enumerate(trace.layers)
        if (layer.queries_from, layer.keys_from, layer.shape[1:])
        == (first.queries_from, first.keys_from, first.shape[1:])
    ]
    found = similarity(trace, exact=exact, layers=alike)
    numbers = clusters(found, count=count or None)
    of_head = dict(zip(found.heads, numbers.tolist(), strict=True))
    places = zip(table["layer"], table["head"], strict=True)
    column = [float(of_head.get(place, math.nan)) for place in places]
    return table.assign(cluster=column)


def _with_needle(table: pandas.DataFrame, trace: TraceData, text: str) -> pandas.DataFrame:
    """With columns: the share of the needle that each head copies, its mass there, and chance's."""
    import pandas

    from weft.analysis.heads.retrieval import find_needle, retrieval

    found = retrieval(trace, find_needle(trace.tokens, text or None))
    return table.merge(pandas.DataFrame(found), how="left", on=["layer", "head"])


def _rich_table(table: pandas.DataFrame, every: bool, more: list[str]) -> Table:
    from rich.table import Table

    from weft.analysis.heads.roles import MEASURES

    names = [*_FIRST, *(MEASURES if every else _LAST), *more, "source"]
    shown = Table(box=None, pad_edge=False, header_style="bold")
    for name in names:
        text = name in ("role", "source")
        shown.add_column(name, justify="left" if text else "right", no_wrap=True)
    for row in table.to_dict("records"):
        shown.add_row(*(_said(str(name), row[name]) for name in names))
    return shown


def _said(name: str, value: Any) -> str:
    """A cell as it is printed."""
    if value is None or _is_nan(value):
        return "-"
    if name == "cluster":
        return f"{value:.0f}"
    if name in ("p", "needle_p"):
        return "<1e-99" if value < 1e-99 else f"{value:.0e}"
    if name in ("z", "entropy", "distance"):
        return f"{value:.2f}"
    if isinstance(value, float):
        return f"{value:.4f}"
    return str(value)
