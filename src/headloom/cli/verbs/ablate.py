"""`headloom ablate`."""

from typing import Annotated, Literal

from typer import Option

import headloom
from headloom.cli import options as option
from headloom.cli.output import print_json, print_table, progress_bar, records, visible

Replacement = Annotated[
    Literal["zero", "mean", "uniform"],
    Option(
        help="What replaces the output of a head: zero, its mean, or the mean of the "
        "values it can attend to."
    ),
]
Patch = Annotated[
    str | None,
    Option(help="Another text with the same number of tokens, whose output of each head is used."),
]
At = Annotated[
    list[int] | None,
    Option(
        "--at",
        metavar="N",
        help="Replace only at this position; negative: from the end. Repeatable. Default: all.",
    ),
]
Estimate = Annotated[
    bool,
    Option(
        "--estimate",
        help="Estimate all changes from one gradient, and name the position that adds "
        "most. Fast; accurate for small changes.",
    ),
]


def ablate(
    model: option.ModelName, text: option.Text = None, file: option.TextFile = None,
    target: option.Target = None, replacement: Replacement = "zero",
    patch: Patch = None, logit: option.Logit = None, against: option.Against = None,
    layer: option.Layer = None, at: At = None, estimate: Estimate = False,
    limit: option.AllRows = None, as_json: option.AsJson = False,
) -> None:  # fmt: skip
    """Replace the output of each head, and print how the loss changes.

    With --logit: how that logit changes. Without a text: the loss of a run on its validation data.
    """
    with progress_bar("runs") as progress:
        frame = headloom.ablate(
            model, option.given_text(text, file), target=target, replacement=replacement,
            patch=patch, logit=logit, against=against, layer=layer, at=at, estimate=estimate,
            progress=progress,
        )  # fmt: skip
    facts = {str(name): value for name, value in frame.attrs.items()}
    measure = facts["measure"]
    rows = []
    for effect in records(frame.head(len(frame) if limit is None else limit)):
        head = f"{effect['layer']}.{effect['head']}"
        row = [head, f"{effect[measure]:.4f}", f"{effect['change']:+.4f}"]
        if effect.get("most_at") is not None:
            token = f" {visible(str(effect['token']))}" if effect.get("token") is not None else ""
            row += [f"{effect['most_at']:.0f}{token}", f"{effect['there']:+.4f}"]
        elif "most_at" in effect:
            row += ["-", "-"]
        rows.append(row)
    columns = ["heads", measure, "change", *["most at", "there"] * ("most_at" in frame)]
    print_table(columns, rows, left=("heads",))
    kind = f"{facts['kind']}, estimated by one gradient" if facts["estimated"] else facts["kind"]
    print(f"Whole model: {measure} {facts['baseline']:.4f}. Heads replaced: {kind}.")
    if as_json:
        places = facts.pop("at")
        heads = [
            {"heads": [[e["layer"], e["head"]]], "value": e[measure], "change": e["change"]}
            | ({"at": at} if (at := places.get(f"{e['layer']}.{e['head']}")) else {})
            for e in records(frame.head(len(rows)))
        ]
        print_json({**facts, "heads": heads})
