"""What the tests reach of src/headloom, package by package, after `make coverage` has run them.

    python scripts/coverage_table.py              # a table; exit status 1 below 92 %
    python scripts/coverage_table.py --lines mechanism/masks.py    # and the lines of a file
    python -m pytest tests/cli --cov --cov-append --cov-report=   # some tests, added to the rest

Lines of processes that tests start are counted too; those of the kernels, in C++, are not.
"""

from __future__ import annotations

import argparse
import sys
from collections import defaultdict
from pathlib import Path

import coverage
from coverage.exceptions import CoverageException

PACKAGE = Path(__file__).resolve().parents[1] / "src" / "headloom"
#: Of all lines of src/headloom that can run.
LEAST = 0.92


def main() -> int:
    """Print the table; the exit status."""
    parser = argparse.ArgumentParser(description=(__doc__ or "").partition("\n")[0])
    parser.add_argument("--lines", help="a file below src/headloom")
    options = parser.parse_args()
    measured = coverage.Coverage()
    measured.load()
    lines: dict[str, int] = defaultdict(int)
    missed: dict[str, int] = defaultdict(int)
    worst: list[tuple[int, int, str]] = []
    for path in sorted(PACKAGE.rglob("*.py")):
        try:
            _, there, _, not_reached, said = measured.analysis2(str(path))
        except CoverageException as error:
            print(f"{path}: {error}", file=sys.stderr)
            return 2
        inside = path.relative_to(PACKAGE)
        package = inside.parts[0] if len(inside.parts) > 1 else "headloom itself"
        lines[package] += len(there)
        missed[package] += len(not_reached)
        worst.append((len(not_reached), len(there), str(inside)))
        if options.lines == str(inside):
            print(f"{inside}: not reached: {said}")
    for name in sorted(lines):
        print(f"{name:14s} {lines[name]:6,d} lines  {1 - missed[name] / lines[name]:6.1%}")
    for gone, there, name in sorted(worst, reverse=True)[:12]:
        print(f"  {name:44s} {gone:4d} of {there:4d} not reached")
    share = 1 - sum(missed.values()) / sum(lines.values())
    print(f"{'all':14s} {sum(lines.values()):6,d} lines  {share:6.1%}")
    return int(share < LEAST)


if __name__ == "__main__":
    sys.exit(main())
