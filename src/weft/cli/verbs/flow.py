"""`weft flow`."""

from typing import Annotated

import typer

from weft.cli.options import AsJson, Exact, Kind, Position, Top, TracePath
from weft.cli.output import print_json
from weft.errors import InputError

PLACE = ("Read", 5)

#: Input positions that are asked about unless they are named: each is a max-flow problem.
FLOWS = 256

Targets = Annotated[
    list[int] | None,
    typer.Option("--to", help="An input position; may be repeated. Default: all, up to 256."),
]


def flow(
    path: TracePath, token: Position = -1, to: Targets = None, kind: Kind = None,
    exact: Exact = None, top: Top = 20, as_json: AsJson = False,
) -> None:  # fmt: skip
    """Print how much can flow from a position to input positions, through all layers."""
    from weft.analysis.graphs.flow import attention_flow
    from weft.analysis.graphs.rollout import ends, passed_over
    from weft.formats.tokens import shown, visible
    from weft.formats.trace import TraceData

    trace = TraceData.open(path)
    queries, keys = (shown(trace.sequences[name]) for name in ends(trace, kind))
    if not to and len(keys) > FLOWS:
        raise InputError(
            f"flow: {len(keys):,} input positions, each of which is a problem of its own. Name "
            f"those that are wanted, as --to 0 --to 5; all of them up to {FLOWS}."
        )
    targets = to or list(range(len(keys)))
    flows = attention_flow(trace, token, targets, kind=kind, exact=exact)
    print(f"{visible(queries[token])} ({token % len(queries)}), at least and at most from:")
    for place in flows.middle.argsort(descending=True, stable=True)[:top].tolist():
        least, most = float(flows.lower[place]), float(flows.upper[place])
        key = targets[place]
        print(f"{least:8.4f}  {most:8.4f}  {key % len(keys):6}  {visible(keys[key])}")
    left = passed_over(trace, kind)
    if left is not None:
        print(left)
    if as_json:
        lower, upper = flows.lower.tolist(), flows.upper.tolist()
        print_json(
            {
                "trace": str(path),
                "targets": targets,
                "lower": lower,
                "upper": upper,
                "passed_over": left,
            }
        )
