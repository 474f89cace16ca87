"""`weft translate`."""

from weft.cli import translate_options as its
from weft.cli.align_options import AligningMethod, AlignMethod
from weft.cli.options import Beam, RunPath, Threads
from weft.errors import InputError

PLACE = ("Make", 4)


def translate(
    run: RunPath, file: its.Lines = None, beam: Beam = 5, length_penalty: its.LengthPenalty = None,
    n_best: its.NBest = 1, heads: its.Heads = None, method: AlignMethod = AligningMethod.mutual,
    lines_at_once: its.Window = its.WINDOW, products: its.ProductsAre = its.ProductsKind.float32,
    threads: Threads = None, as_json: its.Described = False,
) -> None:  # fmt: skip
    """Translate standard input to standard output, line by line, with a run of a translator.

    With --json, each line becomes an object: n best, tokens, scores, word alignment.
    """
    import sys

    from weft.cli.input import iterate_standard_input
    from weft.cli.output import print_json
    from weft.cli.safe_text import exact_output
    from weft.formats.lines import file_lines
    from weft.jobs.notices import UnknownParts
    from weft.jobs.translations import Request, described_windows, plain_windows
    from weft.training.inference import open_translator
    from weft.training.translation import Search

    if length_penalty is not None and not -10 <= length_penalty <= 10:
        raise InputError(f"--length-penalty {length_penalty}: expected a number from -10 to 10.")
    for name, asked in (("--n-best", n_best > 1), ("--heads", heads is not None)):
        if asked and not as_json:
            raise InputError(f"{name} is for --json: without it, each line is a translation.")
    trained = open_translator(run)
    penalty = trained.length_penalty if length_penalty is None else length_penalty
    search = Search(beam, penalty, products=products.value)
    request = Request(search, lines_at_once, n_best, heads or "all", method.value)
    unknown = UnknownParts(trained.vocabulary)
    lines = unknown.watching(iterate_standard_input() if file is None else file_lines(file))
    if as_json:
        for described in described_windows(trained, lines, request):
            for line in described:
                print_json(line)
            sys.stdout.flush()
    else:
        for texts in plain_windows(trained, lines, request):
            for text in texts:
                print(text, file=exact_output())
            exact_output().flush()
    unknown.tell("standard input" if file is None else str(file))
