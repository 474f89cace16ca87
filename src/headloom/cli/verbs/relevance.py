"""`headloom relevance`."""

from typing import Annotated

import typer

from headloom.cli import options as option
from headloom.cli.output import print_csv, print_json, print_table, working

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
    token: Position = None, limit: option.FewRows = None, as_csv: option.AsCsv = False,
    as_json: option.AsJson = False,
) -> None:  # fmt: skip
    """Print how much each token of a text matters to a prediction, by weights and gradients."""
    from headloom.api.effects import relevance_of_tokens
    from headloom.formats.tokens import shown, visible

    with working("computing gradients"):
        result = relevance_of_tokens(
            model, option.given_text(text, file), target=target, logit=logit, against=against,
            position=token,
        )  # fmt: skip
    tokens, values = shown(result.tokens), result.values
    places = sorted(range(len(values)), key=lambda place: -values[place])
    places = places[: option.rows_of(limit, as_csv, len(values))]
    if as_csv:
        rows = ((place, tokens[place], values[place]) for place in places)
        print_csv(("position", "token", "relevance"), rows)
        return
    after = "label" if result.after is None else f"after {visible(result.after)}"
    at = "" if result.position is None else f" ({result.position})"
    less = "" if result.against is None else f" less {visible(result.against)}"
    print(f"{visible(result.predicted)}{less}, {after}{at}: {result.logit:.4f}")
    if result.pooling is not None:
        print(f"The class comes from all positions, by {result.pooling} pooling.")
    cells = [[str(place), visible(tokens[place]), f"{values[place]:.6g}"] for place in places]
    print_table(("position", "token", "relevance"), cells, left=("token",))
    if len(places) < len(values):
        print(f"and {len(values) - len(places):,} more")
    if as_json:
        print_json(
            {
                "model": model, "predicted": result.predicted, "against": against,
                "logit": result.logit, "position": result.position, "tokens": result.tokens,
                "relevance": values, "pooling": result.pooling, "parts": result.parts,
            }
        )  # fmt: skip
