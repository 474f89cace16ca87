"""`headloom flow`."""

from headloom.cli import options as option
from headloom.cli.measure_report import print_measure
from headloom.cli.output import working

PLACE = ("Read", 5)


def flow(
    path: option.TracePath, token: option.Position = -1, sources: option.FlowSources = None,
    kind: option.Kind = None, exact: option.Exact = None, limit: option.FewRows = None,
    as_csv: option.AsCsv = False, as_json: option.AsJson = False,
) -> None:  # fmt: skip
    """Print how much can flow from a position to input positions, through all layers."""
    from headloom.analysis import measures
    from headloom.formats.trace import TraceData

    trace = TraceData.open(path)
    with working("computing flows"):
        table = measures.flow(trace, token=token, sources=sources or (), kind=kind, exact=exact)
    print_measure(path, trace, table, limit=limit, as_csv=as_csv, as_json=as_json)
