"""`headloom measure`."""

from typing import Annotated, Literal

from typer import Argument, Option

import headloom
from headloom.cli import options as option
from headloom.cli.output import print_frame, print_json, progress_bar, records, say

Measure = Annotated[
    Literal[
        "rollout", "flow", "clusters", "projections", "graph", "received", "pagerank",
        "reciprocity", "rank", "parts",
    ],
    Argument(
        metavar="MEASURE",
        help="rollout: share of each input token in an output token, through all layers; flow: its "
        "maximum flow; clusters: tokens that look at each other most; projections: symmetry, rank "
        "and norm of W_Q W_K^T and W_V W_O; graph: received, pagerank, reciprocity, rank, parts.",
    ),
]  # fmt: skip
Measured = Annotated[
    str, option.model_argument(metavar="TRACE", help="A trace; for projections, a run or a model.")
]
By = Annotated[str | None, Option(help="One row per layer or head; for projections also per pair.")]
Token = Annotated[int | None, Option(help="A position; negative: from the end. Default: the last.")]
Forward = Annotated[
    bool, Option("--reached", help="For rollout: where the token went, not what it holds.")
]
Kind = Annotated[str | None, Option(help="encoder, decoder or cross; default: the whole model.")]
Count = Annotated[
    int | None,
    Option(min=1, max=64, help="Number of clusters. Default: chosen by the eigenvalues."),
]


def measure(
    name: Measure, path: Measured, by: By = None, layer: option.Layer = None,
    head: option.Head = None, token: Token = None, reached: Forward = False, kind: Kind = None,
    count: Count = None, exact: option.Exact = None, limit: option.FewRows = None,
    as_csv: option.AsCsv = False, as_json: option.AsJson = False,
) -> None:  # fmt: skip
    """Measure the attention graphs of a trace, or a model's matrices."""
    with progress_bar("measuring"):
        rows = headloom.measure(
            name, path, by=by, layer=layer, head=head, token=token, reached=reached,
            kind=kind, count=count, exact=exact,
        )  # fmt: skip
    if rows.attrs["title"] and not as_csv:
        print(rows.attrs["title"])
    print_frame(rows, as_csv, option.rows_of(limit, as_csv, len(rows)))
    for note in rows.attrs["notes"]:
        (say if as_csv else print)(note)
    if as_json:
        about = {"path": path, "measure": name, "notes": rows.attrs["notes"]}
        print_json({**about, "rows": records(rows)})
