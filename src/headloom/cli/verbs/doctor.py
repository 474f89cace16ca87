"""`headloom doctor`."""

import textwrap

from headloom.cli.options import AsJson
from headloom.cli.output import print_json, say

#: Characters of a line, and before the values.
WIDTH, INDENT = 79, 22


def doctor(as_json: AsJson = False) -> None:
    """Show what is installed and what this machine has, and check attention against float64.

    Exit status 1 where something is wrong.
    """
    from headloom.api.doctor import Finding, examine, report

    findings: list[Finding] = []
    for finding in examine():
        if not findings or findings[-1].group != finding.group:
            print(f"{finding.group}")
        name = f"  {finding.name}".ljust(INDENT - 1) + " "
        print(
            textwrap.fill(
                finding.value, WIDTH, initial_indent=name, subsequent_indent=" " * INDENT,
                break_on_hyphens=False,
            ),
            flush=True,
        )  # fmt: skip
        findings.append(finding)
    wrong = [finding.problem for finding in findings if finding.problem]
    for problem in wrong:
        say(f"headloom: {problem}")
    if not wrong:
        print("\nNothing is wrong.")
    if as_json:
        print_json(report(findings))
    if wrong:
        raise SystemExit(1)
