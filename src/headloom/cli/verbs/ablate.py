"""`headloom ablate`."""

from typing import Annotated, Literal

import typer

from headloom.cli import options as option
from headloom.cli.output import print_json, print_table, progress_bar
from headloom.formats.tokens import shown, visible

Replacement = Annotated[
    Literal["zero", "mean", "uniform"],
    typer.Option(
        help="What a head gives instead of its output: zero, its mean, or the uniform mean of the "
        "values it may look at.",
    ),
]
Patch = Annotated[
    str | None,
    typer.Option(help="Another text with as many tokens: each head gives its output on that one."),
]
At = Annotated[
    list[int] | None,
    typer.Option(
        "--at",
        metavar="N",
        help="Only at this position of the text does a head give something else; repeat it for "
        "several; below 0: from the end. Default: at all.",
    ),
]
Estimate = Annotated[
    bool,
    typer.Option(
        "--estimate",
        help="Estimate all changes at once, by one gradient, and say which position adds most: in "
        "seconds, and right for small changes.",
    ),
]


def ablate(
    model: option.ModelName, text: option.Text = None, file: option.TextFile = None,
    target: option.Target = None, replacement: Replacement = "zero",
    patch: Patch = None, logit: option.Logit = None, against: option.Against = None,
    layer: option.Layer = None, at: At = None, estimate: Estimate = False,
    limit: option.AllRows = None, as_json: option.AsJson = False,
) -> None:  # fmt: skip
    """Replace the output of each head in turn, and print how the loss of the model changes.

    Or how a --logit does. Without a text: the loss of a run on its validation data.
    """
    from headloom.api.effects import effects_of_heads

    with progress_bar("runs") as progress:
        result, measure = effects_of_heads(
            model, option.given_text(text, file), target=target, kind=replacement,
            patch_text=patch, logit=logit, against=against, layer=layer, positions=at or None,
            estimated=estimate, progress=progress,
        )  # fmt: skip
    result = result.by_change(limit)
    tokens = [visible(token) for token in shown(measure.tokens)]
    columns = ["heads", measure.name, "change"]
    places = any(effect.at for effect in result.effects)
    rows = []
    for effect in result.effects:
        row = [effect.name, f"{effect.value:.4f}", f"{effect.change:+.4f}"]
        if (place := effect.most_at) is not None:
            token = f" {tokens[place]}" if len(tokens) == len(effect.at) else ""
            row += [f"{place}{token}", f"{effect.at[place]:+.4f}"]
        elif places:
            row += ["-", "-"]
        rows.append(row)
    print_table(columns + ["most at", "there"] * places, rows, left=("heads",))
    how = f"{result.kind}, estimated by one gradient" if result.estimated else result.kind
    print(f"Whole model: {measure.name} {result.baseline:.4f}. Heads replaced: {how}.")
    if as_json:
        print_json(
            {
                "model": model, "measure": measure.name, "kind": result.kind,
                "estimated": result.estimated, "baseline": result.baseline,
                "layers": [layer.name for layer in result.layers],
                "heads": [
                    {"heads": effect.heads, "value": effect.value, "change": effect.change}
                    | ({"at": effect.at} if effect.at else {})
                    for effect in result.effects
                ],
            }
        )  # fmt: skip
