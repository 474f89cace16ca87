"""`headloom query`."""

from pathlib import Path
from typing import Annotated

import typer

from headloom.cli import options as option
from headloom.cli.output import print_arrow, print_csv, print_json, working

Sql = Annotated[
    str, typer.Argument(metavar="SQL", help="One SELECT statement; - reads standard input.")
]
OutputFile = Annotated[
    Path | None, typer.Option("-o", "--output", help="A file: .csv, .parquet or .json.")
]


def query(
    path: option.TraceOrFolder, sql: Sql, output: OutputFile = None,
    limit: option.FewRows = None, as_csv: option.AsCsv = False, as_json: option.AsJson = False,
) -> None:  # fmt: skip
    """Ask traces in SQL: edges, rows, keys, received, tokens, layers, heads, named."""
    from headloom.analysis.sql.database import plain
    from headloom.analysis.sql.query import ask, open_traces

    question = "\n".join(option.input_lines()) if sql == "-" else sql
    with working("asking"):
        answer = ask(open_traces(path), question)
        count = 0 if output is None else answer.write(output)
        table = None if output is not None else answer.table()
    if table is None:
        print(f"{output}: {count:,} rows")
        if as_json:
            print_json({"file": str(output), "rows": count})
        return
    most = option.rows_of(limit, as_csv, table.num_rows)
    if as_csv:
        print_csv(
            answer.columns, zip(*plain(table.slice(0, most)).to_pydict().values(), strict=True)
        )
    elif as_json:
        rows = list(zip(*table.to_pydict().values(), strict=True))
        print_json({"columns": answer.columns, "rows": rows})
    else:
        print_arrow(table, most)
