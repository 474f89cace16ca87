"""What every verb does with its options: old names work, and a line says the new ones; flags that
contradict each other are an error.

See docs/decisions/0031-grammar.md for the names, docs/releases.md for how long they stay.
"""

from __future__ import annotations

from collections.abc import Collection, Mapping, Sequence
from itertools import islice
from typing import Any

from typer.core import TyperCommand

from weft.cli.argument_names import options_named
from weft.cli.help_pages import verb_page
from weft.cli.output import say
from weft.errors import InputError

__all__ = ["OLD_NAMES", "Verb", "options_in", "with_new_names"]

#: By verb: the old name of an option, and what it is called now.
OLD_NAMES: Mapping[str, Mapping[str, str]] = {
    "ablate": {"--kind": "--replacement", "--tokens": "--data-tokens"},
    "align": {"--top": "--limit", "--source": "--source-file", "--target": "--target-file"},
    "compare": {"--top": "--limit"},
    "evict": {"--prompt": "--prompt-tokens"},
    "flow": {"--top": "--limit", "--to": "--from"},
    "generate": {"--top": "--top-k"},
    "heads": {"--history": "--measure"},
    "import": {"--heads": "--num-heads", "--window": "--mask-window"},
    "relevance": {"--top": "--limit", "--position": "--token"},
    "rollout": {"--top": "--limit"},
    "steps": {"--heads": "--num-heads"},
    "translate": {"--window": "--lines-at-once"},
}


def with_new_names(
    words: Sequence[str],
    renamed: Mapping[str, str],
    valued: Collection[str],
    once: Collection[str] = (),
) -> tuple[list[str], list[str]]:
    """The words of a command with today's names, and the old names that stood there.

    Args:
        words: after the verb.
        renamed: old names, and today's.
        valued: the options, by today's names, that are followed by a value: that is none of them,
            whatever it looks like.
        once: the options that have one value: by both of its names such a one is an error.

    Raises: InputError: an option is there by its old and its new name.

    >>> with_new_names(["--text", "--top", "--top=3"], {"--top": "--limit"}, {"--text", "--limit"})
    (['--text', '--top', '--limit=3'], ['--top'])
    """
    new: list[str] = []
    old: list[str] = []
    today: set[str] = set()
    rest = iter(words)
    for word in rest:
        name, equals, value = word.partition("=")
        if name in renamed:
            old.append(name)
            name = renamed[name]
        else:
            today.add(name)
        new.append(name + equals + value)
        if word == "--":
            new.extend(rest)
        elif name in valued and not equals:
            new.extend(islice(rest, 1))
    for name in old:
        if renamed[name] in today and renamed[name] in once:
            raise InputError(f"{name} and {renamed[name]}: one option by two names. Leave one out.")
    return new, old


def options_in(words: Sequence[str], valued: Collection[str]) -> set[str]:
    """The options among the words of a command; a value that looks like one is none.

    >>> sorted(options_in(["--kept", "--text", "--exact", "--limit=3", "--", "--csv"], {"--text"}))
    ['--kept', '--limit', '--text']
    """
    options: set[str] = set()
    rest = iter(words)
    for word in rest:
        if word == "--":
            break
        name, equals, _ = word.partition("=")
        if name.startswith("-"):
            options.add(name)
        if name in valued and not equals:
            next(rest, None)
    return options


class Verb(TyperCommand):
    """A verb: its page of help, the old names of its options, errors that name its options."""

    def format_help(self, ctx: Any, formatter: Any) -> None:
        formatter.write(verb_page(self, ctx))

    def invoke(self, ctx: Any) -> Any:
        with options_named(self.name or ""):
            return super().invoke(ctx)

    def parse_args(self, ctx: Any, args: list[str]) -> list[str]:
        renamed = OLD_NAMES.get(self.name or "", {})
        options = [
            option for option in self.params
            if option.param_type_name == "option" and not getattr(option, "is_flag", False)
        ]  # fmt: skip
        valued = {name for option in options for name in option.opts}
        if renamed:
            once = {name for option in options if not option.multiple for name in option.opts}
            args, old = with_new_names(args, renamed, valued, once)
            # A shell that asks what may follow is told nothing.
            for name in () if ctx.resilient_parsing else dict.fromkeys(old):
                say(f"weft: {name} is now {renamed[name]}; the old name will go.")
        there = options_in(args, valued)
        for flag in self.params:
            yes, no = there.intersection(flag.opts), there.intersection(flag.secondary_opts)
            if yes and no:
                raise InputError(
                    f"{min(yes)} and {min(no)}: the one says the opposite of the other. Leave one "
                    "out."
                )
        rest = super().parse_args(ctx, args)
        if ctx.params.get("as_csv") and ctx.params.get("as_json"):
            raise InputError("--csv and --json: a command prints one of them. Leave one out.")
        return rest
