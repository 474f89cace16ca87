"""Verbs that read traces: questions in SQL, measures of the graphs, comparisons."""

from __future__ import annotations

import sys
from pathlib import Path
from typing import Annotated

import typer

from weft.cli.commands import AsJson, _print_json, app
from weft.errors import InputError

__all__: list[str] = []

TracePath = Annotated[Path, typer.Argument(metavar="TRACE", help="A trace folder.")]


@app.command()
def query(
    path: Annotated[
        Path, typer.Argument(metavar="TRACE", help="A trace folder, or a folder of traces.")
    ],
    sql: Annotated[
        str, typer.Argument(metavar="SQL", help="One SELECT statement; - reads standard input.")
    ],
    output: Annotated[
        Path | None, typer.Option("-o", "--output", help="A file: .csv, .parquet or .json.")
    ] = None,
    limit: Annotated[int, typer.Option(min=0, help="Rows printed at most.")] = 50,
    as_json: AsJson = False,
) -> None:
    """Ask traces in SQL; views: edges, rows, keys, tokens, layers, heads, named."""
    from weft.analysis.query import WRITERS, ask, open_traces, shown

    if output is not None and output.suffix.lower() not in WRITERS:
        raise InputError(f"{output}: expected a file name that ends in {', '.join(WRITERS)}.")
    answer = ask(open_traces(path), sys.stdin.read() if sql == "-" else sql)
    if output is not None:
        rows = answer.write(output)
        print(f"{output}: {rows:,} rows")
        if as_json:
            _print_json({"file": str(output), "rows": rows})
        return
    table = answer.table()
    if as_json:
        columns, rows_of = answer.columns, list(zip(*table.to_pydict().values(), strict=True))
        _print_json({"columns": columns, "rows": rows_of})
    else:
        print(shown(table, limit))
