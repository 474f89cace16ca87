"""The command line: one verb, one short function. Heavy imports stay inside."""

from __future__ import annotations

import sys
from enum import StrEnum
from pathlib import Path
from typing import TYPE_CHECKING, Annotated, Any

import typer
from typer.core import TyperGroup

from weft.cli.ablate import ablate
from weft.cli.endings import left_by_reader, one_line
from weft.cli.heads import heads
from weft.cli.output import exact_output, safe_output
from weft.cli.relevance import relevance
from weft.cli.terminal import (
    AsJson,
    Threads,
    console,
    print_json,
    standard_input_lines,
    tell_unknown,
    use_threads,
)
from weft.cli.trace import trace
from weft.cli.view import view
from weft.errors import InputError
from weft.version import __version__

if TYPE_CHECKING:
    from rich.console import Console

    from weft.training.config import RunConfig

__all__ = ["app", "main"]


#: What typer raises for an unknown verb or option, or a bad value; it has no public name there.
_UsageError: type[BaseException] = typer.BadParameter.__mro__[1]


#: What is said of a verb that a person stops.
_TRAINING = " A training goes on from its last checkpoint."
_GOES_ON = {
    "train": _TRAINING,
    "demo": _TRAINING,
    "trace": " What is traced is whole; with --corpus and --window the same command goes on.",
}


class _Verbs(TyperGroup):
    """The verbs; ends well where the reader of the output leaves, or a person stops us."""

    def parse_args(self, ctx: Any, args: list[str]) -> list[str]:
        help_is_asked_for = not args
        try:
            return super().parse_args(ctx, args)
        except _UsageError as error:
            if help_is_asked_for:
                raise
            raise self._in_one_line(error) from None

    def _in_one_line(self, error: BaseException) -> InputError:
        message = error.format_message()  # type: ignore[attr-defined]
        message = message.replace("Value error, ", "").removesuffix(".")
        end = "" if message.endswith("?") else "."
        verb = getattr(getattr(error, "ctx", None), "info_name", None)
        help_of = f"weft {verb}" if verb in self.commands else "weft"
        return InputError(f"{message}{end} See {help_of} --help.")

    def invoke(self, ctx: Any) -> Any:
        try:
            result = super().invoke(ctx)
            sys.stdout.flush()
        except _UsageError as error:
            raise self._in_one_line(error) from None
        except BrokenPipeError as error:
            # Before typer, which takes it for a failure.
            raise SystemExit(0 if left_by_reader(error) else 1) from None
        except KeyboardInterrupt:
            goes_on = _GOES_ON.get(ctx.invoked_subcommand or "", "")
            print(f"weft: stopped.{goes_on}", file=sys.stderr)
            raise SystemExit(130) from None
        return result


app = typer.Typer(
    name="weft",
    cls=_Verbs,
    help="The attention weight matrix: train it, trace it, see it.",
    no_args_is_help=True,
    add_completion=False,
    pretty_exceptions_enable=False,
    context_settings={"help_option_names": ["-h", "--help"]},
)


def _print_version(wanted: bool) -> None:
    if wanted:
        print(f"weft {__version__}")
        raise typer.Exit


@app.callback()
def options(
    version: Annotated[
        bool,
        typer.Option(
            "--version", callback=_print_version, is_eager=True, help="Print the version and end."
        ),
    ] = False,
    debug: Annotated[
        bool, typer.Option("--debug", help="Show the traceback of an error, not one line.")
    ] = False,
) -> None:
    """The attention weight matrix: train it, trace it, see it."""


RunPath = Annotated[Path, typer.Argument(metavar="RUN", help="The folder of a training run.")]
Beam = Annotated[
    int, typer.Option(min=1, max=1_000, help="Hypotheses kept while decoding; 1 = greedy.")
]


class Split(StrEnum):
    """Which held-out data."""

    valid = "valid"
    test = "test"


@app.command()
def demo(
    run: Annotated[Path, typer.Option(help="Where the run, pictures and page go.")] = Path(
        "runs/demo"
    ),
    seed: Annotated[
        int, typer.Option(min=0, max=2**63 - 1, help="Of data, matrices and batches.")
    ] = 1,
    threads: Threads = None,
    as_json: AsJson = False,
) -> None:
    """Train a date translator from random matrices, test it, trace it, and draw what it sees."""
    from weft.cli.demo import run_demo

    use_threads(threads)
    result = run_demo(run, seed, console())
    if as_json:
        print_json(result)


@app.command()
def train(
    config: Annotated[Path, typer.Argument(metavar="CONFIG", help="A TOML file; see examples/.")],
    run: Annotated[
        Path | None, typer.Option(help="The run's folder; default: runs/ and the config's name.")
    ] = None,
    overrides: Annotated[
        list[str] | None,
        typer.Option("--set", metavar="KEY=VALUE", help="Change a value, as training.seed=2."),
    ] = None,
    threads: Threads = None,
    as_json: AsJson = False,
) -> None:
    """Train a model, or go on with a run that was stopped."""
    from weft.training.config import load_config
    from weft.training.loop import train as train_run
    from weft.training.progress import ConsoleListener

    use_threads(threads)
    out = console()
    folder = Path("runs") / config.stem if run is None else run
    settings = load_config(config, overrides)
    _tell_defaults(config, settings, out)
    with ConsoleListener(out) as listener:
        result = train_run(settings, folder, listener)
    out.print(
        f"Trained {result.steps:,} steps in {result.seconds:,.1f} s. Best validation loss "
        f"{result.best_loss:.4f}, at step {result.best_step:,}. Run: {folder}",
        markup=False,
        soft_wrap=True,
    )
    if as_json:
        print_json(
            {
                "run": str(folder),
                "steps": result.steps,
                "train_seconds": result.seconds,
                "tokens": result.tokens,
                "best_loss": result.best_loss,
                "best_step": result.best_step,
                "reason": result.reason,
            }
        )


def _tell_defaults(config: Path, settings: RunConfig, out: Console) -> None:
    """Say which sections a configuration leaves out.

    Raises: InputError: the task is one of them: nobody has said what is to be learned.
    """
    named = settings.model_fields_set
    if "task" not in named:
        what = "names no task" if named else "is empty"
        raise InputError(
            f'{config}: {what}, so there is nothing to learn. Add [task] with kind = "dates", '
            '"translation", "language" or "repeats"; examples/ has a file of each.'
        )
    model, training = settings.model, settings.training
    if "model" not in named:
        out.print(
            f"No [model] in {config}: width {model.width}, {model.heads} heads, "
            f"{model.encoder_layers} + {model.decoder_layers} layers, as by default.",
            markup=False,
            soft_wrap=True,
        )
    if "training" not in named:
        out.print(
            f"No [training] in {config}: up to {training.max_steps:,} steps, as by default.",
            markup=False,
            soft_wrap=True,
        )


@app.command()
def translate(
    run: RunPath,
    beam: Beam = 5,
    length_penalty: Annotated[float, typer.Option(help="Of longer hypotheses; 0 = none.")] = 1.0,
    threads: Threads = None,
) -> None:
    """Translate standard input to standard output, line by line."""
    from weft.training.inference import open_run
    from weft.training.tasks.pairs import translate as translate_texts

    if not -10 <= length_penalty <= 10:
        raise InputError(f"--length-penalty {length_penalty}: expected a number from -10 to 10.")
    use_threads(threads)
    trained = open_run(run)
    lines = standard_input_lines()
    if trained.translates:
        tell_unknown(trained, "standard input", "".join(lines))
    for line in translate_texts(
        trained.model, trained.vocabulary, lines, beam=beam, length_penalty=length_penalty
    ):
        print(" ".join(line.splitlines()), file=exact_output())


@app.command()
def generate(
    run: RunPath,
    prompt: Annotated[str, typer.Option(help="The text to go on from.")],
    length: Annotated[int, typer.Option(min=1, help="Tokens to draw.")] = 200,
    temperature: Annotated[
        float, typer.Option(min=0, help="Below 1 safer, above 1 wilder; 0 = the likeliest.")
    ] = 0.8,
    top: Annotated[int | None, typer.Option(min=1, help="Draw among the likeliest only.")] = None,
    seed: Annotated[int, typer.Option(min=0, max=2**63 - 1, help="Of the random numbers.")] = 1,
    threads: Threads = None,
    as_json: AsJson = False,
) -> None:
    """Go on from a prompt, with a run of a language model."""
    from weft.training.inference import generate_text, open_run

    if not 0 <= temperature < float("inf"):
        raise InputError(f"--temperature {temperature}: expected a finite number, 0 or more.")
    use_threads(threads)
    trained = open_run(run)
    text = generate_text(
        trained, prompt, length=length, temperature=temperature, top=top, seed=seed
    )
    tell_unknown(trained, "the prompt", prompt)
    print(prompt + text, file=exact_output())
    if as_json:
        print_json({"prompt": prompt, "text": text})


@app.command()
def evaluate(
    run: RunPath,
    split: Annotated[
        Split | None, typer.Option(help="Which held-out data; default: test, where there is one.")
    ] = None,
    beam: Beam = 5,
    threads: Threads = None,
    as_json: AsJson = False,
) -> None:
    """Measure a run on held-out data."""
    from weft.training.inference import evaluate_run, open_run

    use_threads(threads)
    out = console()
    with out.status("reading the data") as status:
        measures = evaluate_run(
            open_run(run),
            split=split.value if split else None,
            beam=beam,
            progress=lambda done, total: status.update(f"{done:,} of {total:,}"),
        )
    for name, value in measures.items():
        if isinstance(value, dict):
            for key, text in value.items():
                print(f"{name} {key}: {text}")
        else:
            print(f"{name}: {value:.4f}" if isinstance(value, float) else f"{name}: {value}")
    if as_json:
        print_json(measures)


@app.command()
def export(
    path: Annotated[Path, typer.Argument(metavar="TRACE", help="A trace folder.")],
    html: Annotated[
        Path | None, typer.Option(help="One self-contained page, which works offline.")
    ] = None,
    picture: Annotated[
        Path | None, typer.Option(help="All heads at a glance: .png, .svg or .pdf.")
    ] = None,
    parquet: Annotated[Path | None, typer.Option(help="All edges as one Parquet file.")] = None,
    graphml: Annotated[
        Path | None, typer.Option(help="One head's graph; choose it by --layer and --head.")
    ] = None,
    layer: Annotated[int, typer.Option(min=0, help="Of the graph, in the order of the trace.")] = 0,
    head: Annotated[int, typer.Option(min=0, help="Of the graph.")] = 0,
) -> None:
    """Write a trace as a page, a picture, a table or a graph for other programs."""
    from weft.cli.tracing import export_trace

    if not any((html, picture, parquet, graphml)):
        raise InputError(
            "export: nothing to write; give --html, --picture, --parquet or --graphml."
        )
    written = export_trace(
        path, html=html, picture=picture, parquet=parquet, graphml=graphml, layer=layer, head=head
    )
    for file in written:
        print(file)


app.command()(heads)
app.command()(ablate)
app.command()(relevance)
app.command()(trace)
app.command()(view)


def main(arguments: list[str] | None = None) -> None:
    """Run the command line. What a user can mend is one line on standard error, exit code 2."""
    words = sys.argv[1:] if arguments is None else arguments
    debug = "--debug" in words
    with safe_output():
        try:
            app([word for word in words if word != "--debug"])
        except Exception as error:
            if left_by_reader(error):
                raise SystemExit(0) from None
            line = one_line(error)
            if debug or line is None:
                raise
            print(f"weft: {line}", file=sys.stderr)
            raise SystemExit(2) from None
