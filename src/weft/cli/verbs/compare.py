"""`weft compare`."""

from weft.cli.options import AsJson, Exact, SecondTrace, Top, TracePath
from weft.cli.output import print_frame, print_json, records

PLACE = ("Read", 6)


def compare(
    first: TracePath, second: SecondTrace, exact: Exact = None, top: Top = 20,
    as_json: AsJson = False,
) -> None:  # fmt: skip
    """Compare two traces: print the heads and edges that changed most."""
    from weft.analysis.compare import compare as compare_traces
    from weft.formats.trace import TraceData

    result = compare_traces(TraceData.open(first), TraceData.open(second), exact=exact, edges=top)
    differ, tokens = result.tokens
    heads, edges = result.table(), result.edge_table()
    print(f"{differ} of {tokens} tokens differ. Heads, by the share of mass that is elsewhere:")
    print_frame(heads.head(top))
    print("Edges:")
    print_frame(edges)
    if as_json:
        print_json({"tokens_differ": differ, "heads": records(heads), "edges": records(edges)})
