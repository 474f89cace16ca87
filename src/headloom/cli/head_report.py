"""The tables that `headloom heads` prints."""

from __future__ import annotations

from collections.abc import Sequence
from pathlib import Path
from typing import TYPE_CHECKING

from headloom.cli.output import print_csv, print_json
from headloom.cli.tables import cell, print_frame, print_table, records

if TYPE_CHECKING:
    from headloom.analysis.heads.formation import Moment
    from headloom.api.head_table import HeadTable

__all__ = ["print_head_table", "print_training"]

#: Columns that are always shown, and those that are shown of heads with a role.
_FIRST = ("layer", "head", "role", "score", "chance", "chance_sd", "z", "p")
_LAST = ("broad", "entropy", "distance")
#: Of which weights; and of kept edges, what mass is on others.
_KEPT = ("source", "rest")


def print_head_table(
    paths: Sequence[Path],
    table: HeadTable,
    every: bool,
    limit: int | None,
    as_csv: bool,
    as_json: bool,
) -> None:
    """Print a row for each head, and how many heads have each role.

    every: with all measures. limit: rows that were asked for at most.
    """
    from headloom.analysis.heads.roles import MEASURES

    if as_csv:
        print_frame(table.rows, as_csv)
        return
    names = [
        *_FIRST,
        *(MEASURES if every else _LAST),
        *table.added,
        *_KEPT[: 2 if "kept" in set(table.rows["source"]) else 1],
    ]
    rows = records(table.rows)
    left_out: Sequence[str] = ()
    if rows:
        left_out = print_table(
            names,
            [
                [cell(name, row[name]) for name in names]
                for row in (row | {"layer": table.layers[row["layer"]]} for row in rows)
            ],
            left=("layer", "role", "source"),
            may_go=() if every else (*_FIRST[4:], *_LAST, "source"),
        )
    elif limit != 0:
        print(f"No head has {'a role but broad' if table.left_out else 'such a role'}.")
    roles = ", ".join(f"{count} {name}" for name, count in table.roles.items())
    texts = f"{table.texts} text{'s' if table.texts != 1 else ''}, {table.tokens:,} tokens"
    print(f"{len(rows)} of {table.heads} heads; {texts}. Roles: {roles}.")
    if table.left_out:
        print("Heads without a role are left out; --all shows them.")
    if left_out:
        print(f"No room for {', '.join(left_out)}: --csv and wider terminals show them.")
    if as_json:
        print_json({"traces": [str(path) for path in paths], "heads": rows})


def print_training(
    paths: Sequence[Path], measure: str, moments: Sequence[Moment], as_csv: bool, as_json: bool
) -> None:
    """Print a measure of every head, a row for each snapshot of a training."""
    heads = [f"{layer}.{head}" for layer, head in moments[0].scores]
    header = ("step", "loss", *heads)
    rows = [
        [
            str(moment.step),
            "" if moment.loss is None else f"{moment.loss:.4f}",
            *(cell(measure, score) for score in moment.scores.values()),
        ]
        for moment in moments
    ]
    if as_csv:
        print_csv(header, rows)
        return
    print_table(header, rows)
    if as_json:
        steps = [
            {"step": moment.step, "loss": moment.loss, "heads": list(moment.scores.values())}
            for moment in moments
        ]
        print_json({"run": str(paths[0]), "measure": measure, "heads": heads, "steps": steps})
