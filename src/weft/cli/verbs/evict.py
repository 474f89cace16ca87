"""`weft evict`."""

from pathlib import Path
from typing import Annotated

import typer

from weft.cli.eviction_report import print_eviction
from weft.cli.options import AsCsv, AsJson, OnlyLayer, TracePath
from weft.cli.output import progress_bar

PLACE = ("Read", 9)

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
EachStep = Annotated[
    bool,
    typer.Option(
        "--each-step", help="Throw one more key away after every step, not once after the prompt."
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
    policy: Policies = None, prompt_tokens: PromptEnd = None, each_step: EachStep = False,
    layer: OnlyLayer = None, by: Rows = "policy", picture: Picture = None,
    as_csv: AsCsv = False, as_json: AsJson = False,
) -> None:  # fmt: skip
    """Print what a smaller cache of keys would have thrown away, and the attention lost by it."""
    from weft.analysis.heads.pattern_mass import in_half_precision
    from weft.formats.trace import TraceData
    from weft.jobs.eviction import EvictionRequest, run_evict

    request = EvictionRequest(budget, policy or (), prompt_tokens, each_step, layer, picture)
    with progress_bar("layers") as show:
        found = run_evict(path, request, show)
    note = in_half_precision(TraceData.open(path).layers)
    print_eviction(path, found, by, as_csv, as_json, note)
