"""`weft projections`."""

from weft.cli.options import AsCsv, AsJson, By, ModelName, Snapshots
from weft.cli.output import print_json, working
from weft.cli.tables import print_frame, records

PLACE = ("Read", 7)


def projections(
    model: ModelName, by: By = "layer", history: Snapshots = False, as_csv: AsCsv = False,
    as_json: AsJson = False,
) -> None:  # fmt: skip
    """Measure W_Q, W_K, W_V and W_O: symmetry and direction of W_Q W_K^T, ranks, norms, copying."""
    from weft.jobs.projections import measures_of_projections

    with working("measuring projections"):
        table = measures_of_projections(model, by=by, history=history)
    print_frame(table, as_csv)
    if as_json:
        print_json({"model": model, "projections": records(table)})
