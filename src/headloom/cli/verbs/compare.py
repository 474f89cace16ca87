"""`headloom compare`."""

from headloom.cli.options import AsJson, Exact, Rows, SecondTrace, TracePath
from headloom.cli.output import print_frame, print_json, records, with_layers, working

#: What float32 rounds of a head's change, at most.
ROUNDED = 1e-6


def compare(
    first: TracePath, second: SecondTrace, exact: Exact = None, limit: Rows = 20,
    as_json: AsJson = False,
) -> None:  # fmt: skip
    """Compare two traces: print the heads and edges that changed most."""
    from headloom.analysis.compare import compare as compare_traces
    from headloom.analysis.compare import first_difference
    from headloom.analysis.weights import in_half_precision
    from headloom.formats.tokens import visible
    from headloom.formats.trace import TraceData

    traces = TraceData.open(first), TraceData.open(second)
    with working("comparing"):
        result = compare_traces(*traces, exact=exact, edges=limit)
    differ, tokens = result.tokens
    heads, edges = result.heads, result.edges
    for note in {in_half_precision(trace.layers) for trace in traces} - {""}:
        print(note)
    print(f"{differ} of {tokens} tokens differ. {first_difference(*traces)}".rstrip())
    most, of_all = result.most, bool(heads["exact"].all())
    if most < ROUNDED and not of_all:
        print("The kept edges are the same; others are not known.")
    elif most < ROUNDED:
        rounding = " but for what float32 rounds" if most else ""
        print(f"The weights are equal{rounding}: none of the {len(heads)} heads changed.")
    else:
        if limit:
            least = "" if of_all else ", of kept edges, at least"
            print(f"Heads, by the share of mass that is elsewhere{least}:")
            print_frame(with_layers(heads.head(limit), *traces))
            print("Edges:" if len(edges) else "No edge changed.")
        if len(edges):
            both = edges.drop(columns=["other_query_token", "other_key_token"])
            for end in ("before", "after"):
                unkept = edges["unkept"] == end
                both[end] = both[end].map("{:.6g}".format).where(~unkept, other="not kept")
            for end in ("query_token", "key_token"):
                pairs = zip(edges[end], edges[f"other_{end}"], strict=True)
                both[end] = [a if a == b else f"{visible(a)}/{visible(b)}" for a, b in pairs]
            print_frame(with_layers(both, traces[0]))
    if as_json:
        print_json(
            {
                "tokens_differ": differ,
                "equal": most == 0 and of_all,
                "heads": records(heads.head(limit)),
                "edges": records(edges),
            }
        )
