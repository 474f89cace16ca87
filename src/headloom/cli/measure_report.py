"""What every measure of a trace prints: its title, a table, and its notes."""

from __future__ import annotations

from pathlib import Path
from typing import TYPE_CHECKING

from headloom.cli.options import rows_of
from headloom.cli.output import print_json, say_all
from headloom.cli.tables import print_frame, records, with_layers

if TYPE_CHECKING:
    from headloom.analysis.measures import Table
    from headloom.formats.trace import TraceData

__all__ = ["print_measure"]


def print_measure(
    path: Path,
    trace: TraceData,
    table: Table,
    *,
    limit: int | None,
    usual: int | None = 20,
    as_csv: bool,
    as_json: bool,
) -> None:
    """Print a measure. usual: rows for a person who asks for no number; None: all."""
    count = len(table.rows)
    rows = table.rows.head(rows_of(limit, as_csv, count if usual is None else usual, count))
    if as_csv:
        print_frame(rows, as_csv)
        say_all(table.notes)
        return
    if table.title:
        print(table.title)
    if len(rows):
        print_frame(with_layers(rows, trace) if "layer" in rows else rows)
        if len(rows) < count:
            print(f"and {count - len(rows):,} more")
    for note in table.notes:
        print(note)
    if as_json:
        print_json({"trace": str(path), "rows": records(table.rows), "notes": list(table.notes)})
