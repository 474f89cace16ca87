"""`headloom generate`."""

from typing import Annotated

import typer

from headloom.cli.options import MOST_TOKENS, AsJson, RunPath, Seed, Threads
from headloom.cli.output import print_json, working
from headloom.cli.safe_text import exact_output
from headloom.errors import InputError

PLACE = ("Make", 5)

Prompt = Annotated[str, typer.Option(help="The text to continue.")]
Length = Annotated[int, typer.Option(min=1, max=MOST_TOKENS, help="How many tokens to draw.")]
Temperature = Annotated[
    float,
    typer.Option(min=0, help="Below 1: likelier tokens; above 1: rarer ones; 0: the likeliest."),
]
AmongTop = Annotated[
    int | None,
    typer.Option("--top-k", min=1, help="Draw among this many of the likeliest tokens only."),
]
Nucleus = Annotated[
    float | None,
    typer.Option(
        "--top-p",
        help="Draw among the likeliest tokens that hold this share of the probability only, as "
        "0.9 (nucleus sampling), of what --temperature and --top-k leave.",
    ),
]


def generate(
    run: RunPath, prompt: Prompt, length: Length = 200, temperature: Temperature = 0.8,
    top_k: AmongTop = None, top_p: Nucleus = None, seed: Seed = 1, threads: Threads = None,
    as_json: AsJson = False,
) -> None:  # fmt: skip
    """Continue a text, with a run of a language model."""
    from headloom.api.notices import tell_unknown
    from headloom.training.inference import generate_text, open_run

    if not 0 <= temperature < float("inf"):
        raise InputError(f"--temperature {temperature}: expected a finite number, 0 or more.")
    if top_p is not None and not 0 < top_p <= 1:
        raise InputError(f"--top-p {top_p}: expected a number above 0, 1 at most.")
    with working("writing"):
        trained = open_run(run)
        text = generate_text(
            trained, prompt, length=length, temperature=temperature, top=top_k, top_p=top_p,
            seed=seed,
        )  # fmt: skip
    tell_unknown("the prompt", trained.vocabulary.unknown_parts(prompt))
    print(prompt + text, file=exact_output())
    if as_json:
        print_json({"prompt": prompt, "text": text})
