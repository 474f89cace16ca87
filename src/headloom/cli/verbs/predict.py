"""`headloom predict`."""

import sys
from pathlib import Path
from typing import Annotated, Literal

from typer import Option

import headloom
from headloom.cli import options as option
from headloom.cli.output import exact_output, print_json

Run = Annotated[
    str,
    option.model_argument(help="A training run, or a folder with a GPT-2, Llama or Marian model."),
]
Lines = Annotated[
    Path | None,
    Option("--file", help="A file with one text per line, also .gz. Default: standard input."),
]
LengthPenalty = Annotated[
    float | None,
    Option(min=0, max=10, help="Preference for long translations. Default: the run's."),
]
NBest = Annotated[
    int, Option(min=1, max=1_000, help="With --json: number of translations per line.")
]
NewTokens = Annotated[
    int, Option(min=1, max=option.MOST_TOKENS, help="Number of tokens a language model generates.")
]
Temperature = Annotated[
    float,
    Option(min=0, help="Below 1: more likely tokens; above 1: less likely; 0: the most likely."),
]
TopK = Annotated[
    int | None, Option("--top-k", min=1, help="Sample from this many of the most likely tokens.")
]
TopP = Annotated[
    float | None,
    Option(
        "--top-p",
        min=0,
        max=1,
        help="Sample from the most likely tokens with this total probability.",
    ),
]  # fmt: skip
Products = Annotated[
    Literal["float32", "bfloat16"],
    Option(
        help="Data type of the linear maps. bfloat16 is faster on processors that support "
        "it (see headloom doctor); a few translations differ."
    ),
]
Described = Annotated[bool, Option("--json", help="Print one JSON object per line.")]


def predict(
    model: Run, file: Lines = None, beam: option.Beam = 5, length_penalty: LengthPenalty = None,
    n_best: NBest = 1, max_new_tokens: NewTokens = 200, temperature: Temperature = 0.8,
    top_k: TopK = None, top_p: TopP = None, seed: option.Seed = 1,
    products: Products = "float32", as_json: Described = False,
) -> None:  # fmt: skip
    """Translate, continue or classify each line of a text.

    A translator and a language model print a line for each; a classifier the likeliest class, a
    tab, and its probability.
    """
    results = headloom.predict(
        model, option.input_lines(file), beam=beam, length_penalty=length_penalty, n_best=n_best,
        max_new_tokens=max_new_tokens, temperature=temperature, top_k=top_k, top_p=top_p, seed=seed,
        products=products, described=as_json,
    )  # fmt: skip
    for result in results:
        if as_json:
            print_json(result)
            continue
        if not isinstance(result, str):  # of a classifier; an empty line has no label
            result = f"{result.label}\t{result.score:.4f}" if result.label else ""
        print(result, file=exact_output())
        sys.stdout.flush()
