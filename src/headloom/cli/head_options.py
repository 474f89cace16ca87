"""The options of `headloom heads` and `headloom ablate`."""

from __future__ import annotations

from enum import StrEnum
from typing import Annotated

import typer


class Replacement(StrEnum):
    """What a head gives instead of its output."""

    zero = "zero"
    mean = "mean"
    uniform = "uniform"


# Of `headloom heads`.

Every = Annotated[
    bool, typer.Option("--all", help="Every head and measure, also heads without a role.")
]
Role = Annotated[str | None, typer.Option(help="Only heads of this role.")]
Sort = Annotated[
    str | None,
    typer.Option(
        help="Sort by this column, largest first; default: by layer and head, with --needle by "
        "retrieval."
    ),
]
Reach = Annotated[
    int,
    typer.Option(min=0, max=100_000, help="Up to this many tokens to either side are local."),
]
Alpha = Annotated[float, typer.Option(help="The largest chance of one false role among all heads.")]
Least = Annotated[float, typer.Option(help="The smallest effect that makes a role, 0 to 1.")]
Clusters = Annotated[
    int | None,
    typer.Option(
        min=0,
        help="Divide the heads into this many clusters that look alike; 0: as many as their "
        "distances make.",
    ),
]
Needle = Annotated[
    str | None,
    typer.Option(
        help="A part of the text that occurs twice: measure which heads look back at its first "
        "copy when it is written again; '': the longest such part."
    ),
]
MeasureInTraining = Annotated[
    str | None,
    typer.Option(
        "--measure",
        metavar="NAME",
        help="For a run: this measure of every head, snapshot by snapshot.",
    ),
]

# Of `headloom ablate`.

HeadReplacement = Annotated[
    Replacement,
    typer.Option(
        "--replacement",
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
        "several; below 0: from the end. [default: at all]",
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
Layer = Annotated[int | None, typer.Option(min=0, help="Only heads of this layer, by its number.")]
Together = Annotated[bool, typer.Option("--together", help="Replace all heads of a layer at once.")]
ValidationTokens = Annotated[
    int,
    typer.Option(
        "--data-tokens", min=1, help="Without a text: how many tokens of a run's validation data."
    ),
]
