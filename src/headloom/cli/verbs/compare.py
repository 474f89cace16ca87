"""`headloom compare`."""

import headloom
from headloom.cli.options import AsJson, Exact, Rows, SecondTrace, TracePath
from headloom.cli.output import changed_edges, print_frame, print_json, progress_bar, records


def compare(
    first: TracePath, second: SecondTrace, exact: Exact = None, limit: Rows = 20,
    as_json: AsJson = False,
) -> None:  # fmt: skip
    """Compare two traces: print the heads and edges that changed most."""
    with progress_bar("comparing"):
        result = headloom.compare(first, second, exact=exact, edges=limit)
    heads, edges = result.heads.head(limit), result.edges
    print(*result.notes, sep="\n")
    if result.changed:
        print_frame(heads)
        print("Edges:" if len(edges) else "No edge changed.")
        print_frame(changed_edges(edges))
    if as_json:
        equal = result.most == 0 and result.exact
        tables = {"heads": records(heads), "edges": records(edges)}
        print_json({"tokens_differ": result.tokens[0], "equal": equal, **tables})
