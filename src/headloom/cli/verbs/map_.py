"""`headloom map`."""

from pathlib import Path
from typing import Annotated

import typer

from headloom.cli.options import AsJson, LayerName, TracePath
from headloom.cli.output import print_json, working

Layer = Annotated[
    str, LayerName(help="The layer: its number in the order of the run, or its path.")
]
Head = Annotated[int | None, typer.Option(min=0, help="Which head; default: the mean of all.")]
Token = Annotated[
    str,
    typer.Option(help="The word: its position, negative ones from the end, or its text."),
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
    """Draw what a word looks at in an image of its text, or a patch in its image."""
    from headloom.api.word_map import draw_word_map

    with working("drawing"):
        line, content = draw_word_map(path, layer, head, token, output, image=image, number=number)
    print(line)
    if as_json:
        print_json(content)
