"""`headloom query`."""

from pathlib import Path
from typing import Annotated

import typer

from headloom.cli.input import standard_input_lines
from headloom.cli.options import AsCsv, AsJson, SomeRows, TraceOrFolder, rows_of
from headloom.cli.output import print_csv, print_json, say, working
from headloom.cli.tables import print_arrow
from headloom.errors import InputError

PLACE = ("Read", 2)

Sql = Annotated[
    str, typer.Argument(metavar="SQL", help="One SELECT statement; - reads standard input.")
]
OutputFile = Annotated[
    Path | None, typer.Option("-o", "--output", help="A file: .csv, .parquet or .json.")
]


def query(
    path: TraceOrFolder, sql: Sql, output: OutputFile = None, limit: SomeRows = None,
    as_csv: AsCsv = False, as_json: AsJson = False,
) -> None:  # fmt: skip
    """Ask traces in SQL: edges, rows, keys, received, tokens, layers, heads, named."""
    from headloom.analysis.sql.answer import WRITERS, rows_of_csv
    from headloom.analysis.sql.query import ask, open_traces

    if output is not None and output.suffix.lower() not in WRITERS:
        raise InputError(f"{output}: expected a file name that ends in {', '.join(WRITERS)}.")
    question = "\n".join(standard_input_lines()) if sql == "-" else sql
    with working("asking"):
        answer = ask(open_traces(path), question)
    if output is not None:
        count = answer.write(output)
        if answer.note:
            say(answer.note)
        print(f"{output}: {count:,} rows")
        if as_json:
            print_json({"file": str(output), "rows": count})
        return
    with working("asking"):
        table = answer.table()
    if answer.note:
        say(answer.note)
    limit = rows_of(limit, as_csv, 50, table.num_rows)
    if as_csv:
        print_csv(answer.columns, rows_of_csv(table.slice(0, limit)))
    elif as_json:
        rows = list(zip(*table.to_pydict().values(), strict=True))
        print_json({"columns": answer.columns, "rows": rows})
    else:
        print_arrow(table, limit)
