"""`headloom import`."""

from pathlib import Path
from typing import Annotated

import typer

from headloom.cli import options as option
from headloom.cli.output import print_json, say, working

PLACE = ("Trace", 2)

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


def import_(
    files: ArrayFiles, output: ImportOutput, tokens: TokensFile = None,
    tokenizer: TokenizerFile = None, mask: MaskName = None,
    mask_window: MaskWindow = None, scale: Scale = None, softcap: Softcap = None,
    layout: Layout = "HND", num_heads: SplitHeads = None,
    queries: QueriesNames = None, keys: KeysNames = None,
    values: ValuesNames = None, weights: WeightsNames = None,
    kind: ImportKind = None, normalise: Normalise = False,
    partial: Partial = False, strongest: Strongest = False,
    keep: option.Keep = 32, dtype: option.Dtype = None, queries_keys: option.QueriesKeys = True,
    overwrite: option.Overwrite = False, as_json: option.AsJson = False,
) -> None:  # fmt: skip
    """Make a trace of queries and keys, weights or edges that other programs saved."""
    from headloom.api.importing import ImportOptions, import_files

    named = {"queries": queries, "keys": keys, "values": values, "weights": weights}
    options = ImportOptions(
        {role: pattern for role, pattern in named.items() if pattern is not None},
        tokens, tokenizer, mask, mask_window, scale, softcap, layout, num_heads, kind, normalise,
        partial, strongest, keep, dtype and dtype.value, queries_keys, overwrite,
    )  # fmt: skip
    with working("making the trace"):
        report = import_files(files, output, options)
    for line in report.lines:
        say(line)
    if as_json:
        print_json(report.content)
