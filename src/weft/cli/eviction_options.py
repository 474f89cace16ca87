"""The options of `weft evict`."""

from __future__ import annotations

from pathlib import Path
from typing import Annotated

import typer

__all__ = ["Budgets", "EachStep", "Picture", "Policies", "PromptEnd", "Rows"]

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
