"""`weft query`."""

from pathlib import Path
from typing import Annotated

import typer

from weft.cli.input import standard_input_lines
from weft.cli.options import AsJson, TraceOrFolder
from weft.cli.output import print_json
from weft.errors import InputError

PLACE = ("Read", 2)

Sql = Annotated[
    str, typer.Argument(metavar="SQL", help="One SELECT statement; - reads standard input.")
]
OutputFile = Annotated[
    Path | None, typer.Option("-o", "--output", help="A file: .csv, .parquet or .json.")
]
RowLimit = Annotated[int, typer.Option(min=0, help="Print this many rows at most.")]


def query(
    path: TraceOrFolder, sql: Sql, output: OutputFile = None, limit: RowLimit = 50,
    as_json: AsJson = False,
) -> None:  # fmt: skip
    """Ask traces in SQL: edges, rows, keys, received, tokens, layers, heads, named."""
    from weft.analysis.sql.query import WRITERS, ask, open_traces, shown

    if output is not None and output.suffix.lower() not in WRITERS:
        raise InputError(f"{output}: expected a file name that ends in {', '.join(WRITERS)}.")
    answer = ask(open_traces(path), "\n".join(standard_input_lines()) if sql == "-" else sql)
    if output is not None:
        count = answer.write(output)
        print(f"{output}: {count:,} rows")
        if as_json:
            print_json({"file": str(output), "rows": count})
        return
    table = answer.table()
    if as_json:
        rows = list(zip(*table.to_pydict().values(), strict=True))
        print_json({"columns": answer.columns, "rows": rows})
    else:
        print(shown(table, limit))
