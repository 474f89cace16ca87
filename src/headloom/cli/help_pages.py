"""The pages of ``headloom --help`` and ``headloom VERB --help``: plain text that fits any
terminal.
"""

from __future__ import annotations

import inspect
import shutil
import textwrap
from collections.abc import Iterable, Iterator
from enum import Enum
from pathlib import Path
from typing import Any, get_args, get_type_hints

__all__ = ["group_page", "verb_page"]

#: Characters of a line: as many as the terminal has, between these.
_NARROWEST, _WIDEST = 40, 100
#: Where the explanation of an option begins; longer names have it below them.
_INDENT = 24
_NO_BREAK = "\u00a0"
#: What stands for a value of a type.
_VALUES = {int: "N", float: "NUMBER", Path: "PATH", str: "TEXT"}


def group_page(name: str, about: str, panels: Iterable[tuple[str, list[tuple[str, str]]]]) -> str:
    """The verbs, panel by panel, each with the first sentence that is said of it."""
    lines = [f"Usage: {name} VERB [OPTIONS]", "", *_wrapped(about)]
    panels = list(panels)
    width = max(len(row) for _, rows in panels for row, _ in rows) + 4
    for panel, rows in panels:
        lines += ["", panel]
        for row, text in rows:
            lines += _row(row, text, width)
    return "\n".join(lines)


def verb_page(verb: Any, ctx: Any) -> str:
    """A verb: how it is called, what it does, its arguments and its options."""
    function = inspect.unwrap(verb.callback)
    types = get_type_hints(function)
    shown = [param for param in verb.get_params(ctx) if not getattr(param, "hidden", False)]
    arguments = [param for param in shown if param.param_type_name == "argument"]
    options = [param for param in shown if param.param_type_name == "option"]
    usage = " ".join(
        param.metavar if param.required else f"[{param.metavar}]" for param in arguments
    )
    needed = " ".join(
        f"{min(option.opts, key=len)} {_value(option, types)}"
        for option in options if option.required
    )  # fmt: skip
    words = (ctx.command_path, usage, needed, "[OPTIONS]")
    lines = [f"Usage: {' '.join(word for word in words if word)}"]
    for paragraph in inspect.cleandoc(verb.help or "").split("\n\n"):
        lines += ["", *_wrapped(paragraph)]
    if arguments:
        lines.append("")
        for argument in arguments:
            lines += _row(argument.metavar, _explained(argument), _INDENT)
    lines += ["", "Options:"]
    for option in options:
        names = ", ".join(sorted(option.opts, key=len))
        if option.secondary_opts:
            names += " / " + ", ".join(option.secondary_opts)
        lines += _row(f"{names} {_value(option, types)}".rstrip(), _explained(option), _INDENT)
    return "\n".join(lines)


def _value(option: Any, types: dict[str, Any]) -> str:
    """What stands for the value of an option; nothing, where it takes none."""
    if getattr(option, "is_flag", False):
        return ""
    if option.metavar:
        return str(option.metavar)
    kind = types.get(option.name, str)
    while parts := [part for part in get_args(kind) if part is not type(None)]:
        kind = parts[0]  # of a list, or of what may be left out
    if issubclass(kind, Enum):
        return "|".join(str(member.value) for member in kind)
    return _VALUES[kind]


def _explained(param: Any) -> str:
    """What is said of an option, and its value where it is not given."""
    text = param.help or ""
    if param.param_type_name == "option":
        default = param.show_default if isinstance(param.show_default, str) else param.default
        if isinstance(default, (list, tuple)):
            default = " ".join(map(str, default))
        if isinstance(default, Enum):
            default = default.value
        if param.secondary_opts and isinstance(default, bool):
            default = (param.opts if default else param.secondary_opts)[0]
        if default not in (None, False, "") and not callable(default):
            # One piece, which is not broken: see `_row`.
            text += " " + f"[default: {default}]".replace(" ", _NO_BREAK)
    return text


def _width() -> int:
    return max(_NARROWEST, min(shutil.get_terminal_size().columns, _WIDEST))


def _wrapped(text: str) -> list[str]:
    return textwrap.wrap(text, _width(), break_on_hyphens=False)


def _row(name: str, text: str, indent: int) -> Iterator[str]:
    """A name, and beside it or below it what is said of it."""
    beside = f"  {name}".ljust(indent)
    if not beside.endswith("  "):
        yield f"  {name}"
        beside = " " * indent
    lines = textwrap.wrap(
        text, _width(), initial_indent=beside, subsequent_indent=" " * indent,
        break_on_hyphens=False,
    )  # fmt: skip
    yield from (line.replace(_NO_BREAK, " ") for line in lines)
