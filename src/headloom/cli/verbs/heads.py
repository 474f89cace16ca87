"""`headloom heads`."""

from __future__ import annotations

from collections.abc import Sequence
from pathlib import Path
from typing import TYPE_CHECKING, Annotated

import typer

from headloom.cli import options as option
from headloom.cli.output import (
    cell,
    print_csv,
    print_frame,
    print_json,
    print_table,
    records,
    working,
)

if TYPE_CHECKING:
    from headloom.analysis.heads.formation import Moment

Every = Annotated[
    bool, typer.Option("--all", help="Every head and measure, also heads without a role.")
]
Role = Annotated[str | None, typer.Option(help="Only heads of this role.")]
Sort = Annotated[
    str | None,
    typer.Option(
        help="Sort by this column, largest first; default: by layer and head, with --needle by "
        "retrieval."
    ),
]
Needle = Annotated[
    str | None,
    typer.Option(
        help="A part of the text that occurs twice: measure which heads look back at its first "
        "copy when it is written again."
    ),
]
InTraining = Annotated[
    str | None,
    typer.Option(
        "--measure", metavar="NAME",
        help="For a run: this measure of every head, snapshot by snapshot; alone.",
    ),
]  # fmt: skip

#: Columns that are shown of heads with a role.
_SHOWN = (
    "layer", "head", "role", "score", "chance", "chance_sd", "z", "p", "broad", "entropy",
    "distance",
)  # fmt: skip


def heads(
    paths: option.TracePaths, every: Every = False, role: Role = None, layer: option.Layer = None,
    sort: Sort = None, limit: option.AllRows = None, exact: option.Exact = None,
    needle: Needle = None, measure: InTraining = None, as_csv: option.AsCsv = False,
    as_json: option.AsJson = False,
) -> None:  # fmt: skip
    """Print the role of each head of a traced model, with what chance would score."""
    from headloom.analysis.heads.roles import MEASURES
    from headloom.api.heads import head_table, heads_in_training

    if measure is not None:
        with working("measuring every snapshot"):
            moments = heads_in_training(paths, measure)
        _print_training(paths[0], measure, moments, as_csv, as_json)
        return
    with working("measuring heads"):
        table = head_table(
            paths, every=every or as_csv or as_json, role=role, layer=layer, sort=sort,
            limit=limit, needle=needle, exact=exact,
        )  # fmt: skip
    if as_csv:
        print_frame(table.rows, as_csv)
        return
    rows = records(table.rows)
    kept = ("source", "rest") if any(row["source"] == "kept" for row in rows) else ("source",)
    added = [name for name in table.rows.columns if name.startswith(("retrieval", "needle"))]
    columns = [*_SHOWN[:8], *(MEASURES if every else _SHOWN[8:]), *added, *kept]
    named = [row | {"layer": table.traces[0].label(int(str(row["layer"])))} for row in rows]
    cells = [[cell(name, row[name]) for name in columns] for row in named]
    if rows:
        print_table(columns, cells, left=("layer", "role", "source"))
    roles = ", ".join(f"{count} {name}" for name, count in table.roles.items())
    texts = f"{len(table.traces)} text{'s' if len(table.traces) != 1 else ''}"
    tokens = sum(len(next(iter(trace.sequences.values()))) for trace in table.traces)
    print(f"{len(rows)} of {table.heads} heads; {texts}, {tokens:,} tokens. Roles: {roles}.")
    if len(rows) < table.heads and (role, layer, limit) == (None, None, None):
        print("Heads without a role are left out; --all shows them.")
    if as_json:
        print_json({"traces": [str(path) for path in paths], "heads": rows})


def _print_training(
    run: Path, measure: str, moments: Sequence[Moment], as_csv: bool, as_json: bool
) -> None:
    """Print a measure of every head, a row for each snapshot of a training."""
    heads = [f"{layer}.{head}" for layer, head in moments[0].scores]
    header = ("step", "loss", *heads)
    rows = [
        [str(moment.step), cell("loss", moment.loss),
         *(cell(measure, score) for score in moment.scores.values())]
        for moment in moments
    ]  # fmt: skip
    if as_csv:
        print_csv(header, rows)
        return
    print_table(header, rows)
    if as_json:
        steps = [
            {"step": moment.step, "loss": moment.loss, "heads": list(moment.scores.values())}
            for moment in moments
        ]
        print_json({"run": str(run), "measure": measure, "heads": heads, "steps": steps})
