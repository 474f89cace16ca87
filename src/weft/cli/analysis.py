"""Verbs that read traces: questions in SQL, measures of the graphs, comparisons."""

from __future__ import annotations

from pathlib import Path
from typing import Annotated, Any

import typer

from weft.cli.commands import app
from weft.cli.output import exact_output
from weft.cli.terminal import AsJson, standard_input_lines
from weft.cli.terminal import print_json as _print_json
from weft.errors import InputError

__all__: list[str] = []

TracePath = Annotated[Path, typer.Argument(metavar="TRACE", help="A trace folder.")]
Exact = Annotated[
    bool | None,
    typer.Option(
        "--exact/--kept",
        help="From all weights, or from the kept edges; default: from all where that is cheap.",
    ),
]
Position = Annotated[int, typer.Option(help="A position; negative ones from the end.")]
Kind = Annotated[
    str | None, typer.Option(help="encoder, decoder or cross; default: the whole model.")
]
Top = Annotated[int, typer.Option(min=1, help="Positions printed at most.")]

#: Input positions that `flow` asks about unless they are named: each is a max-flow problem.
FLOWS = 256


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
    from weft.analysis.sql.query import WRITERS, ask, finite, open_traces, shown

    if output is not None and output.suffix.lower() not in WRITERS:
        raise InputError(f"{output}: expected a file name that ends in {', '.join(WRITERS)}.")
    answer = ask(open_traces(path), "\n".join(standard_input_lines()) if sql == "-" else sql)
    if output is not None:
        rows = answer.write(output)
        print(f"{output}: {rows:,} rows")
        if as_json:
            _print_json({"file": str(output), "rows": rows})
        return
    table = answer.table()
    if as_json:
        columns, rows_of = answer.columns, list(zip(*table.to_pydict().values(), strict=True))
        _print_json({"columns": columns, "rows": finite(rows_of)})
    else:
        print(shown(table, limit))


@app.command()
def measures(
    path: TracePath,
    by: Annotated[str, typer.Option(help="head or layer: what a row is.")] = "layer",
    exact: Exact = None,
    share: Annotated[float, typer.Option(help="Of the mass, that heavy hitters hold.")] = 0.9,
    threshold: Annotated[float, typer.Option(help="The weight of an edge that connects.")] = 0.1,
    as_csv: Annotated[bool, typer.Option("--csv", help="Print comma-separated values.")] = False,
    as_json: AsJson = False,
) -> None:
    """Graph measures: who receives, heavy hitters, PageRank, reciprocity, rank, connected parts."""
    from weft.analysis.graphs.table import graph_measures
    from weft.formats.trace import TraceData

    table = graph_measures(
        TraceData.open(path), by=by, exact=exact, share=share, threshold=threshold
    )
    _print_frame(table, as_csv)
    if as_json:
        _print_json({"trace": str(path), "measures": _records(table)})


@app.command()
def rollout(
    path: TracePath,
    token: Position = 0,
    column: Annotated[
        bool, typer.Option("--column", help="Where the position went, not what it holds.")
    ] = False,
    kind: Kind = None,
    exact: Exact = None,
    top: Top = 20,
    as_json: AsJson = False,
) -> None:
    """Rollout: how much of each input position is in an output position, through all layers."""
    from weft.analysis.graphs.rollout import ends, rollout_columns, rollout_rows
    from weft.formats.tokens import shown, visible
    from weft.formats.trace import TraceData

    trace = TraceData.open(path)
    take = rollout_columns if column else rollout_rows
    found = take(trace, token, kind=kind, exact=exact)
    values = found.values.flatten()
    queries, keys = (shown(trace.sequences[name]) for name in ends(trace, kind))
    own, others = (keys, queries) if column else (queries, keys)
    print(f"{visible(own[token])} ({token % len(own)}) {'went to' if column else 'holds'}:")
    for place in values.argsort(descending=True)[:top].tolist():
        print(f"{float(values[place]):8.4f}  {place:6}  {visible(others[place])}")
    bound = float(found.bound.max())
    print(f"No entry is more than {bound:.1e} too low.")
    if as_json:
        _print_json({"trace": str(path), "values": values.tolist(), "bound": bound})


@app.command()
def flow(
    path: TracePath,
    token: Position = 0,
    to: Annotated[
        list[int] | None,
        typer.Option("--to", help="An input position; may be repeated. Default: all, up to 256."),
    ] = None,
    kind: Kind = None,
    exact: Exact = None,
    top: Top = 20,
    as_json: AsJson = False,
) -> None:
    """Attention flow: how much can flow from a position to input positions, through all layers."""
    from weft.analysis.graphs.flow import attention_flow
    from weft.analysis.graphs.rollout import ends
    from weft.formats.tokens import shown, visible
    from weft.formats.trace import TraceData

    trace = TraceData.open(path)
    queries, keys = (shown(trace.sequences[name]) for name in ends(trace, kind))
    if not to and len(keys) > FLOWS:
        raise InputError(
            f"flow: {len(keys):,} input positions, each of which is a problem of its own. Name "
            f"those that are wanted, as --to 0 --to 5; all of them up to {FLOWS}."
        )
    wanted = to or list(range(len(keys)))
    found = attention_flow(trace, token, wanted, kind=kind, exact=exact)
    print(f"{visible(queries[token])} ({token % len(queries)}), at least and at most from:")
    for place in found.middle.argsort(descending=True, stable=True)[:top].tolist():
        least, most = float(found.lower[place]), float(found.upper[place])
        key = wanted[place]
        print(f"{least:8.4f}  {most:8.4f}  {key % len(keys):6}  {visible(keys[key])}")
    if as_json:
        lower, upper = found.lower.tolist(), found.upper.tolist()
        _print_json({"trace": str(path), "targets": wanted, "lower": lower, "upper": upper})


@app.command()
def weights(
    model: Annotated[
        str,
        typer.Argument(
            metavar="MODEL", help="A training run; or a model of Hugging Face: a folder, or a name."
        ),
    ],
    by: Annotated[str, typer.Option(help="layer or head: what a row is.")] = "layer",
    history: Annotated[
        bool, typer.Option("--history", help="Of a run: each snapshot of its training.")
    ] = False,
    as_csv: Annotated[bool, typer.Option("--csv", help="Print comma-separated values.")] = False,
    as_json: AsJson = False,
) -> None:
    """The learned matrices: symmetry and direction of W_Q W_K^T, ranks, norms, copying."""
    from weft.analysis.matrices.projections import matrices_of
    from weft.analysis.matrices.table import history_measures, weight_measures

    if (Path(model) / "run.json").exists():
        from weft.formats.history import History
        from weft.training.inference import open_run

        run = open_run(model)
        layers = matrices_of(run.model)
        table = (
            history_measures(History(run.folder.history), by=by)
            if history
            else weight_measures(layers, by=by)
        )
    else:
        from weft.tracing.pretrained import load_pretrained

        layers = matrices_of(load_pretrained(model)[0])
        if history:
            raise InputError(f"{model}: --history is of a training run; this is none.")
        table = weight_measures(layers, by=by)
    _print_frame(table, as_csv)
    if as_json:
        _print_json({"model": model, "weights": _records(table)})


@app.command()
def compare(
    first: Annotated[Path, typer.Argument(metavar="TRACE", help="A trace folder.")],
    second: Annotated[Path, typer.Argument(metavar="TRACE", help="Another, of as many tokens.")],
    exact: Exact = None,
    top: Annotated[int, typer.Option(min=1, help="Heads and edges printed at most.")] = 20,
    as_json: AsJson = False,
) -> None:
    """Two traces side by side: the heads and edges that changed most."""
    from weft.analysis.compare import compare as compare_traces
    from weft.formats.trace import TraceData

    found = compare_traces(TraceData.open(first), TraceData.open(second), exact=exact, edges=top)
    differ, tokens = found.tokens
    heads, edges = found.table(), found.edge_table()
    print(f"{differ} of {tokens} tokens differ. Heads, by the share of mass that is elsewhere:")
    _print_frame(heads.head(top), False)
    print("Edges:")
    _print_frame(edges, False)
    if as_json:
        _print_json({"tokens_differ": differ, "heads": _records(heads), "edges": _records(edges)})


def _print_frame(table: Any, as_csv: bool) -> None:
    """A DataFrame, aligned or as comma-separated values."""
    import pyarrow as pa

    from weft.analysis.sql.query import shown

    if as_csv:
        table.to_csv(exact_output(), index=False)
    else:
        print(shown(pa.Table.from_pandas(table, preserve_index=False), len(table)))


def _records(table: Any) -> list[dict[str, Any]]:
    """Rows for JSON, which has no number that is none."""
    return [
        {name: None if value != value else value for name, value in row.items()}
        for row in table.to_dict("records")
    ]
