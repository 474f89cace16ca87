"""The command `headloom`: its verbs, and how each of them ends.

A verb is a function of its name in a module of that name in `headloom.cli.verbs`; where Python has
the name for itself, as `import` and `map`, an underscore follows it.
"""

from __future__ import annotations

import builtins
import contextlib
import errno
import importlib
import keyword
import logging
import os
import sys
from contextlib import redirect_stdout
from functools import cache
from typing import TYPE_CHECKING, Annotated, Any, cast

import typer
from typer.core import TyperCommand, TyperGroup
from typer.main import get_command

from headloom.cli.advice import EXAMPLES, for_verb, with_advice
from headloom.cli.output import JsonAlone, safe_output, say
from headloom.errors import HeadloomError, InputError, is_out_of_memory
from headloom.version import __version__

if TYPE_CHECKING:
    from collections.abc import Iterator
    from typing import TextIO


#: The verbs of each panel of ``headloom --help``, in order.
VERBS = {
    "Make": ("demo", "train", "evaluate", "predict"),
    "Trace": ("trace", "import", "ablate", "relevance"),
    "Read": ("steps", "heads", "measure", "query", "compare", "align", "evict"),
    "See": ("view", "export", "map", "doctor"),
}
#: Characters of an error that are shown: a path may have thousands.
_LONGEST = 1_200
#: What the system says of a place to write to; without a file's name, that is standard output.
_OF_OUTPUT = (errno.ENOSPC, errno.EDQUOT, errno.EFBIG, errno.EIO, errno.EBADF, errno.EPIPE)
#: The sentence after "stopped." where a person stops a verb.
_GOES_ON = {
    "train": " The same command goes on with what is kept.",
    "demo": " The same command goes on with what is kept.",
    "trace": " What is traced is whole; with --corpus and --window the same command goes on.",
}


def one_line(error: BaseException) -> str | None:
    """What is said of an error; None: it is a fault of headloom, whose traceback is needed."""
    text = _text(error)
    if text is None:
        return None
    text = text.replace("\r", "").replace("\n", "\\n")
    if len(text) > _LONGEST:
        text = f"{text[: _LONGEST // 2]} ... {text[-_LONGEST // 2 :]}"
    return text


@contextlib.contextmanager
def one_of_several() -> Iterator[None]:
    """Round what one of several processes does that train together, of which each may end."""
    if "RANK" not in os.environ:
        yield
        return
    # Before torch is loaded, and without a line of its that is no news: that each gradient is
    # looked for is decided in headloom.training.ranks.
    os.environ.setdefault("TORCH_CPP_LOG_LEVEL", "ERROR")
    from headloom.api.launch import one_of_several as ending

    with ending(one_line):
        yield


def _text(error: BaseException) -> str | None:
    from headloom.formats.files import reason_of

    match error:
        case HeadloomError():
            return str(error)
        case OSError(filename=str() | bytes() as name):
            return f"{os.fsdecode(name)}: {reason_of(error)}. Check the path, and its permissions."
        case OSError(errno=number) if number in _OF_OUTPUT:
            _forget_output()
            return f"cannot write the output: {reason_of(error)}."
        case OSError():
            return f"the system refuses: {reason_of(error)}."
        case UnicodeEncodeError():
            return f"{error.object[:200]}: not UTF-8 text. Rename it, or convert it."
        case RecursionError():
            return "the input is nested too deeply to be read. Give a flatter one."
        case OverflowError():
            return f"a number is too large: {error}. Give a smaller one."
        case BaseException() if is_out_of_memory(error):
            return "not enough memory. Give a smaller input, or use a larger machine."
        case Exception() if hasattr(error, "format_message"):  # words that typer does not take
            return " ".join(
                str(error.format_message()).replace("Value error, ", "").replace("(s)", "").split()
            )
    return None


def _forget_output() -> None:
    """Give what is still to be flushed when the interpreter ends a place to go."""
    with contextlib.suppress(OSError, ValueError):
        os.dup2(os.open(os.devnull, os.O_WRONLY), sys.stdout.fileno())


class _Verb(TyperCommand):
    """A verb. With --json, standard output is JSON alone; a reader that leaves is no failure."""

    def get_usage(self, ctx: Any) -> str:
        return f"Example: {EXAMPLES[self.name or '']}\n\n{super().get_usage(ctx)}"

    def invoke(self, ctx: Any) -> object:
        if ctx.params.get("as_csv") and ctx.params.get("as_json"):
            raise InputError("--csv and --json: a command prints one of them. Leave one out.")
        alone = ctx.params.get("as_json")
        output = cast("TextIO", JsonAlone(sys.stdout)) if alone else sys.stdout
        try:
            with redirect_stdout(output):
                result: object = super().invoke(ctx)
            sys.stdout.flush()
        except BrokenPipeError:
            _forget_output()
            raise SystemExit(0) from None
        except KeyboardInterrupt:
            say(f"headloom: stopped.{_GOES_ON.get(self.name or '', '')}")
            raise SystemExit(130) from None
        return result


class _Verbs(TyperGroup):
    """All verbs; words that typer does not take are one line that names the verb's help."""

    def resolve_command(self, ctx: Any, args: list[str]) -> Any:
        verb = args[0]
        if verb in self.commands or verb.startswith("-") or ctx.resilient_parsing:
            return super().resolve_command(ctx, args)
        raise InputError(f"{verb}: no such command. {for_verb(args, self.commands)}")


def _print_version(wanted: bool) -> None:
    if wanted:
        print(f"headloom {__version__}", flush=True)
        raise typer.Exit


def _options(
    version: Annotated[
        bool,
        typer.Option(
            "--version", callback=_print_version, is_eager=True, help="Print the version and exit."
        ),
    ] = False,
    debug: Annotated[bool, typer.Option("--debug", help="Show the traceback of an error.")] = False,
) -> None:
    """Train, trace and see attention weights. Begin with: headloom view minilm"""


def _app() -> typer.Typer:
    """All verbs, each as a command of its name."""
    commands = typer.Typer(
        name="headloom",
        cls=_Verbs,
        no_args_is_help=True,
        pretty_exceptions_enable=False,
        context_settings={"help_option_names": ["-h", "--help"]},
    )
    commands.callback()(_options)
    for panel, names in VERBS.items():
        for name in names:
            word = f"{name}_" if keyword.iskeyword(name) or hasattr(builtins, name) else name
            module = importlib.import_module(f"headloom.cli.verbs.{word}")
            commands.command(name, cls=_Verb, rich_help_panel=panel)(getattr(module, word))
    return commands


app = _app()


@cache
def _command() -> TyperGroup:
    """`app` as a command, which a program that runs several makes once."""
    command = cast(TyperGroup, get_command(app))
    for param in command.params:  # the help fits a screen
        vars(param)["hidden"] = str(param.name).endswith("_completion")
    return command


def main(arguments: list[str] | None = None) -> None:
    """Run the command line. What a user can mend is one line on standard error, exit code 2."""
    words = sys.argv[1:] if arguments is None else arguments
    debug = "--debug" in words
    # Where matplotlib may not keep its list of fonts it says so in two lines; pictures are the
    # same.
    logging.getLogger("matplotlib").setLevel(logging.ERROR)
    left = [word for word in words if word != "--debug"]
    with safe_output():
        try:
            code = _command().main(left or ["--help"], "headloom", standalone_mode=False)
        except typer.Abort:
            say("headloom: stopped.")
            raise SystemExit(130) from None
        except Exception as error:
            line = one_line(error)
            if debug or line is None:
                raise
            say(f"headloom: {with_advice(line, left, error)}")
            raise SystemExit(2) from None
    if code == 130:  # Ctrl-C before the verb began
        say("headloom: stopped.")
    raise SystemExit(code if isinstance(code, int) else 0)
