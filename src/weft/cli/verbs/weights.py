"""`weft weights`, the old name of `weft projections`."""

from weft.cli.options import AsCsv, AsJson, By, ModelName, Snapshots
from weft.cli.output import print_json, say
from weft.cli.projections_report import print_projections
from weft.cli.tables import records

PLACE = (None, 0)


def weights(
    model: ModelName, by: By = "layer", history: Snapshots = False, as_csv: AsCsv = False,
    as_json: AsJson = False,
) -> None:  # fmt: skip
    """Measure W_Q, W_K, W_V and W_O; the old name of `weft projections`."""
    from weft.jobs.projections import measures_of_projections

    table = measures_of_projections(model, by=by, history=history)
    print_projections(table, by, as_csv)
    if as_json:
        print_json({"model": model, "weights": records(table)})
    say("weft: `weft weights` is now `weft projections`; this old name will go.")
