"""Damaged traces, runs, models and configurations: each is refused in one line, or read as it was.

    python scripts/damaged_inputs.py [--cases 10000] [--seed 0] [--workers 2] [--only NUMBER]
    python scripts/damaged_inputs.py --self-check

A case copies a small whole input, damages it in one way that its number and the seed say (truncated
and flipped bytes, forged numbers, types, shapes and tables with digests made to fit, files that are
gone, pipes, sockets, links, folders, nothing that may be read, sparse and nested without end), and
reads all of it: through the library, part by part, and every fourth case by a verb of the command
as well, every 500th as a process of its own. A case is wrong when

    anything but an error of headloom in one line ends it, or a process dies
    it takes longer than 30 seconds, or 4 GiB of memory beside what the libraries take
    what is read is not what was written, although a digest could tell
    a control character of a name reaches the terminal

Who changes a file and makes its digest fit it, or a file that has none, writes another input, which
is read as it says: that is counted as rewritten. Where this runs as root, what may not be read is
read as another user. --self-check plants faults in headloom, one at a time, and expects to see
each. The last line is the summary; the exit code is 1 where a case is wrong.
"""

from __future__ import annotations

import argparse
import collections
import contextlib
import os
import re
import sys
import tempfile
import time
import warnings
from collections.abc import Iterable, Iterator
from pathlib import Path
from typing import TYPE_CHECKING

if TYPE_CHECKING:
    from damage.cases import Cases, Result

#: How long a case may take; less where a planted fault waits without end.
SECONDS, PLANTED_SECONDS = 30, 10
#: How many cases may pass before a planted fault is seen.
PLANTED_CASES = 2_000
OUTCOMES = ("refused", "equal", "rewritten", "wrong")


@contextlib.contextmanager
def prepared(seed: int, seconds: float) -> Iterator[Cases]:
    """Make the whole inputs, and read them; all that is imported is imported here."""
    import torch

    from damage.cases import Cases
    from damage.originals import make_originals
    from damage.verbs import quick_commands

    torch.set_num_threads(1)
    # Where there is one, a disk in memory: thousands of small files are written.
    place = "/dev/shm" if os.access("/dev/shm", os.W_OK) else None
    with tempfile.TemporaryDirectory(prefix="headloom-originals-", dir=place) as folder:
        tempfile.tempdir = folder
        Path(folder).chmod(0o755)
        with warnings.catch_warnings(), quick_commands():
            warnings.simplefilter("ignore")
            make_originals(Path(folder) / "whole")
            yield Cases.of(Path(folder) / "whole", seed, seconds)


def go_through(came: Iterable[Result], expected: int, every: bool) -> int:
    """Count what cases came to, and print it; returns how many are wrong."""
    counts: collections.Counter[tuple[str, str, str]] = collections.Counter()
    begun = time.monotonic()
    for result in came:
        counts[result.kind, result.way, result.outcome] += 1
        if result.outcome == "wrong" or every:
            print(f"{result.outcome} {result.number} {result.kind}: {result.said}", flush=True)
        if counts.total() % 1_000 == 0:
            minutes = (time.monotonic() - begun) / 60
            print(f"{counts.total():,} cases in {minutes:.1f} minutes", flush=True)
    for title, column in (("input", 0), ("damage", 1)):
        print_table(title, column, counts)
    total = collections.Counter[str]()
    for (*_, outcome), number in counts.items():
        total[outcome] += number
    wrong = total["wrong"]
    if counts.total() != expected:
        print(f"only {counts.total():,} of {expected:,} cases were tried")
        wrong += 1
    reader = "as root and as another user" if os.geteuid() == 0 else "as one user"
    print(
        f"{counts.total():,} cases: {total['refused']:,} refused in one line, {total['equal']:,} "
        f"read equal, {total['rewritten']:,} read as rewritten, {wrong:,} wrong ({reader})"
    )
    return wrong


def print_table(title: str, column: int, counts: collections.Counter[tuple[str, str, str]]) -> None:
    """A row for each kind of input, or of damage; a column for each outcome."""
    print(f"\n{title:<14}" + "".join(f"{outcome:>11}" for outcome in OUTCOMES))
    for name in sorted({key[column] for key in counts}):
        numbers = [
            sum(n for key, n in counts.items() if (key[column], key[2]) == (name, outcome))
            for outcome in OUTCOMES
        ]
        print(f"{name or '-':<14}" + "".join(f"{number:>11,}" for number in numbers))
    print()


def self_check(cases: Cases, workers: int) -> int:
    """Plant faults; returns how many were not seen."""
    from damage.planted import PLANTED
    from damage.workers import results

    blind = 0
    for what, (kind, sign, plant) in PLANTED.items():
        with plant():
            came = results(
                lambda number, kind=kind: cases.examine(number, (kind,)),
                range(1, PLANTED_CASES), workers, cases.seconds,
            )  # fmt: skip
            with contextlib.closing(came):
                wrong = (result for result in came if result.outcome == "wrong")
                first = next((result for result in wrong if re.search(sign, result.said)), None)
        if first is None:
            blind += 1
            print(f"NOT SEEN in {PLANTED_CASES} cases: {what}", flush=True)
        else:
            print(f"seen at case {first.number}: {what}: {first.said:.200}", flush=True)
    print(f"{len(PLANTED)} faults planted: {len(PLANTED) - blind} seen, {blind} not seen")
    return blind


def arguments(about: str, cases: int) -> argparse.Namespace:
    """What was asked on the command line: so many cases unless it says otherwise; their numbers."""
    parser = argparse.ArgumentParser(description=about.splitlines()[0])
    parser.add_argument("--cases", type=int, default=cases)
    parser.add_argument("--seed", type=int, default=0)
    parser.add_argument("--workers", type=int, default=2)
    parser.add_argument("--only", type=int, help="the number of one case")
    parser.add_argument("--self-check", action="store_true", help="plant faults, and see them")
    asked = parser.parse_args()
    only = asked.only
    asked.numbers = range(asked.cases) if only is None else range(only, only + 1)
    os.environ |= {"OMP_NUM_THREADS": "1", "TOKENIZERS_PARALLELISM": "false"}
    return asked


def main() -> None:
    """Go through the cases, by processes that read."""
    asked = arguments(__doc__, cases=10_000)
    sys.path.insert(0, str(Path(__file__).resolve().parent))
    from damage.workers import results

    seconds = PLANTED_SECONDS if asked.self_check else SECONDS
    with prepared(asked.seed, seconds) as cases:
        if asked.self_check:
            raise SystemExit(1 if self_check(cases, asked.workers) else 0)
        came = results(cases.examine, asked.numbers, asked.workers, seconds)
        wrong = go_through(came, len(asked.numbers), asked.only is not None)
    raise SystemExit(1 if wrong else 0)


if __name__ == "__main__":
    main()
