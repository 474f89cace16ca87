"""`headloom doctor`."""

import textwrap
from collections import defaultdict

import headloom
from headloom.cli.options import AsJson
from headloom.cli.output import print_json, records, say

#: Characters of a line, and before the values.
WIDTH, INDENT = 79, 22


def doctor(as_json: AsJson = False) -> None:
    """Check the installation, this machine, and attention in float64.

    Exit status 1 where something is wrong.
    """
    groups: dict[str, dict[str, str]] = defaultdict(dict)

    def show(group: str, name: str, value: str) -> None:
        if group not in groups:
            print(group)
        groups[group][name] = value
        begin = f"  {name}".ljust(INDENT - 1) + " "
        print(
            textwrap.fill(
                value, WIDTH, initial_indent=begin, subsequent_indent=" " * INDENT,
                break_on_hyphens=False,
            ),
            flush=True,
        )  # fmt: skip

    findings = headloom.doctor(progress=show)
    wrong = findings[findings["problem"].notna()]
    for problem in wrong["problem"]:
        say(f"headloom: {problem}")
    if not len(wrong):
        print("\nNothing is wrong.")
    if as_json:
        problems = records(wrong)
        print_json({"healthy": not problems, "findings": groups, "problems": problems})
    if len(wrong):
        raise SystemExit(1)
