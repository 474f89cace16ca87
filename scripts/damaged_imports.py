"""Damaged arrays and edge lists: `headloom import` refuses each in one line, or says what is there.

    python scripts/damaged_imports.py [--cases 2000] [--seed 0] [--workers 2] [--only NUMBER]
    python scripts/damaged_imports.py --self-check

A case copies a small whole dump (.npy, .npz, .safetensors of queries and keys, weights, edges as
Parquet and CSV, each with its tokens), damages it in one way that its number and the seed say, as
scripts/damaged_inputs.py does, and imports it by the command. A case is wrong when

    it ends in anything but one line, or in a trace; or its process dies
    it takes longer than 30 seconds, or 4 GiB of memory beside what the libraries take
    what was refused leaves anything behind
    anything was unpickled
    the trace says other things than the files, as NumPy, duckdb, the csv module and a reader of
        ten lines read them; or than the formula, in float64, gives for them; or rows are no weights
    the files have checksums (.npz, .parquet), and damage of their bytes gives other data

Files without checksums that were changed are other files, read as they say: counted as rewritten.
--self-check plants faults in headloom, one at a time, and expects to see each.
The last line is the summary; the exit code is 1 where a case is wrong.
"""

from __future__ import annotations

import contextlib
import os
import random
import shutil
import sys
import tempfile
import traceback
import warnings
from collections.abc import Iterator
from functools import partial
from pathlib import Path
from typing import TYPE_CHECKING, Any
from unittest import mock

if TYPE_CHECKING:
    from damage.cases import Result

from damaged_inputs import SECONDS, arguments, go_through

#: One case in so many is read by the command as a process.
BY_PROCESS = 250
#: How many cases may pass before a planted fault is seen.
PLANTED_CASES = 1_000


def examine(whole: Path, seed: int, number: int) -> Result:
    """Damage a copy of a dump, and import it."""
    from damage.cases import Result, TooLong, alarm, as_nobody, case_folder
    from damage.damages import damage
    from damage.imports import KINDS

    chance = random.Random(f"imports {seed} {number}")
    kind = chance.choice(tuple(KINDS))
    with case_folder() as folder:
        copy = folder / kind
        shutil.copytree(whole / kind, copy)
        what = damage(copy, chance)
        reader = as_nobody() if what.way == "unreadable" else contextlib.nullcontext()
        try:
            longer = 1 if number % BY_PROCESS else 10
            with alarm(SECONDS * longer), reader:
                outcome, said = imported(whole, kind, copy, number, what.way)
        except (TooLong, Exception) as error:
            steps = traceback.extract_tb(error.__traceback__)
            where = f"{steps[-1].filename}:{steps[-1].lineno}"
            outcome, said = "wrong", f"{type(error).__name__}: {error!s:.300} ({where})"
    return Result(number, kind, what.way, outcome, f"{what}; {said}".rstrip("; "))


def imported(whole: Path, kind: str, copy: Path, number: int, way: str) -> tuple[str, str]:
    """What an import came to, and what there is to say of it."""
    from damage.array_forgeries import MARKER
    from damage.imports import read_by_others, read_trace, words_of, wrong_in
    from damage.verbs import by_process, by_verb

    before = {path.name for path in copy.parent.iterdir()}
    output = copy.parent / "new.loom"
    run = by_verb if number % BY_PROCESS else by_process
    said = run(words_of(kind, copy, output), {copy.parent: "FOLDER"})
    if list(copy.parent.rglob(MARKER)) or Path(MARKER).exists():
        return "wrong", "it was unpickled"
    left = {path.name for path in copy.parent.iterdir()} - before
    if left != ({output.name} if said.code == 0 else set()):
        return "wrong", f"{sorted(left)} is left behind"
    if said.code:
        return "refused", said.error.strip()
    came = read_trace(output)
    original = read_by_others(kind, whole / kind)
    try:
        there = read_by_others(kind, copy)
    except Exception as error:
        return (
            "wrong",
            f"it is read, and another reader says {type(error).__name__}: {error!s:.200}",
        )
    problem = wrong_in(kind, came, there)
    if problem:
        return "wrong", f"the trace holds {problem}"
    if not wrong_in(kind, came, original):
        return "equal", ""
    sealed = kind in ("npz", "weights", "parquet") and way in ("flip", "zeros", "truncate")
    changed = wrong_in(kind, came, original) or ""
    if sealed and "tokens" not in changed:
        return "wrong", f"its checksums did not tell: {changed}"
    return "rewritten", changed


@contextlib.contextmanager
def prepared() -> Iterator[Path]:
    """Make the whole dumps, and import each; all that is imported is imported here."""
    import torch

    from damage.imports import KINDS, make_dumps
    from damage.verbs import quick_commands

    torch.set_num_threads(1)
    place = "/dev/shm" if os.access("/dev/shm", os.W_OK) else None
    with tempfile.TemporaryDirectory(prefix="headloom-dumps-", dir=place) as folder:
        tempfile.tempdir = folder
        Path(folder).chmod(0o755)
        whole = Path(folder) / "whole"
        make_dumps(whole)
        with warnings.catch_warnings(), quick_commands():
            warnings.simplefilter("ignore")
            for kind in KINDS:
                copy = Path(folder) / "try" / kind
                shutil.copytree(whole / kind, copy)
                outcome, said = imported(whole, kind, copy, 1, "")
                if outcome != "equal":
                    raise SystemExit(f"a whole dump is {outcome}: {kind}: {said}")
                shutil.rmtree(copy.parent)
            yield whole


def planted() -> dict[str, contextlib.AbstractContextManager[object]]:
    """Faults of an import, by what they are."""
    import numpy as np

    from headloom.api import importing
    from headloom.formats import edge_lists, stored_arrays
    from headloom.tracing import given, given_edges

    real = np.lib.format.read_array

    def unpickled(file: Any, **options: object) -> Any:
        return real(file, allow_pickle=True)

    def moved(self: Any, number: int) -> Any:
        return self._arrays[number].read() * 1.00001

    patch = mock.patch.object
    return {
        "rows of weights are not looked at": patch(
            given, "checked_weights", lambda label, weights, sums: weights.float()
        ),
        "sums of edges are not looked at": patch(given_edges, "_check_sums", lambda *given: None),
        "errors of the libraries are not made lines": patch(stored_arrays, "_UNREADABLE", ()),
        "errors of tables are not made lines": patch(edge_lists, "_UNREADABLE", ()),
        "objects are unpickled": _both(
            patch(np.lib.format, "read_array", unpickled),
            patch(stored_arrays, "_header", lambda file, size: (2, 6, 4)),
        ),
        "other numbers are read": patch(importing._Stored, "__getitem__", moved),
        "opening a pipe waits": _both(
            patch(stored_arrays, "check_file", lambda path, what: None),
            patch(stored_arrays, "open_file", lambda path, what: Path(path).open("rb")),
        ),
    }


@contextlib.contextmanager
def _both(*patches: contextlib.AbstractContextManager[object]) -> Iterator[None]:
    with contextlib.ExitStack() as stack:
        for one in patches:
            stack.enter_context(one)
        yield


def self_check(whole: Path, seed: int, workers: int) -> int:
    """Plant faults; returns how many were not seen."""
    from damage.workers import results

    blind = 0
    faults = planted()
    for what, fault in faults.items():
        with fault:
            came = results(partial(examine, whole, seed), range(1, PLANTED_CASES), workers, SECONDS)
            with contextlib.closing(came):
                first = next((result for result in came if result.outcome == "wrong"), None)
        blind += first is None
        seen = "NOT SEEN" if first is None else f"seen at case {first.number}: {first.said:.150}"
        print(f"{what}: {seen}", flush=True)
    print(f"{len(faults)} faults planted: {len(faults) - blind} seen, {blind} not seen")
    return blind


def main() -> None:
    """Go through the cases, by processes that import."""
    asked = arguments(__doc__, cases=2_000)
    from damage.workers import results

    with prepared() as whole:
        if asked.self_check:
            sys.exit(1 if self_check(whole, asked.seed, asked.workers) else 0)
        came = results(partial(examine, whole, asked.seed), asked.numbers, asked.workers, SECONDS)
        wrong = go_through(came, len(asked.numbers), asked.only is not None)
    sys.exit(1 if wrong else 0)


if __name__ == "__main__":
    main()
