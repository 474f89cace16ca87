"""`headloom relevance`."""

from typing import Annotated

from typer import Option

import headloom
from headloom.cli import options as option
from headloom.cli.output import print_frame, print_json, progress_bar, visible

Position = Annotated[
    int | None,
    Option(
        "--token",
        help="The prediction after this token of the text or target; negative: from the "
        "end. Default: the last token, or the mask.",
    ),
]


def relevance(
    model: option.ModelName, text: option.Text = None, file: option.TextFile = None,
    target: option.Target = None, logit: option.Logit = None, against: option.Against = None,
    token: Position = None, limit: option.FewRows = None, as_csv: option.AsCsv = False,
    as_json: option.AsJson = False,
) -> None:  # fmt: skip
    """Print how much each token matters to a prediction.

    Computed from weights and gradients.
    """
    with progress_bar("computing gradients"):
        frame = headloom.relevance(
            model, option.given_text(text, file), target=target, logit=logit, against=against,
            token=token,
        )  # fmt: skip
    facts = {str(name): value for name, value in frame.attrs.items()}
    top = frame.head(option.rows_of(limit, as_csv, len(frame)))
    if as_csv:
        print_frame(top, as_csv=True)
        return
    after = "label" if facts["after"] is None else f"after {visible(facts['after'])}"
    at = "" if facts["position"] is None else f" ({facts['position']})"
    less = "" if facts["against"] is None else f" less {visible(facts['against'])}"
    print(f"{visible(facts['predicted'])}{less}, {after}{at}: {facts['logit']:.4f}")
    if facts["pooling"] is not None:
        print(f"The class comes from all positions, by {facts['pooling']} pooling.")
    print_frame(frame, limit=len(top))
    if as_json:
        values = frame.sort_values("position")["relevance"].tolist()
        print_json({**facts, "relevance": values})
