"""`headloom rollout`."""

import warnings
from typing import Annotated

import typer

from headloom.cli import options as option
from headloom.cli.output import print_csv, print_json, say_all, working
from headloom.cli.tables import largest, print_places

PLACE = ("Read", 4)

Column = Annotated[
    bool, typer.Option("--column", help="Print which positions the position reached instead.")
]


def rollout(
    path: option.TracePath, token: option.Position = -1, column: Column = False,
    kind: option.Kind = None, exact: option.Exact = None, limit: option.FewRows = None,
    as_csv: option.AsCsv = False, as_json: option.AsJson = False,
) -> None:  # fmt: skip
    """Print how much of each input position an output position holds, through all layers."""
    from headloom.analysis.graphs import rollout as graphs
    from headloom.formats.bounds import outward
    from headloom.formats.tokens import shown, visible
    from headloom.formats.trace import TraceData

    trace = TraceData.open(path)
    with working("rolling out"), warnings.catch_warnings(action="ignore"):
        roll_out = graphs.rollout_columns if column else graphs.rollout_rows
        result = roll_out(trace, token, kind=kind, exact=exact)
    values = result.values.flatten().tolist()
    queries, keys = (shown(trace.sequences[name]) for name in graphs.ends(trace, kind))
    own, others = (keys, queries) if column else (queries, keys)
    limit = option.rows_of(limit, as_csv, 20, len(values))
    bound, left = float(result.bound.max()), graphs.passed_over(trace, kind)
    low = outward(bound, ".1e", upper=True)
    notes = (
        None if column else graphs.of_own(trace, result, kind),
        left,
        f"No entry {'of that ' if left else ''}is more than {low} too low.",
        rounded := graphs.of_rounded(trace, kind, exact),
    )
    if as_csv:
        rows = ((place, others[place], values[place]) for place in largest(values, limit))
        print_csv(("position", "token", "share"), rows)
        say_all(notes)
        return
    print(f"{visible(own[token])} ({token % len(own)}) {'went to' if column else 'holds'}:")
    print_places(values, others, limit, bounds=bound > 0)
    for note in filter(None, notes):
        print(note)
    if as_json:
        of_itself = None if result.own is None else float(result.own[0])
        said = {"bound": bound, "passed_over": left, "rounded": rounded}
        print_json({"trace": str(path), "values": values, "own": of_itself, **said})
