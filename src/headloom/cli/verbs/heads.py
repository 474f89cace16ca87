"""`headloom heads`."""

from typing import Annotated

from headloom.cli import head_options as head
from headloom.cli.head_report import print_head_table, print_training
from headloom.cli.options import AsCsv, AsJson, Exact, LayerName, Limit, TracePaths
from headloom.cli.output import working

PLACE = ("Read", 1)

Layer = Annotated[str | None, LayerName(help="Only heads of this layer.")]


def heads(
    paths: TracePaths, every: head.Every = False, role: head.Role = None, layer: Layer = None,
    sort: head.Sort = None, limit: Limit = None, exact: Exact = None, reach: head.Reach = 4,
    alpha: head.Alpha = 0.01, least: head.Least = 0.2, clusters: head.Clusters = None,
    needle: head.Needle = None, measure: head.MeasureInTraining = None, as_csv: AsCsv = False,
    as_json: AsJson = False,
) -> None:  # fmt: skip
    """Print the role of each head of a traced model, with what chance would score."""
    from headloom.api.head_table import HeadChoice, head_table, heads_in_training

    choice = HeadChoice(every or as_csv or as_json, role, layer, sort, limit, clusters, needle)
    if measure is not None:
        with working("measuring every snapshot"):
            moments = heads_in_training(paths, measure, choice, exact)
        print_training(paths, measure, moments, as_csv, as_json)
        return
    with working("measuring heads"):
        table = head_table(paths, choice, exact=exact, reach=reach, alpha=alpha, least=least)
    print_head_table(paths, table, every, limit, as_csv, as_json)
