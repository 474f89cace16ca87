"""`weft translate`."""

from typing import Annotated

import typer

from weft.cli.input import standard_input_lines
from weft.cli.options import Beam, RunPath, Threads
from weft.cli.safe_text import exact_output
from weft.errors import InputError

PLACE = ("Make", 4)

LengthPenalty = Annotated[
    float | None,
    typer.Option(
        help="How much long translations are preferred, -10 to 10; 0: not at all. Default: the "
        "run's, 1 where it names none."
    ),
]


def translate(
    run: RunPath, beam: Beam = 5, length_penalty: LengthPenalty = None, threads: Threads = None
) -> None:
    """Translate standard input to standard output, line by line, with a run of a translator."""
    from weft.jobs.notices import tell_unknown
    from weft.training.inference import open_run
    from weft.training.tasks.pairs import translate as translate_texts

    if length_penalty is not None and not -10 <= length_penalty <= 10:
        raise InputError(f"--length-penalty {length_penalty}: expected a number from -10 to 10.")
    trained = open_run(run)
    lines = standard_input_lines()
    words = trained.vocabulary
    if trained.translates:
        tell_unknown("standard input", words.unknown_parts("".join(lines)))
    penalty = trained.length_penalty if length_penalty is None else length_penalty
    for line in translate_texts(trained.model, words, lines, beam=beam, length_penalty=penalty):
        print(" ".join(line.splitlines()), file=exact_output())
