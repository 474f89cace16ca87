"""`headloom map`."""

from pathlib import Path
from typing import Annotated

import typer

import headloom
from headloom.cli.options import AsJson, LayerName, TracePath
from headloom.cli.output import print_json, progress_bar, records

Layer = Annotated[
    str, LayerName(help="The layer: its number in the order of the run, or its path.")
]
Head = Annotated[int | None, typer.Option(min=0, help="Which head; default: the mean of all.")]
Token = Annotated[
    str, typer.Option(help="The word: its position, negative ones from the end, or its text.")
]
Output = Annotated[Path, typer.Option("-o", "--output", help="The picture: .png, .svg or .pdf.")]
Image = Annotated[
    Path | None,
    typer.Option(help="The original picture, for its pixels; default: those of the resized one."),
]
Number = Annotated[int, typer.Option("--number", min=0, help="Which image of the text, from 0.")]


def map_(
    path: TracePath, layer: Layer, token: Token, output: Output, head: Head = None,
    image: Image = None, number: Number = 0, as_json: AsJson = False,
) -> None:  # fmt: skip
    """Draw what a word or a patch attends to in an image."""
    place = int(token) if token.removeprefix("-").isdecimal() else token
    with progress_bar("drawing"):
        seen = headloom.image_map(path, layer, head, place, image=image, number=number)
        seen.draw(output)
    print(f"{seen} Picture: {output}")
    if as_json:
        content = {
            "trace": str(path), "layer": seen.layer, "head": head, "token": seen.query,
            "image": number, "mass": seen.mass, "outside": seen.outside,
            "size": list(seen.weights.shape), "of_original": seen.of_original,
            "patches": records(seen.to_pandas()), "picture": str(output),
        }  # fmt: skip
        print_json(content)
