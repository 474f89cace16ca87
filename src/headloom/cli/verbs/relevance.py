"""`headloom relevance`."""

from typing import Annotated

import typer

from headloom.cli import options as option
from headloom.cli.input import given_text
from headloom.cli.output import print_csv, print_json, working
from headloom.cli.tables import largest, print_places

PLACE = ("Trace", 4)

Position = Annotated[
    int | None,
    typer.Option(
        "--token",
        help="The prediction after this token of the text, or of the target; negative ones count "
        "from the end. Default: the last; in a text with a mask, the mask.",
    ),
]


def relevance(
    model: option.ModelName, text: option.Text = None, file: option.TextFile = None,
    target: option.Target = None, logit: option.Logit = None, against: option.Against = None,
    token: Position = None, limit: option.FewRows = None, threads: option.Threads = None,
    as_csv: option.AsCsv = False, as_json: option.AsJson = False,
) -> None:  # fmt: skip
    """Print how much each token of a text matters to a prediction, by weights and gradients."""
    from headloom.api.relevance import relevance_of_tokens
    from headloom.formats.tokens import shown, visible

    with working("computing gradients"):
        result = relevance_of_tokens(
            model, given_text(text, file), target=target, logit=logit, against=against,
            position=token,
        )  # fmt: skip
    tokens, values = shown(result.tokens), result.values
    count = option.rows_of(limit, as_csv, 20, len(values))
    if as_csv:
        places = range(len(values)) if limit is None else largest(values, count)
        rows = ((place, tokens[place], values[place]) for place in places)
        print_csv(("position", "token", "relevance"), rows)
    else:
        after = "label" if result.after is None else f"after {visible(result.after)}"
        place = "" if result.position is None else f" ({result.position})"
        less = "" if result.against is None else f" less {visible(result.against)}"
        print(f"{visible(result.predicted)}{less}, {after}{place}: {result.logit:.4f}")
        if result.pooling is not None:
            print(f"The class comes from all positions, by {result.pooling} pooling.")
        print_places(values, tokens, count)
    if as_json:
        content = {
            "model": model, "predicted": result.predicted, "against": against,
            "logit": result.logit, "position": result.position, "tokens": result.tokens,
            "relevance": values, "pooling": result.pooling, "parts": result.parts,
        }  # fmt: skip
        print_json(content)
