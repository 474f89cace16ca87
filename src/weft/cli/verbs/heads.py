"""`weft heads`."""

from weft.cli.head_report import print_head_table, print_training
from weft.cli.options import (
    Alpha,
    AsCsv,
    AsJson,
    Clusters,
    Every,
    Exact,
    Least,
    Limit,
    MeasureInTraining,
    Needle,
    OnlyLayer,
    Reach,
    Role,
    Sort,
    TracePaths,
)  # fmt: skip

PLACE = ("Read", 1)


def heads(
    paths: TracePaths, every: Every = False, role: Role = None, layer: OnlyLayer = None,
    sort: Sort = None, limit: Limit = None, exact: Exact = None, reach: Reach = 4,
    alpha: Alpha = 0.01, least: Least = 0.2, clusters: Clusters = None, needle: Needle = None,
    history: MeasureInTraining = None, as_csv: AsCsv = False, as_json: AsJson = False,
) -> None:  # fmt: skip
    """Print the role of each head of a traced model, with what chance would score."""
    from weft.jobs.head_table import HeadChoice, head_table, heads_in_training

    choice = HeadChoice(every or as_csv or as_json, role, layer, sort, limit, clusters, needle)
    if history is not None:
        moments = heads_in_training(paths, history, choice, exact)
        print_training(paths, history, moments, as_csv, as_json)
        return
    table = head_table(paths, choice, exact=exact, reach=reach, alpha=alpha, least=least)
    print_head_table(paths, table, every, as_csv, as_json)
