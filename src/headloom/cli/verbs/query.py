"""`headloom query`."""

from pathlib import Path
from typing import Annotated

from typer import Argument, Option

import headloom
from headloom.cli import options as option
from headloom.cli.output import print_frame, print_json, progress_bar, records

Sql = Annotated[str, Argument(metavar="SQL", help="One SELECT statement; -: standard input.")]
OutputFile = Annotated[
    Path | None, Option("-o", "--output", help="A file: .csv, .parquet or .json.")
]


def query(
    path: option.TraceOrFolder, sql: Sql, output: OutputFile = None,
    limit: option.FewRows = None, as_csv: option.AsCsv = False, as_json: option.AsJson = False,
) -> None:  # fmt: skip
    """Query traces in SQL.

    The tables: edges, rows, keys, received, tokens, layers, heads, named.
    """
    question = "\n".join(option.input_lines()) if sql == "-" else sql
    if output is not None:
        with progress_bar("asking"):
            count = headloom.query(path, question, output=output)
        print(f"{output}: {count:,} rows")
        if as_json:
            print_json({"file": str(output), "rows": count})
        return
    with progress_bar("asking"):
        table = headloom.query(path, question)
    if as_json:
        print_json({"columns": list(table), "rows": [[*row.values()] for row in records(table)]})
    else:
        print_frame(table, as_csv, option.rows_of(limit, as_csv, len(table)))
