"""kill -9 at random moments of headloom's commands: the same command again ends with the same
bytes.

    python scripts/kill_nine.py [--seed 1] [--times 1] [--only WORDS] [--keep FOLDER]

Each command runs once undisturbed. Then, in a fresh copy of what was there before, it is killed by
SIGKILL: at a random time, at one of its writes, renames and syncs, or while Python starts. No
process of it may live on. The same command is given again; its files must equal those of the
undisturbed run byte for byte, and no temporary file may be left. What may differ is named in
docs/formats.md: `seconds`, in a run's metrics and in the notes of its checkpoint.

A command is a fork of this process, which has imported headloom, so that a start costs no import;
those killed while Python starts are ``python -m headloom``.
"""

from __future__ import annotations

import argparse
import os
import random
import secrets
import shutil
import signal
import subprocess
import sys
import tempfile
import time
from collections.abc import Iterator
from contextlib import ExitStack
from dataclasses import dataclass, field
from pathlib import Path

from killing.contents import contents
from killing.processes import MARK, exit_of, forked, is_worker, living, wait_until

#: After a kill every other process of the command must have ended in so many starts of Python with
#: headloom: a worker that is still importing headloom learns of the kill when it has.
PATIENCE = 4

MODEL = """
[task]
kind = "language"
file = "text.txt"
block = 8

[model]
width = 16
heads = 2
feed_forward = 16
decoder_layers = 2
dropout = 0.2

[training]
max_steps = 24
batch_tokens = 128
warmup = 2
average = 0.9
accumulate = 2
validate_every = 3
checkpoint_every = 2
"""
TEXT = "the cat sat on the mat, the dog lay by the log; "
#: Of a corpus; each takes a moment, so that a kill finds work in progress.
TEXTS = 60

#: What is killed, and when. "worker": one process of a corpus, not the command; "part": the
#: command, as soon as a trace is being written.
COMMANDS: dict[str, tuple[str, str]] = {
    "train": (
        "train config.toml --run new --threads 1",
        "start write write write write write time time",
    ),
    "trace --corpus, one process": (
        "trace run --corpus texts.txt -o traces --threads 1",
        "write write write time",
    ),
    "trace --corpus, two workers": (
        "trace run --corpus texts.txt -o traces --threads 1 --workers 2",
        "start time part part worker worker",
    ),
    "trace --window": (
        "trace run --file text.txt --window 16 -o windows --threads 1",
        "start write write write time",
    ),
    "trace --overwrite": (
        "trace run --file new.txt -o old.loom --overwrite --threads 1",
        "start write write write write time",
    ),
    "export --html": ("export old.loom --html page.html", "write write time"),
    "export --picture": ("export old.loom --picture heads.png", "start write write time"),
    "export --parquet": ("export old.loom --parquet edges.parquet", "write write time"),
}


@dataclass
class Outcome:
    """What came of the kills."""

    kills: int = 0
    equal: int = 0
    left: int = 0
    faults: list[str] = field(default_factory=list)
    longest: float = 0.0


@dataclass(frozen=True)
class Whole:
    """An undisturbed run of a command: its files, its seconds, and how often it wrote."""

    files: dict[str, bytes]
    seconds: float
    writes: int


class Killer:
    """Runs commands in copies of one folder, and kills them."""

    def __init__(self, start: Path, folder: Path, seed: int) -> None:
        self.start, self.folder, self.random = start, folder, random.Random(seed)
        self.outcome, self.number = Outcome(), 0
        self.importing = seconds_to_import()

    def fresh(self) -> tuple[Path, Path]:
        """A copy of the folder as it was before, and the place for the command's output."""
        self.number += 1
        # Every copy has the same name, so that nothing that is written can hold another.
        work = self.folder / str(self.number) / "work"
        shutil.copytree(self.start, work)
        return work, work.parent / "log.txt"

    def to_its_end(self, words: list[str], work: Path, log: Path) -> int:
        child = forked(words, work, log)
        return os.waitstatus_to_exitcode(os.waitpid(child, 0)[1])

    def whole(self, words: list[str]) -> Whole:
        """An undisturbed run. Raises: RuntimeError: the command fails."""
        work, log = self.fresh()
        begin = time.monotonic()
        if self.to_its_end(words, work, log):
            raise RuntimeError(f"headloom {' '.join(words)} fails undisturbed: {log.read_text()}")
        seconds = time.monotonic() - begin
        return Whole(contents(work), seconds, int(log.with_suffix(".writes").read_text()))

    def kill(self, name: str, words: list[str], whole: Whole, moment: str) -> bool:
        """Kill the command once, give it again, and compare; False: it had ended before."""
        work, log = self.fresh()
        status, when = self._killed(words, work, log, whole, moment)
        what = f"{name}, killed {when} ({log.parent})"
        killed = status == -signal.SIGKILL or moment == "worker"
        self.outcome.kills += killed
        if not killed and status:
            self.outcome.faults.append(f"{what}: ended with {status}: {log.read_text()}")
        begin = time.monotonic()
        gone = wait_until(lambda: not living(), PATIENCE * self.importing)
        self.outcome.longest = max(self.outcome.longest, time.monotonic() - begin)
        if not gone:
            left = living()
            self.outcome.left += len(left)
            self.outcome.faults.append(f"{what}: {len(left)} processes live on")
            for process in left:
                os.kill(process, signal.SIGKILL)
        parts = sum(".headloom-part-" in path.name for path in work.rglob("*"))
        code = self.to_its_end(words, work, log)
        now = contents(work)
        different = sorted(
            path for path in whole.files.keys() | now.keys()
            if whole.files.get(path) != now.get(path)
        )  # fmt: skip
        if code or different:
            reason = log.read_text().strip() if code else ", ".join(different)
            self.outcome.faults.append(f"{what}: exit code {code}; {reason}")
            return killed
        self.outcome.equal += killed
        then = f"{parts} temporary names then" if killed else "it had ended before"
        print(f"{what}: {then}; finished equal", flush=True)
        shutil.rmtree(work.parent)
        return killed

    def _killed(
        self, words: list[str], work: Path, log: Path, whole: Whole, moment: str
    ) -> tuple[int, str]:
        """The exit status of a command that is killed, and when that was."""
        if moment == "write":
            number = self.random.randint(1, whole.writes)
            child = forked(words, work, log, number)
            when = f"at write {number} of {whole.writes}"
            return os.waitstatus_to_exitcode(os.waitpid(child, 0)[1]), when
        share = self.random.random()
        if moment == "start":
            # Anew: the machine may have become quicker since.
            self.importing = seconds_to_import()
            return self._killed_at_start(words, work, log, share * self.importing)
        child = forked(words, work, log)
        if moment == "time":
            seconds = 0.9 * share * whole.seconds
            wait_until(lambda: exit_of(child) is not None, seconds)
            when = f"after {seconds:.2f} of {whole.seconds:.2f} s"
        else:
            count = self.random.randint(1, TEXTS // 2)
            wait_until(
                lambda: (
                    exit_of(child) is not None
                    or (
                        len(list(work.glob("traces/*.loom"))) >= count
                        and any(work.glob("traces/.*.headloom-part-*"))
                    )
                ),
                600,
            )
            when = f"while a trace was written, after {count}"
        if moment == "worker":
            workers = [process for process in living() if process != child and is_worker(process)]
            os.kill(self.random.choice(workers), signal.SIGKILL)
            when = f"(one of {len(workers)} workers) {when}"
        else:
            os.kill(child, signal.SIGKILL)
        status = os.waitstatus_to_exitcode(os.waitpid(child, 0)[1])
        if moment == "worker":
            said = log.read_text()
            if status != 2 or "a worker was killed" not in said or said.count("\n") != 1:
                self.outcome.faults.append(
                    f"a worker was killed, and headloom said {status}: {said}"
                )
        return status, when

    def _killed_at_start(
        self, words: list[str], work: Path, log: Path, seconds: float
    ) -> tuple[int, str]:
        command = [sys.executable, "-m", "headloom", *words]
        with log.open("wb") as output:
            process = subprocess.Popen(command, cwd=work, stdout=output, stderr=output)
            wait_until(lambda: process.poll() is not None, seconds)
            process.kill()
            return process.wait(), f"{seconds:.2f} s after Python began"


def seconds_to_import() -> float:
    """Seconds in which Python starts and imports what most commands need of headloom."""
    begin = time.monotonic()
    subprocess.run([sys.executable, "-c", "import headloom.api.corpus"], check=True)
    return time.monotonic() - begin


def prepared(folder: Path) -> Path:
    """A folder with a text, a configuration, a small run and a trace."""
    start = folder / "start"
    start.mkdir()
    (start / "text.txt").write_text(TEXT * 8)
    (start / "new.txt").write_text("the dog sat on the log")
    lines = [TEXT[number % 40 :][: 5 + number % 9] for number in range(TEXTS)]
    (start / "texts.txt").write_text("\n".join(lines) + "\n")
    (start / "config.toml").write_text(MODEL)
    killer = Killer(start, folder, 0)
    for command in (
        "train config.toml --run run --threads 1 --set training.max_steps=4",
        "trace run --file text.txt -o old.loom --threads 1",
    ):
        log = folder / "log.txt"
        if killer.to_its_end(command.split(), start, log):
            raise RuntimeError(f"headloom {command}: {log.read_text()}")
    return start


def import_all() -> None:
    """What the commands import, once, before they are forked from here."""
    import matplotlib.figure  # noqa: F401
    import pyarrow.parquet  # noqa: F401

    import headloom.api.corpus
    import headloom.api.windows
    import headloom.formats.exchange
    import headloom.studio.page
    import headloom.studio.pictures
    import headloom.training.loop
    import headloom.training.progress  # noqa: F401


def moments(times: int) -> Iterator[tuple[str, list[str], str]]:
    """Each command and each moment at which it is killed, command by command."""
    for name, (command, plan) in COMMANDS.items():
        for moment in plan.split() * times:
            yield name, command.split(), moment


def main() -> int:
    """Kill, compare and report; 1 where there is a fault."""
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=_AsWritten)
    parser.add_argument("--seed", type=int, default=1, help="of the random moments")
    parser.add_argument("--times", type=int, default=1, help="how often each plan is gone through")
    parser.add_argument("--only", default="", help="the commands in whose names these words are")
    parser.add_argument("--keep", type=Path, help="a new folder for the files; they stay there")
    wanted = parser.parse_args()
    if MARK not in os.environ:
        # The system shows the environment that a process began with, not what it set later.
        marked = {**os.environ, MARK: secrets.token_hex(8), "OMP_NUM_THREADS": "1"}
        os.execve(sys.executable, [sys.executable, *sys.argv], marked)
    import_all()
    with ExitStack() as stack:
        if wanted.keep is None:
            folder = Path(stack.enter_context(tempfile.TemporaryDirectory()))
        else:
            folder = wanted.keep.resolve()
            folder.mkdir(parents=True)
        killer = Killer(prepared(folder), folder, wanted.seed)
        wholes: dict[str, Whole] = {}
        for name, words, moment in moments(wanted.times):
            if wanted.only not in name:
                continue
            if name not in wholes:
                wholes[name] = killer.whole(words)
            # A random time may be later than its end.
            attempts = (killer.kill(name, words, wholes[name], moment) for _ in range(10))
            if not any(attempts):
                killer.outcome.faults.append(f"{name}: ended before each of ten kills ({moment})")
    done = killer.outcome
    for fault in done.faults:
        print(f"fault: {fault}")
    print(f"The longest wait for processes after a kill: {done.longest:.2f} s")
    print(
        f"{done.kills} kills: {done.equal} finished equal, {done.left} processes left, "
        f"{done.kills - done.equal} different"
    )
    return bool(done.faults)


class _AsWritten(argparse.RawDescriptionHelpFormatter):
    """The help with the lines as they are written above."""


if __name__ == "__main__":
    sys.exit(main())
