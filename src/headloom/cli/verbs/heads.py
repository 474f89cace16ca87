"""`headloom heads`."""

from __future__ import annotations

from typing import TYPE_CHECKING, Annotated

from typer import Option

import headloom
from headloom.cli import options as option
from headloom.cli.output import (
    cell,
    print_frame,
    print_json,
    print_table,
    progress_bar,
    records,
    with_layers,
)

if TYPE_CHECKING:
    import pandas

Every = Annotated[
    bool, Option("--all", help="Every head and every measure, also heads without a role.")
]
Role = Annotated[str | None, Option(help="Only heads of this role.")]
Sort = Annotated[
    str | None,
    Option(
        help="Sort by this column, largest first. Default: layer and head; with --needle: "
        "retrieval."
    ),
]
Needle = Annotated[
    str | None,
    Option(
        help="A part of the text that occurs twice: which heads look back at the first "
        "copy while the second is read?"
    ),
]
InTraining = Annotated[
    str | None,
    Option(
        "--measure", metavar="NAME",
        help="For a run: this measure of every head at every snapshot.",
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
    """Print the role of each head, beside the score by chance."""
    with progress_bar("measuring heads" if measure is None else "measuring every snapshot"):
        table = headloom.heads(
            paths, role=role, layer=layer, sort=sort, exact=exact, needle=needle, measure=measure,
        )  # fmt: skip
    whole = every or as_csv or as_json or (role, needle, measure) != (None, None, None)
    shown = table if whole else table[~table["role"].isin(["broad", "mixed"])]
    shown = shown if limit is None else shown.head(limit)
    about, traces = table.attrs, {"traces": [str(path) for path in paths]}
    if as_csv:
        print_frame(shown, as_csv)
    elif measure is not None:
        columns = [[cell(measure, value) for value in shown[name]] for name in shown]
        print_table(shown.columns.to_list(), zip(*columns, strict=True))
        if as_json:
            print_json({**traces, "measure": measure, "steps": records(shown)})
    else:
        _print_heads(with_layers(shown), every)
        roles = ", ".join(f"{count} {name}" for name, count in about["roles"].items())
        texts = f"{about['texts']} text{'s' if about['texts'] != 1 else ''}"
        print(
            f"{len(shown)} of {about['heads']} heads; {texts}, {about['tokens']:,} tokens. "
            f"Roles: {roles}."
        )
        if not whole and len(shown) < about["heads"] and (layer, limit) == (None, None):
            print("Heads without a role are left out; --all shows them.")
        if as_json:
            print_json({**traces, "heads": records(shown)})


def _print_heads(table: pandas.DataFrame, full: bool) -> None:
    """Print the columns of a table of heads: with --all every measure, else those of the role."""
    kept = ["source", "rest"] if "kept" in set(table["source"]) else ["source"]
    every = [name for name in map(str, table) if name not in ("name", "source", "rest")]
    few = [name for name in every if name in _SHOWN or name.startswith(("retrieval", "needle"))]
    rows = records(table[[*(every if full else few), *kept]])
    if rows:
        cells = [[cell(name, value) for name, value in row.items()] for row in rows]
        print_table(list(rows[0]), cells, left=("layer", "role", "source"))
