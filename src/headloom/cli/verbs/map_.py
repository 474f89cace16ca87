"""`headloom map`."""

from pathlib import Path
from typing import Annotated

from typer import Option

import headloom
from headloom.cli.options import AsJson, LayerName, TracePath
from headloom.cli.output import print_json, progress_bar, records

Layer = Annotated[str, LayerName(help="The layer, by number or path.")]
Head = Annotated[int | None, Option(min=0, help="The head. Default: the mean of all.")]
Token = Annotated[str, Option(help="The word, by text or position; negative: from the end.")]
Output = Annotated[Path, Option("-o", "--output", help="The picture: .png, .svg or .pdf.")]
Image = Annotated[
    Path | None, Option(help="The original image, for sharper pixels. Default: the resized one.")
]
Number = Annotated[
    int, Option("--number", min=0, help="The number of the image in the text, from 0.")
]


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
