"""`headloom flow`."""

import warnings

from headloom.cli import options as option
from headloom.cli.output import print_csv, print_json, say_all, working
from headloom.cli.tables import significant
from headloom.errors import InputError

PLACE = ("Read", 5)

#: Input positions that are asked about unless they are named: each is a max-flow problem.
FLOWS = 256


def flow(
    path: option.TracePath, token: option.Position = -1, sources: option.FlowSources = None,
    kind: option.Kind = None, exact: option.Exact = None, limit: option.FewRows = None,
    as_csv: option.AsCsv = False, as_json: option.AsJson = False,
) -> None:  # fmt: skip
    """Print how much can flow from a position to input positions, through all layers."""
    from headloom.analysis.graphs.flow import attention_flow, of_rounded
    from headloom.analysis.graphs.rollout import ends, passed_over
    from headloom.formats.tokens import shown, visible
    from headloom.formats.trace import TraceData

    trace = TraceData.open(path)
    queries, keys = (shown(trace.sequences[name]) for name in ends(trace, kind))
    if not sources and len(keys) > FLOWS:
        raise InputError(
            f"flow: {len(keys):,} input positions, each of which is a problem of its own. Name "
            f"those that are wanted, as --from 0 --from 5; all of them up to {FLOWS}."
        )
    targets = sources or list(range(len(keys)))
    with working("computing flows"), warnings.catch_warnings(action="ignore"):
        flows = attention_flow(trace, token, targets, kind=kind, exact=exact)
    lower, upper, left = flows.lower.tolist(), flows.upper.tolist(), passed_over(trace, kind)
    order = flows.middle.argsort(descending=True, stable=True).tolist()
    rows = [
        (lower[place], upper[place], targets[place] % len(keys), keys[targets[place]])
        for place in order[: option.rows_of(limit, as_csv, 20, len(order))]
    ]
    rounded = of_rounded(trace, kind, exact)
    if as_csv:
        print_csv(("at_least", "at_most", "position", "token"), rows)
        say_all((left, rounded))
        return
    print(f"{visible(queries[token])} ({token % len(queries)}), at least and at most from:")
    ends_of_rows = (significant((row[end] for row in rows), end == 1) for end in (0, 1))
    for least, most, (*_, position, word) in zip(*ends_of_rows, rows, strict=True):
        print(f"  {least}  {most}  {position:6}  {visible(word)}")
    for note in filter(None, (left, rounded)):
        print(note)
    if as_json:
        print_json(
            {
                "trace": str(path), "targets": targets, "lower": lower, "upper": upper,
                "passed_over": left, "rounded": rounded,
            }
        )  # fmt: skip
