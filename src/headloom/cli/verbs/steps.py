"""`headloom steps`."""

from pathlib import Path
from typing import Annotated

from typer import Argument, Option

import headloom
from headloom.cli import options as option
from headloom.cli.output import print_lines, progress_bar, say

Sentence = Annotated[
    str | None, Argument(metavar="TEXT", help="A few words; with --model, any text.")
]
Kind = Annotated[str | None, Option(help="encoder, decoder or cross.")]
Target = Annotated[str | None, Option(help="The words that a decoder reads.")]
Query = Annotated[str | None, Option(help="Only this word, or its number.")]
Head = Annotated[int | None, Option(min=0, help="The head to show.")]
File = Annotated[
    Path | None,
    Option(help="A .json or .npz file with embeddings, W_Q, W_K, W_V or W_O; the rest is random."),
]
Trained = Annotated[
    str | None, Option("--model", help="Take the numbers of a run or a model of Hugging Face.")
]
Layer = Annotated[int, Option(min=0, help="With --model: the layer.")]
Learn = Annotated[
    int, Option(min=0, max=100_000, help="Steps of gradient descent, with the backward pass.")
]
Rate = Annotated[float, Option(help="With --learn: the learning rate.")]
Page = Annotated[Path | None, Option("--html", help="Also write one HTML file.")]


def steps(
    sentence: Sentence = None, kind: Kind = None, target: Target = None, query: Query = None,
    head: Head = None, matrices: File = None, model: Trained = None, layer: Layer = 0,
    seed: option.Seed = 1, learn: Learn = 0, rate: Rate = 0.1, picture: option.PictureToo = None,
    html: Page = None,
) -> None:  # fmt: skip
    """Work attention through on a sentence, number by number."""
    with progress_bar("computing"):
        walk = headloom.steps(
            sentence, kind=kind, target=target, query=query, head=head, matrices=matrices,
            model=model, layer=layer, seed=seed, learn=learn, rate=rate,
        )  # fmt: skip
    print_lines(walk.lines())
    for path, write in ((picture, walk.picture), (html, walk.page)):
        if path is not None:
            write(path)
            say(f"written: {path}")
