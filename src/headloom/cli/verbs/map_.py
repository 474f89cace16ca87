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
        result = headloom.image_map(path, layer, head, place, image=image, number=number)
        result.draw(output)
    print(f"{result} Picture: {output}")
    if as_json:
        content = {
            "trace": str(path), "layer": result.layer, "head": head, "token": result.query,
            "image": number, "mass": result.mass, "outside": result.outside,
            "size": list(result.weights.shape), "of_original": result.of_original,
            "patches": records(result.to_pandas()), "picture": str(output),
        }  # fmt: skip
        print_json(content)
