"""`weft rollout`."""

from typing import Annotated

import typer

from weft.cli.options import AsJson, Exact, Kind, Position, Top, TracePath
from weft.cli.output import print_json, print_places

PLACE = ("Read", 4)

Column = Annotated[
    bool, typer.Option("--column", help="Print which positions the position reached instead.")
]


def rollout(
    path: TracePath, token: Position = -1, column: Column = False, kind: Kind = None,
    exact: Exact = None, top: Top = 20, as_json: AsJson = False,
) -> None:  # fmt: skip
    """Print how much of each input position an output position holds, through all layers."""
    from weft.analysis.graphs.rollout import ends, passed_over, rollout_columns, rollout_rows
    from weft.formats.tokens import shown, visible
    from weft.formats.trace import TraceData

    trace = TraceData.open(path)
    result = (rollout_columns if column else rollout_rows)(trace, token, kind=kind, exact=exact)
    values = result.values.flatten().tolist()
    queries, keys = (shown(trace.sequences[name]) for name in ends(trace, kind))
    own, others = (keys, queries) if column else (queries, keys)
    print(f"{visible(own[token])} ({token % len(own)}) {'went to' if column else 'holds'}:")
    print_places(values, others, top)
    bound = float(result.bound.max())
    left = passed_over(trace, kind)
    if left is not None:
        print(left)
    print(f"No entry {'of that ' if left else ''}is more than {bound:.1e} too low.")
    if as_json:
        print_json({"trace": str(path), "values": values, "bound": bound, "passed_over": left})
