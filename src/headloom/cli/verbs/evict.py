"""`headloom evict`."""

from typing import Annotated

from typer import Option

import headloom
from headloom.cli.options import AsCsv, AsJson, PictureToo, TracePath
from headloom.cli.output import print_frame, print_json, progress_bar, records

Budgets = Annotated[
    list[str],
    Option("--budget", help="Keys to keep: a share of the prompt (20%) or a number. Repeatable."),
]
Policies = Annotated[
    list[str] | None,
    Option(
        "--policy",
        help="h2o, observed, streaming, tova, snapkv, or your own function, compared with "
        "all of these: file.py:function or module:function. Repeatable.",
    ),
]
PromptEnd = Annotated[
    int | None,
    Option(
        "--prompt-tokens",
        min=1,
        help="Length of the prompt. Default: up to the first generated token, else 7/8.",
    ),
]
Rows = Annotated[str, Option("--by", help="One row per policy, layer, head or step.")]


def evict(
    path: TracePath, budget: Budgets = ["5%", "20%", "50%"],  # noqa: B006 - typer copies it
    policy: Policies = None, prompt_tokens: PromptEnd = None,
    by: Rows = "policy", picture: PictureToo = None, as_csv: AsCsv = False, as_json: AsJson = False,
) -> None:  # fmt: skip
    """Print the attention that a smaller key-value cache would lose."""
    with progress_bar("layers") as show:
        result = headloom.evict(
            path, budget=budget, policy=policy, prompt_tokens=prompt_tokens, progress=show
        )
    table = result.to_pandas(by)
    if picture is not None:
        result.draw(picture)
    print_frame(table, as_csv)
    if as_csv:
        return
    print(f"{result}.")
    print("lost: attention mass on keys that are gone; above: more than with the best keys.")
    if result.note:
        print(result.note)
    if as_json:
        about = {"prompt": result.prompt, "steps": result.steps}
        print_json({"trace": str(path), **about, "rows": records(table)})
