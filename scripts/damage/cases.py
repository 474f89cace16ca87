"""One case: a copy of a whole input is damaged in the way its number says, and read."""

from __future__ import annotations

import contextlib
import os
import random
import shutil
import signal
import sys
import tempfile
import traceback
from collections.abc import Iterator
from dataclasses import dataclass
from pathlib import Path
from types import FrameType
from typing import NoReturn

from damage.damages import damage
from damage.readings import READINGS, Reading
from damage.verbs import Said, by_process, by_verb, comparable, verbs_of
from headloom.errors import HeadloomError
from headloom.training.config import load_config

__all__ = ["KINDS", "Cases", "Result", "TooLong", "alarm", "as_nobody", "case_folder"]

#: How often each kind of input is taken.
KINDS = ("trace", "trace", "trace", "terms", "terms", "run", "run", "run", "model", "config")
#: One case in so many is read by a verb too, one by the command as a process.
BY_VERB, BY_PROCESS = 4, 500
NOBODY = 65534


@dataclass(frozen=True)
class Result:
    """What a case came to.

    outcome: "refused", "equal", "rewritten" (other data, and nothing on disk can tell), or "wrong".
    """

    number: int
    kind: str
    way: str
    outcome: str
    said: str


class TooLong(BaseException):
    """A case that does not end."""


@dataclass(frozen=True)
class Cases:
    """What the cases of a seed need, made once.

    whole: the folder of the originals; expected: what each holds; outputs: what each verb says of
    them; seconds: how long a case may take.
    """

    whole: Path
    seed: int
    expected: dict[str, Reading]
    outputs: dict[tuple[str, int], Said]
    seconds: float

    @classmethod
    def of(cls, whole: Path, seed: int, seconds: float) -> Cases:
        """Read the whole inputs in every way; imports all that is imported when it is used."""
        expected = {kind: READINGS[kind](whole / kind) for kind in READINGS}
        outputs = {}
        with case_folder() as folder:
            for kind in set(READINGS) - {"config"}:
                copy = folder / kind
                shutil.copytree(whole / kind, copy)
                for number, words in enumerate(verbs_of(kind, copy, whole, folder / f"new-{kind}")):
                    said = by_verb(words, _names(folder, whole))
                    if said.code:
                        raise SystemExit(f"a whole input is refused: {said.words}: {said.error}")
                    outputs[kind, number] = said
                    _remove(folder.glob("new-*"))
        return cls(whole, seed, expected, outputs, seconds)

    def examine(self, number: int, kinds: tuple[str, ...] = KINDS) -> Result:
        """Damage a copy of an input, and read it."""
        chance = random.Random(f"{self.seed} {number}")
        kind = chance.choice(kinds)
        with case_folder() as folder:
            copy = folder / kind
            shutil.copytree(self.whole / kind, copy)
            what = damage(copy, chance)
            reader = as_nobody() if what.way == "unreadable" else contextlib.nullcontext()
            try:
                # A process of its own imports everything first.
                longer = 1 if number % BY_PROCESS else 10
                with alarm(self.seconds * longer), reader:
                    outcome, said = self._read(number, kind, copy, what.sealed, chance)
            except (TooLong, Exception) as error:
                steps = traceback.extract_tb(error.__traceback__)
                ours = [step for step in steps if "/headloom/" in step.filename] or steps
                where = ", ".join(f"{x.filename}:{x.lineno}" for x in (ours[-1], steps[-1]))
                outcome, said = "wrong", f"{type(error).__name__}: {error!s:.300} ({where})"
        return Result(number, kind, what.way, outcome, f"{what}; {said}".rstrip("; "))

    def _read(
        self, number: int, kind: str, copy: Path, sealed: bool, chance: random.Random
    ) -> tuple[str, str]:
        """The outcome, and what there is to say of it."""
        reading = READINGS[kind](copy)
        differs = reading.differs(self.expected[kind], sealed)
        if differs and sealed:
            return "wrong", f"wrong data: {', '.join(differs)}"
        outcome = "refused" if reading.refused else "rewritten" if differs else "equal"
        said = next(iter(reading.refused.values()), "")
        if number % BY_VERB and number % BY_PROCESS:
            return outcome, said
        words = verbs_of(kind, copy, self.whole, copy.parent / "new")
        place = chance.randrange(len(words))
        if kind == "config" and _loads(copy / "config.toml"):
            return outcome, said  # it would be trained, for how long nobody knows
        # Another user may not be allowed to start this Python.
        starts = os.access(sys.executable, os.X_OK, effective_ids=True)
        run = by_process if starts and number % BY_PROCESS == 0 else by_verb
        answer = run(words[place], _names(copy.parent, self.whole))
        whole = self.outputs.get((kind, place))
        if (
            sealed and answer.code == 0 and whole is not None and comparable(whole)
            and answer.output != whole.output
        ):  # fmt: skip
            return "wrong", f"{answer.words} says other things: {answer.output[:300]!r}"
        return outcome, f"{said} ({answer.words})"


def _loads(config: Path) -> bool:
    try:
        load_config(config)
    except HeadloomError:
        return False
    return True


def _names(folder: Path, whole: Path) -> dict[Path, str]:
    return {folder: "FOLDER", whole: "WHOLE"}


def _too_long(number: int, frame: FrameType | None) -> NoReturn:
    raise TooLong("it does not end")


@contextlib.contextmanager
def alarm(seconds: float) -> Iterator[None]:
    """End what takes longer."""
    before = signal.signal(signal.SIGALRM, _too_long)
    signal.setitimer(signal.ITIMER_REAL, seconds)
    try:
        yield
    finally:
        signal.setitimer(signal.ITIMER_REAL, 0)
        signal.signal(signal.SIGALRM, before)


@contextlib.contextmanager
def case_folder() -> Iterator[Path]:
    """A folder for a case, which anybody may write to."""
    folder = Path(tempfile.mkdtemp(prefix="headloom-damaged-"))
    folder.chmod(0o777)
    try:
        yield folder
    finally:
        for path in (folder, *folder.rglob("*")):
            if path.is_dir() and not path.is_symlink():
                path.chmod(0o700)
        shutil.rmtree(folder)


def _remove(paths: Iterator[Path]) -> None:
    for path in paths:
        if path.is_dir():
            shutil.rmtree(path)
        else:
            path.unlink()


@contextlib.contextmanager
def as_nobody() -> Iterator[None]:
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
