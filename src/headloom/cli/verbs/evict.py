"""`headloom evict`."""

import pkgutil
import runpy
from pathlib import Path
from typing import TYPE_CHECKING, Annotated

import typer

from headloom.cli.options import AsCsv, AsJson, TracePath
from headloom.cli.output import print_frame, print_json, progress_bar, records
from headloom.errors import InputError
from headloom.formats.files import in_brief

if TYPE_CHECKING:
    from headloom.analysis.eviction.policies import Rule


Budgets = Annotated[
    list[str],
    typer.Option(
        "--budget", help="Keys that stay: a share of the prompt, as 20%, or a number; repeatable."
    ),
]
Policies = Annotated[
    list[str] | None,
    typer.Option(
        "--policy",
        help="h2o, observed, streaming, tova, snapkv; or a function of your own, file.py:function "
        "or module:function, which is run, beside all of these; may be repeated.",
    ),
]
PromptEnd = Annotated[
    int | None,
    typer.Option(
        "--prompt-tokens",
        min=1,
        help="Tokens of the prompt; default: those before the first generated one, else 7/8.",
    ),
]
Rows = Annotated[
    str, typer.Option("--by", help="A row is a policy, or its layers, heads or steps.")
]
Picture = Annotated[
    Path | None, typer.Option(help="Draw the middle budget too: .png, .svg or .pdf.")
]


def evict(
    path: TracePath, budget: Budgets = ["5%", "20%", "50%"],  # noqa: B006 - typer copies it
    policy: Policies = None, prompt_tokens: PromptEnd = None,
    by: Rows = "policy", picture: Picture = None, as_csv: AsCsv = False, as_json: AsJson = False,
) -> None:  # fmt: skip
    """Print what a smaller cache of keys would have thrown away, and the attention lost by it."""
    from headloom.analysis.eviction.evict import evict as measure
    from headloom.analysis.eviction.policies import POLICIES
    from headloom.analysis.weights import in_half_precision
    from headloom.formats.trace import TraceData

    if picture is not None:
        from headloom.studio.pictures.canvas import picture_format, save_picture
        from headloom.studio.pictures.eviction import eviction

        # Before the work, not after it.
        picture_format(picture)
    rules = [_policy(word) for word in policy or ()]
    if rules and not any(isinstance(rule, str) for rule in rules):
        rules = [*POLICIES, *rules]
    trace = TraceData.open(path)
    with progress_bar("layers") as show:
        result = measure(
            trace, budgets=budget, policies=rules or None, prompt=prompt_tokens, progress=show,
        )  # fmt: skip
    table = result.table(by)
    if picture is not None:
        save_picture(eviction(result, len(result.budgets) // 2), picture)
    print_frame(table, as_csv)
    if as_csv:
        return
    print(f"{result}.")
    print("lost: attention mass on keys that are gone; above: more than with the best keys.")
    if note := in_half_precision(trace.layers):
        print(note)
    if as_json:
        about = {"prompt": result.prompt, "steps": result.steps}
        print_json({"trace": str(path), **about, "rows": records(table)})


def _policy(word: str) -> "Rule":
    """A policy by its name, or a function in a file or a module of Python, which is run."""
    place, colon, name = word.rpartition(":")
    if not colon:
        return word
    try:
        in_file = place.endswith(".py")
        rule: Rule = runpy.run_path(place)[name] if in_file else pkgutil.resolve_name(word)
    except Exception as error:
        raise InputError(
            f"--policy {word}: cannot be loaded ({type(error).__name__}: {in_brief(error)}). "
            "Expected a name, file.py:function or module:function; headloom --debug shows where."
        ) from error
    return rule
