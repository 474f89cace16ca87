"""Damaged traces, runs, models and configurations: each is refused in one line, or read as it was.

    python scripts/damaged_inputs.py [--cases 10000] [--seed 0] [--workers 2] [--only NUMBER]

A case copies a small whole input, damages it in one way that its number and the seed say (truncated
and flipped bytes, forged numbers, types, shapes and tables with digests made to fit, files that are
gone, pipes, sockets, links, folders, nothing that may be read, sparse and nested without end), and
reads all of it: through the library, part by part, and every third case by a verb of the command as
well. It is a fault when

    anything but an error of weft in one line ends it, or a process dies
    it takes longer than 30 seconds, or 4 GiB of memory beside what the libraries take
    what is read is not what was written, although no digest was forged
    a control character of a name reaches the terminal

Where this runs as root, what may not be read is read as another user. The last line is the
summary; the exit code is 1 where there is a fault.
"""

from __future__ import annotations

import argparse
import collections
import contextlib
import json
import os
import queue
import random
import resource
import shutil
import signal
import subprocess
import sys
import tempfile
import threading
import traceback
import warnings
from collections.abc import Iterator
from pathlib import Path
from types import FrameType
from typing import Any, NoReturn

#: Of one case: seconds; of a worker: bytes beside what it has at its beginning.
SECONDS, BYTES = 30, 4 << 30
#: How often each kind of input is taken.
KINDS = ("trace", "trace", "trace", "terms", "terms", "run", "run", "run", "model", "config")
NOBODY = 65534


class TooLong(BaseException):
    """A case that does not end."""


def too_long(number: int, frame: FrameType | None) -> NoReturn:
    """End a case by its alarm."""
    raise TooLong


def prepare(folder: Path) -> None:
    """Make the whole inputs."""
    from damage.originals import make_originals

    with warnings.catch_warnings():
        warnings.simplefilter("ignore")
        make_originals(folder)


def work(originals: Path, seed: int, numbers: range) -> None:
    """Go through cases; a line of JSON before and after each."""
    import torch

    from damage.readings import READINGS, every_verb, run_verb

    warnings.simplefilter("ignore")
    torch.set_num_threads(1)
    torch.nn.Linear(2, 2)(torch.randn(2, 2)).sum().backward()
    expected = {kind: READINGS[kind](originals / kind) for kind in set(KINDS)}
    # What is imported when it is first used: later it may be another user who asks for it.
    with tempfile.TemporaryDirectory() as folder:
        for command in every_verb(originals, Path(folder)):
            run_verb(command)
    status = Path("/proc/self/statm").read_text("ascii").split()
    limit = int(status[0]) * os.sysconf("SC_PAGE_SIZE") + BYTES
    resource.setrlimit(resource.RLIMIT_AS, (limit, limit))
    signal.signal(signal.SIGALRM, too_long)
    output = os.fdopen(os.dup(1), "w")
    os.dup2(os.open(os.devnull, os.O_WRONLY), 1)
    for number in numbers:
        print(json.dumps({"begins": number}), file=output, flush=True)
        result = examine(originals, expected, seed, number)
        print(json.dumps({"case": number, **result}), file=output, flush=True)


def examine(originals: Path, expected: dict[str, Any], seed: int, number: int) -> dict[str, Any]:
    """Damage a copy of an input, and read it."""
    from damage.damages import damage
    from damage.readings import READINGS, by_verb

    chance = random.Random(f"{seed} {number}")
    kind = chance.choice(KINDS)
    with _case_folder() as folder:
        copy = folder / kind
        shutil.copytree(originals / kind, copy)
        what = damage(copy, chance)
        verb = ""
        signal.setitimer(signal.ITIMER_REAL, SECONDS)
        fault = ""
        try:
            with _as_nobody(folder) if what.startswith("unreadable") else contextlib.nullcontext():
                parts = READINGS[kind](copy)
                wrong = {
                    name: (expected[kind].get(name), found)
                    for name, found in parts.items()
                    if expected[kind].get(name) != found
                }
                if wrong and not what.startswith(("resealed", "unsealed")):
                    fault = f"wrong data: {wrong!r:.300}"
                if number % 3 == 0:
                    verb = by_verb(kind, copy, originals, folder / "new", chance)
        except TooLong:
            fault = f"longer than {SECONDS} s"
        except Exception as error:
            last = traceback.extract_tb(error.__traceback__)[-1]
            fault = f"{type(error).__name__}: {str(error)[:300]} ({last.filename}:{last.lineno})"
        finally:
            signal.setitimer(signal.ITIMER_REAL, 0)
    return {"kind": kind, "damage": what, "verb": verb, "fault": fault}


@contextlib.contextmanager
def _case_folder() -> Iterator[Path]:
    folder = Path(tempfile.mkdtemp(prefix="weft-damaged-"))
    folder.chmod(0o777)
    try:
        yield folder
    finally:
        for path in (folder, *folder.rglob("*")):
            if path.is_dir() and not path.is_symlink():
                path.chmod(0o700)
        shutil.rmtree(folder)


@contextlib.contextmanager
def _as_nobody(folder: Path) -> Iterator[None]:
    """As a user who may read what everybody may; root may read everything."""
    if os.geteuid() != 0:
        yield
        return
    os.setegid(NOBODY)
    os.seteuid(NOBODY)
    try:
        yield
    finally:
        os.seteuid(0)
        os.setegid(0)


def results(originals: Path, seed: int, stripe: range) -> Iterator[dict[str, Any]]:
    """What each case of a stripe came to; a worker that dies or does not answer is replaced."""
    here = Path(__file__).resolve()
    environment = {**os.environ, "OMP_NUM_THREADS": "1", "PYTHONPATH": str(here.parent)}
    numbers = stripe
    while numbers:
        command = [sys.executable, str(here), "--work", str(originals), "--seed", str(seed),
                   "--range", f"{numbers.start},{numbers.stop},{numbers.step}"]  # fmt: skip
        current = -1
        with subprocess.Popen(
            command, stdout=subprocess.PIPE, text=True, env=environment
        ) as worker:
            assert worker.stdout is not None
            while True:
                # A case has its own alarm; this is for one that never comes back to Python.
                timer = threading.Timer(SECONDS * (6 if current >= 0 else 40), worker.kill)
                timer.start()
                line = worker.stdout.readline()
                timer.cancel()
                if not line:
                    break
                said = json.loads(line)
                if "begins" in said:
                    current = said["begins"]
                else:
                    yield said
        if worker.returncode == 0:
            return
        if current < 0:
            raise SystemExit(f"a worker ended with {worker.returncode} before its first case")
        yield {"case": current, "kind": "", "damage": "", "verb": "",
               "fault": f"the process ended with {worker.returncode}"}  # fmt: skip
        numbers = range(current + numbers.step, numbers.stop, numbers.step)


def all_results(originals: Path, seed: int, stripes: list[range]) -> Iterator[dict[str, Any]]:
    """The results of all stripes as they come, each stripe by a worker of its own."""
    came: queue.Queue[dict[str, Any] | None] = queue.Queue()

    def follow(stripe: range) -> None:
        try:
            for result in results(originals, seed, stripe):
                came.put(result)
        finally:
            came.put(None)

    for stripe in stripes:
        threading.Thread(target=follow, args=(stripe,), daemon=True).start()
    ended = 0
    while ended < len(stripes):
        result = came.get()
        if result is None:
            ended += 1
        else:
            yield result


def main() -> None:
    """Go through the cases, by processes that read."""
    parser = argparse.ArgumentParser(description=__doc__.splitlines()[0])
    parser.add_argument("--cases", type=int, default=10_000)
    parser.add_argument("--seed", type=int, default=0)
    parser.add_argument("--workers", type=int, default=2)
    parser.add_argument("--only", type=int, help="the number of one case")
    parser.add_argument("--work", type=Path, help=argparse.SUPPRESS)
    parser.add_argument("--range", help=argparse.SUPPRESS)
    options = parser.parse_args()
    if options.work is not None:
        work(options.work, options.seed, range(*map(int, options.range.split(","))))
        return
    count, workers = options.cases, options.workers
    stripes = [range(first, count, workers) for first in range(workers)]
    if options.only is not None:
        stripes = [range(options.only, options.only + 1)]
    faults, done = 0, collections.Counter[str]()
    with tempfile.TemporaryDirectory(prefix="weft-originals-") as folder:
        Path(folder).chmod(0o755)
        prepare(Path(folder) / "whole")
        for result in all_results(Path(folder) / "whole", options.seed, stripes):
            done[result["kind"]] += 1
            if result["fault"]:
                faults += 1
                print("FAULT", json.dumps(result), flush=True)
            elif options.only is not None:
                print(json.dumps(result))
            if done.total() % 500 == 0:
                print(f"{done.total():,} cases, {faults} faults", flush=True)
    kinds = ", ".join(f"{number:,} of {kind}" for kind, number in sorted(done.items()) if kind)
    reader = "as root and as another user" if os.geteuid() == 0 else "as one user"
    expected = sum(map(len, stripes))
    if done.total() != expected:
        print(f"only {done.total():,} of {expected:,} cases were tried")
        faults += 1
    print(f"{done.total():,} damaged inputs ({kinds}), read {reader}: {faults} faults.")
    raise SystemExit(1 if faults else 0)


if __name__ == "__main__":
    main()
