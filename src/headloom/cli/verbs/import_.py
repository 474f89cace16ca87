"""`headloom import`."""

from pathlib import Path
from typing import Annotated

from typer import Argument, Option

import headloom
from headloom.cli import options as option
from headloom.cli.output import print_trace, progress_bar

ArrayFile = Annotated[
    Path,
    Argument(
        metavar="PATH",
        help="Arrays (.npz, .npy, .safetensors), a folder of them, or a table of edges (.parquet, "
        ".csv).",
    ),
]
ImportOutput = Annotated[
    Path | None,
    Option("-o", "--output", help="The trace to write; default: in this folder, after PATH."),
]
TokensFile = Annotated[
    Path | None, Option(help="The tokens: one per line, or a JSON list of texts or ids.")
]
MaskName = Annotated[
    str | None,
    Option(
        "--mask",
        help="The mask: causal, all, or window:N (causal, N keys). Not needed for weights.",
    ),
]
Layout = Annotated[
    str, Option(help="HND: (heads, positions, depth); NHD: (positions, heads, depth).")
]
Strongest = Annotated[
    bool, Option("--strongest", help="The edges are only the strongest of each row.")
]


def import_(
    path: ArrayFile, output: ImportOutput = None, tokens: TokensFile = None, mask: MaskName = None,
    layout: Layout = "HND", strongest: Strongest = False, keep: option.Keep = 32,
    overwrite: option.Overwrite = False, as_json: option.AsJson = False,
) -> None:  # fmt: skip
    """Make a trace of arrays or edges that another program saved."""
    output = output or option.new_folder(path, ".loom", overwrite)
    with progress_bar("making the trace"):
        made = headloom.from_files(
            path, tokens=tokens, mask=mask, layout=layout, strongest=strongest, keep=keep,
            save=output, overwrite=overwrite,
        )  # fmt: skip
    print_trace(made, output, as_json, left_out=made.model.get("left_out", []))
