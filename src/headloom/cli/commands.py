"""The command `headloom`: finds its verbs in `headloom.cli.verbs`, and ends each of them well.

A verb is a module of that folder, with a function of its name, and `PLACE`: the panel of
``headloom --help`` that lists it, and its place there. Where Python has the name for itself, as
`import`, an underscore follows it.
"""

from __future__ import annotations

import importlib
import logging
import pkgutil
import sys
from collections.abc import Iterator
from contextlib import contextmanager, redirect_stdout
from difflib import get_close_matches
from functools import cache
from types import ModuleType
from typing import Annotated, Any

import typer
from typer.core import TyperCommand, TyperGroup
from typer.main import get_command

from headloom.cli import verbs
from headloom.cli.endings import left_by_reader, one_line
from headloom.cli.help_pages import group_page, verb_page
from headloom.cli.output import JsonAlone
from headloom.cli.safe_text import safe_output
from headloom.errors import InputError
from headloom.version import __version__

__all__ = ["PANELS", "app", "main"]

#: The panels of ``headloom --help``, in order.
PANELS = ("Make", "Trace", "Read", "See")

#: What typer raises for an unknown verb or option, or a bad value; it has no public name there.
_UsageError: type[BaseException] = typer.BadParameter.__mro__[1]

#: The sentence after "stopped." where a person stops a verb.
_TRAINING = " The same command goes on with what is kept."
_GOES_ON = {
    "train": _TRAINING,
    "demo": _TRAINING,
    "trace": " What is traced is whole; with --corpus and --window the same command goes on.",
}


def _with_value(error: BaseException) -> str:
    """What typer says of bad words; with the value that an option cannot have, if it left it out.

    That is so where typer checks values by pydantic, whose error is then the cause of its own.
    """
    message: str = getattr(error, "format_message", error.__str__)()
    for fault in getattr(error.__cause__, "errors", list)()[:1]:
        value = repr(str(fault["input"])[:40])
        if value not in message:
            start, colon, said = message.partition(": ")
            about = said.removeprefix("Input ")
            return f"{start}{colon}{value}{' ' if about != said else ': '}{about}"
    return message


class _Verb(TyperCommand):
    """A verb, with its page of help; with --json, standard output is JSON alone."""

    def format_help(self, ctx: Any, formatter: Any) -> None:
        formatter.write(verb_page(self, ctx))

    def invoke(self, ctx: Any) -> Any:
        output = JsonAlone(sys.stdout) if ctx.params.get("as_json") else sys.stdout
        with redirect_stdout(output):
            return super().invoke(ctx)

    def parse_args(self, ctx: Any, args: list[str]) -> list[str]:
        rest = super().parse_args(ctx, args)
        if ctx.params.get("as_csv") and ctx.params.get("as_json"):
            raise InputError("--csv and --json: a command prints one of them. Leave one out.")
        return rest


class _Verbs(TyperGroup):
    """The verbs; ends well where the reader of the output leaves, or a person stops us."""

    def format_help(self, ctx: Any, formatter: Any) -> None:
        listed: list[tuple[str, Any]] = list(self.commands.items())
        panels = [
            (
                f"{panel}:",
                [
                    (name, (verb.help or "").split("\n\n")[0])
                    for name, verb in listed
                    if verb.rich_help_panel == panel
                ],
            )
            for panel in PANELS
        ]
        params: list[Any] = self.get_params(ctx)
        options = [
            (", ".join(sorted(option.opts, key=len)), option.help or "") for option in params
        ]
        panels.append(("Options:", options))
        formatter.write(group_page(ctx.command_path, self.help or "", panels))

    def parse_args(self, ctx: Any, args: list[str]) -> list[str]:
        with self._ending_well(ctx):
            return super().parse_args(ctx, args or ["--help"])

    def resolve_command(self, ctx: Any, args: list[str]) -> Any:
        verb = args[0]
        # A shell that asks what may follow is told nothing of a word that is no verb.
        if verb in self.commands or verb.startswith("-") or ctx.resilient_parsing:
            return super().resolve_command(ctx, args)
        close = get_close_matches(verb[:100], self.commands, 1)
        near = f" Did you mean {close[0]}?" if close else ""
        raise InputError(f"{verb}: no such command.{near} See headloom --help.")

    def _in_one_line(self, error: BaseException, verb: str | None) -> InputError:
        message = _with_value(error).replace("Value error, ", "").removesuffix(".")
        end = "" if message.endswith("?") else "."
        help_of = f"headloom {verb}" if verb in self.commands else "headloom"
        options = getattr(self.commands.get(verb or ""), "params", [])
        takes_text = any("--text" in option.opts for option in options)
        hint = " A text is given by --text." if takes_text and "unexpected extra" in message else ""
        return InputError(f"{message}{end}{hint} See {help_of} --help.")

    def invoke(self, ctx: Any) -> Any:
        with self._ending_well(ctx):
            result = super().invoke(ctx)
            sys.stdout.flush()
            return result

    @contextmanager
    def _ending_well(self, ctx: Any) -> Iterator[None]:
        """Bad words are one line; a reader that leaves, and Ctrl-C, are no failures."""
        try:
            yield
        except _UsageError as error:
            raise self._in_one_line(error, ctx.invoked_subcommand) from None
        except BrokenPipeError as error:
            # Before typer, which takes it for a failure.
            left_by_reader(error)
            raise SystemExit(0) from None
        except KeyboardInterrupt:
            goes_on = _GOES_ON.get(ctx.invoked_subcommand or "", "")
            print(f"headloom: stopped.{goes_on}", file=sys.stderr)
            raise SystemExit(130) from None


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
    debug: Annotated[
        bool, typer.Option("--debug", help="Show the traceback of an error, not one line.")
    ] = False,
) -> None:
    """The attention weight matrix: train it, trace it, read it, see it."""


def _modules() -> Iterator[tuple[str, ModuleType]]:
    """The verbs and their modules, in the order of ``headloom --help``."""
    names = [module.name for module in pkgutil.iter_modules(verbs.__path__)]
    modules = {name: importlib.import_module(f"{verbs.__name__}.{name}") for name in names}

    def place(name: str) -> tuple[int, int]:
        panel, number = modules[name].PLACE
        return PANELS.index(panel), number

    return ((name, modules[name]) for name in sorted(modules, key=place))


def _app() -> typer.Typer:
    """All verbs, each as a command of its name."""
    commands = typer.Typer(
        name="headloom",
        cls=_Verbs,
        pretty_exceptions_enable=False,
        context_settings={"help_option_names": ["-h", "--help"]},
    )
    commands.callback()(_options)
    for name, module in _modules():
        panel, _ = module.PLACE
        register = commands.command(name.removesuffix("_"), cls=_Verb, rich_help_panel=panel)
        register(getattr(module, name))
    return commands


app = _app()


@cache
def _command() -> Any:
    """`app` as a command, which a program that runs several makes once."""
    return get_command(app)


def main(arguments: list[str] | None = None) -> None:
    """Run the command line. What a user can mend is one line on standard error, exit code 2."""
    words = sys.argv[1:] if arguments is None else arguments
    debug = "--debug" in words
    if not debug:
        # Where it may not keep its list of fonts it says so in two lines; pictures are the same.
        logging.getLogger("matplotlib").setLevel(logging.ERROR)
    with safe_output():
        try:
            _command()([word for word in words if word != "--debug"], prog_name="headloom")
        except Exception as error:
            if left_by_reader(error):
                raise SystemExit(0) from None
            line = one_line(error)
            if debug or line is None:
                raise
            print(f"headloom: {line}", file=sys.stderr)
            raise SystemExit(2) from None
