"""Command `headloom`: its verbs, errors and exit codes.

A verb is a function in a module of the same name in `headloom.cli.verbs`; an underscore follows
names that Python reserves, such as `import` and `map`.
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
#: Maximum of characters of an error: a path may have thousands.
_LONGEST = 1_200
#: Errors of writing; without a file name, to standard output.
_OF_OUTPUT = (errno.ENOSPC, errno.EDQUOT, errno.EFBIG, errno.EIO, errno.EBADF, errno.EPIPE)
#: The sentence after "stopped." where a person stops a verb.
_GOES_ON = {
    "train": " The same command resumes from the last checkpoint.",
    "demo": " The same command resumes from the last checkpoint.",
    "trace": " Finished traces are kept; with --corpus or --window the same command continues.",
}


def one_line(error: BaseException) -> str | None:
    """Return the message of an error; None: a bug of headloom, which needs its traceback."""
    text = _text(error)
    if text is None:
        return None
    text = text.replace("\r", "").replace("\n", "\\n")
    if len(text) > _LONGEST:
        text = f"{text[: _LONGEST // 2]} ... {text[-_LONGEST // 2 :]}"
    return text


@contextlib.contextmanager
def one_of_several() -> Iterator[None]:
    """Wrap the work of a process that trains with others, any of which may end."""
    if "RANK" not in os.environ:
        yield
        return
    # Before torch is loaded; hides its warning about find_unused_parameters, see
    # headloom.training.ranks.
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
            return f"system error: {reason_of(error)}."
        case UnicodeEncodeError():
            return f"{error.object[:200]}: not UTF-8 text. Rename it, or convert it."
        case RecursionError():
            return "the input is nested too deeply. Give a flatter one."
        case OverflowError():
            return f"a number is too large: {error}. Give a smaller one."
        case BaseException() if is_out_of_memory(error):
            return "not enough memory. Use a smaller input or a larger machine."
        case Exception() if hasattr(error, "format_message"):  # words that typer does not take
            return " ".join(
                str(error.format_message()).replace("Value error, ", "").replace("(s)", "").split()
            )
    return None


def _forget_output() -> None:
    """Redirect unflushed output to the null device, for the interpreter's shutdown."""
    with contextlib.suppress(OSError, ValueError):
        os.dup2(os.open(os.devnull, os.O_WRONLY), sys.stdout.fileno())


class _Verb(TyperCommand):
    """Verb. With --json, standard output is JSON alone; a closed pipe is no error."""

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
    """Train, trace and see attention weights. Begin with: headloom view minilm."""


def _app() -> typer.Typer:
    """Build the application: a command for each verb."""
    commands = typer.Typer(
        name="headloom", cls=_Verbs, no_args_is_help=True, pretty_exceptions_enable=False,
        context_settings={"help_option_names": ["-h", "--help"]},
    )  # fmt: skip
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
    """Convert `app` to a command, once per process."""
    command = cast(TyperGroup, get_command(app))
    for param in command.params:  # the help fits a screen
        vars(param)["hidden"] = str(param.name).endswith("_completion")
    return command


def main(arguments: list[str] | None = None) -> None:
    """Run the command line. Errors of the user are one line on standard error, exit code 2."""
    words = sys.argv[1:] if arguments is None else arguments
    debug = "--debug" in words
    # Hides matplotlib's warning about an unwritable font cache.
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
