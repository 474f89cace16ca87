"""Trainings that are killed, find the disk full and their checkpoints damaged, for an hour.

    python scripts/soak.py [--minutes 60] [--seed 1] [--processes 1]

A small language model is trained once undisturbed. Then again and again in a fresh folder, at
random moments of which

    kill     a process of the training is killed by SIGKILL
    all      every process of it is
    disk     its disk is full (a file system of its own; needs the right to mount)

and between two starts of which

    cut      a checkpoint, or a process's share of it, ends too early
    flip     one byte of it is another one

Nothing is repaired but what was done: the file is put back, the disk has room again. Then the same
command is given again, until it says that it has ended. What must hold:

    - a start goes on from the last checkpoint that was on the disk, or from a later one: no step
      that was saved is lost;
    - a damaged checkpoint is refused in one line, and no file changes by that;
    - a full disk ends the training in one line;
    - at the end the weights, the history and the reports are those of the undisturbed training,
      byte for byte but for the seconds.

Prints a line for each training, and what was done and found at the end; exits with 1 when one of
these did not hold.
"""

from __future__ import annotations

import argparse
import json
import os
import random
import re
import secrets
import shutil
import signal
import subprocess
import sys
import tempfile
import time
from collections import Counter
from collections.abc import Iterator
from contextlib import contextmanager, suppress
from pathlib import Path

from killing.contents import contents
from killing.processes import MARK, exit_of, forked, living, wait_until

CONFIG = """
[task]
kind = "language"
file = "text.txt"
block = 16

[model]
width = 32
heads = 2
feed_forward = 64
decoder_layers = 2
dropout = 0.2

[training]
max_steps = {steps}
batch_tokens = 512
warmup = 20
average = 0.99
accumulate = 2
validate_every = 50
checkpoint_every = 10
parallel = "fsdp"
"""
#: Seconds in which a command must end after its disk is full, or it was killed.
PATIENCE = 120
DISK = 16  # megabytes


class FaultError(Exception):
    """Something that must hold did not."""


class Soak:
    """One training after the other, each disturbed."""

    def __init__(self, folder: Path, seed: int, processes: int, steps: int) -> None:
        self.folder, self.random = folder, random.Random(seed)
        self.done: Counter[str] = Counter()
        self.start = folder / "start"
        self.start.mkdir()
        letters = random.Random(0).choices("the cat sat on a mat, ", k=6000)
        (self.start / "text.txt").write_text("".join(letters))
        (self.start / "config.toml").write_text(CONFIG.format(steps=steps))
        self.words = ["train", "config.toml", "--run", "run", "--threads", "1"]
        if processes > 1:
            self.words += ["--processes", str(processes)]
        self.seconds = 60.0

    def whole(self) -> None:
        """An undisturbed training: its files and its seconds."""
        with self._disk() as work:
            begin = time.monotonic()
            if self._ends(self._start(work)):
                raise FaultError(f"undisturbed: {self._log()}")
            self.seconds = time.monotonic() - begin
            self.expected = timeless(work)

    def training(self) -> str:
        """One that is disturbed until it ends; says what was done to it."""
        told: list[str] = []
        with self._disk() as work:
            while self._once(work, told):
                pass
            found = timeless(work)
            wrong = {
                name for name in self.expected | found if found.get(name) != self.expected.get(name)
            }
            if wrong:
                raise FaultError(
                    f"after {', '.join(told)}: other bytes in {', '.join(sorted(wrong))}"
                )
        self.done["trainings"] += 1
        return ", ".join(told) or "nothing"

    def _once(self, work: Path, told: list[str]) -> bool:
        """Start the command, disturb it; whether it has to be started again."""
        saved = self._saved(work)
        child = self._start(work)
        # Later and later, so that a training ends at last.
        moment = self.random.uniform(0.02, 0.7 + 0.15 * len(told)) * self.seconds
        deed = self.random.choice(["kill", "kill", "all", "disk"])
        if not wait_until(lambda: exit_of(child) is not None, moment):
            told.append(deed)
            self.done[deed] += 1
            self._disturb(deed, child, work)
        status = self._ends(child)
        started = re.findall(r"as learned in\s+(\d+)\s+steps|drawn at\s+random", self._log())
        steps = [int(number or 0) for number in started]
        if steps and (steps[0] < saved or steps != sorted(steps)):
            raise FaultError(f"{saved} steps were saved, and it went on from {steps}")
        if status == 0:
            return False
        if deed == "disk":
            self._says("no space left")
            (work / "filler").unlink(missing_ok=True)
        if self.random.random() < 0.5 and self._saved(work):
            told.append(self._damage(work))
        return True

    def _disturb(self, deed: str, child: int, work: Path) -> None:
        if deed == "disk":
            fill(work / "filler")
            return
        processes = [child, *living()]
        for process in processes if deed == "all" else [self.random.choice(processes)]:
            with suppress(ProcessLookupError):
                os.kill(process, signal.SIGKILL)

    def _damage(self, work: Path) -> str:
        """Damage the checkpoint, see it refused, and put it back."""
        file = self.random.choice(self._checkpoint(work))
        before = file.read_bytes()
        place = self.random.randrange(len(before))
        other = bytes([before[place] ^ 1 << self.random.randrange(8)])
        deed = self.random.choice(["cut", "flip"])
        file.write_bytes(before[:place] + (other + before[place + 1 :]) * (deed == "flip"))
        files = bytes_of(work)
        what = f"{deed} at byte {place:,} of {len(before):,} of {file.name}"
        if self._ends(self._start(work)) == 0:
            raise FaultError(f"{what}: accepted")
        self._says(file.parent.name if file.name == "checkpoint.json" else file.name)
        if changed := [
            name for name, content in bytes_of(work).items() if files.get(name) != content
        ]:
            raise FaultError(f"{what}: changed {', '.join(changed)}")
        file.write_bytes(before)
        self.done[deed] += 1
        return deed

    def _checkpoint(self, work: Path) -> list[Path]:
        """The files of the last checkpoint."""
        shards = sorted((work / "run" / "shards").glob("step-*/checkpoint.json"))
        whole = work / "run" / "checkpoint.safetensors"
        return sorted(shards[-1].parent.iterdir()) if shards else [whole] * whole.exists()

    def _saved(self, work: Path) -> int:
        """The step of the last checkpoint on the disk, read without headloom; 0: there is none."""
        files = self._checkpoint(work)
        if not files:
            return 0
        if files[0].name == "checkpoint.json":
            return int(files[0].parent.name.removeprefix("step-"))
        content = files[0].read_bytes()
        header = json.loads(content[8 : 8 + int.from_bytes(content[:8], "little")])
        return int(json.loads(header["__metadata__"]["notes"])["position"]["step"])

    def _start(self, work: Path) -> int:
        return forked(self.words, work, self.folder / "log.txt")

    def _ends(self, child: int) -> int:
        """The status of a command that must end by itself, and all that it started with it."""
        if not wait_until(lambda: exit_of(child) is not None, PATIENCE + 20 * self.seconds):
            raise FaultError(f"it goes on and on: {living()}")
        status = os.waitstatus_to_exitcode(os.waitpid(child, 0)[1])
        if not wait_until(lambda: not living(), PATIENCE):
            raise FaultError(f"processes live on: {living()}")
        return status

    def _log(self) -> str:
        return (self.folder / "log.txt").read_text("utf-8", "replace")

    def _says(self, expected: str) -> None:
        """Check that a command ended in one line that says so."""
        log = self._log()
        if "Traceback" in log:
            raise FaultError(f"a traceback: {log}")
        if expected not in " ".join(log.split("headloom: ")[-1].split()):
            raise FaultError(f"{expected!r} is not named: {log[-400:]}")

    @contextmanager
    def _disk(self) -> Iterator[Path]:
        """A small file system with what the command reads."""
        work = self.folder / "work"
        work.mkdir()
        mount = ["mount", "-t", "tmpfs", "-o", f"size={DISK}m", "tmpfs", str(work)]
        subprocess.run(mount, check=True)
        try:
            shutil.copytree(self.start, work, dirs_exist_ok=True)
            yield work
        finally:
            subprocess.run(["umount", "--lazy", str(work)], check=True)
            work.rmdir()


def timeless(work: Path) -> dict[str, bytes]:
    """What must be equal at the end: every file as bytes, but for what the clock says."""
    files = contents(work)
    for name in [name for name in files if name.endswith("/checkpoint.json")]:
        notes = json.loads(files[name])
        del notes["notes"]["position"]["seconds"], notes["files"]
        files[name] = json.dumps(notes).encode()
    for name in [name for name in files if "/shard-" in name]:
        content = files[name]
        header = json.loads(content[8 : 8 + int.from_bytes(content[:8], "little")])
        header.pop("__metadata__", None)
        files[name] = (
            json.dumps(header).encode() + content[8 + int.from_bytes(content[:8], "little") :]
        )
    return files


def bytes_of(work: Path) -> dict[str, bytes]:
    """Every file below a folder."""
    return {str(path): path.read_bytes() for path in work.rglob("*") if path.is_file()}


def fill(path: Path) -> None:
    """Leave no room on a disk."""
    with suppress(OSError), path.open("wb", buffering=0) as file:
        while True:
            file.write(bytes(4096))


def main() -> None:
    """Disturb trainings for as long as was asked."""
    parser = argparse.ArgumentParser(description=__doc__.splitlines()[0])
    parser.add_argument("--minutes", type=float, default=60)
    parser.add_argument("--seed", type=int, default=1)
    parser.add_argument("--processes", type=int, default=1)
    parser.add_argument("--steps", type=int, default=400, help="of each training")
    options = parser.parse_args()
    os.environ[MARK] = secrets.token_hex(8)
    import headloom.cli  # noqa: F401  # once, so that a start costs no import

    end = time.monotonic() + 60 * options.minutes
    with tempfile.TemporaryDirectory(prefix="headloom-soak-") as folder:
        soak = Soak(Path(folder), options.seed, options.processes, options.steps)
        try:
            soak.whole()
            print(f"undisturbed: {soak.seconds:.0f} s", flush=True)
            while time.monotonic() < end:
                print(soak.training(), flush=True)
        except FaultError as fault:
            print(f"FAULT: {fault}")
            sys.exit(1)
        finally:
            print(", ".join(f"{count} {name}" for name, count in soak.done.items()))
            for process in living():
                os.kill(process, signal.SIGKILL)


if __name__ == "__main__":
    main()
