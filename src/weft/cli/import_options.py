"""The options of `weft import`."""

from __future__ import annotations

from pathlib import Path
from typing import Annotated

import typer

ArrayFiles = Annotated[
    list[Path],
    typer.Argument(
        metavar="FILE...",
        help="Arrays (.npz, .npy, .safetensors), folders of them, or a table of edges (.parquet, "
        ".csv).",
    ),
]
ImportOutput = Annotated[Path, typer.Option("-o", "--output", help="The trace to write.")]
TokensFile = Annotated[
    Path | None,
    typer.Option(help="The tokens: one on each line, or a JSON list of texts or ids."),
]
TokenizerFile = Annotated[
    Path | None, typer.Option(help="Names ids: a tokenizer.json, or the folder it is in.")
]
MaskName = Annotated[
    str | None,
    typer.Option("--mask", help="Who may look at whom: causal or all; not needed for weights."),
]
MaskWindow = Annotated[
    int | None,
    typer.Option(
        "--mask-window", min=1, help="With --mask causal: keys that a query sees at most."
    ),
]
Scale = Annotated[
    float | None, typer.Option(help="The factor on the scores; default: 1 / sqrt(depth).")
]
Softcap = Annotated[float | None, typer.Option(help="The soft cap of the scores.")]
Layout = Annotated[
    str, typer.Option(help="HND: (heads, positions, depth); NHD: (positions, heads, depth).")
]
SplitHeads = Annotated[
    int | None,
    typer.Option(
        "--num-heads", min=1, help="Heads of queries, of arrays (positions, heads * depth)."
    ),
]
QueriesNames = Annotated[
    str | None,
    typer.Option(
        "--queries", metavar="PATTERN",
        help="The names of the arrays of queries, with {layer} for the number, * for anything.",
    ),
]  # fmt: skip
KeysNames = Annotated[str | None, typer.Option("--keys", metavar="PATTERN", help="Those of keys.")]
ValuesNames = Annotated[
    str | None, typer.Option("--values", metavar="PATTERN", help="Those of values.")
]
WeightsNames = Annotated[
    str | None, typer.Option("--weights", metavar="PATTERN", help="Those of attention weights.")
]
ImportKind = Annotated[
    str | None, typer.Option("--kind", help="encoder, decoder or cross; default: as it looks.")
]
Normalise = Annotated[bool, typer.Option("--normalise", help="Divide weights by their row's sum.")]
Partial = Annotated[
    bool, typer.Option("--partial", help="Rows of weights may sum to less than 1, as with sinks.")
]
Strongest = Annotated[
    bool,
    typer.Option("--strongest", help="The edges are the strongest of each row, which has others."),
]
