"""Work for processes of Ray without a model: a program, as tests run it, `FOLDER SCENARIO...`.

Prints a JSON object: of each scenario the results, or the error.
"""

from __future__ import annotations

import json
import os
import signal
import sys
from dataclasses import dataclass
from pathlib import Path

from headloom.api.engines import Do
from headloom.api.ray_engine import RayEngine
from headloom.errors import DataError


def here(task: tuple[str, str]) -> tuple[str, str | None]:
    raise AssertionError("Ray does the work, not this process")


@dataclass(frozen=True)
class Writing:
    """Appends a text to the file of its name. Some texts say what happens to its process."""

    folder: Path
    reads: tuple[Path, ...] = ()

    def start(self) -> Do:
        (self.folder / f"opened-{os.getpid()}").touch()
        return self.do

    def do(self, task: tuple[str, str]) -> tuple[str, str | None]:
        name, text = task
        first = not (self.folder / f"begun-{name}").exists()
        if text in ("kills always", "kills once"):
            (self.folder / f"begun-{name}").touch()
            if first or text == "kills always":
                os.kill(os.getpid(), signal.SIGKILL)
        if text == "fills the disk":
            raise DataError("no space left on device.")
        if text == "is bad":
            return name, "a bad text"
        with (self.folder / name).open("a") as file:
            file.write(f"{text} {os.environ['OMP_NUM_THREADS']}\n")
        return name, None


def scenario(name: str, folder: Path) -> object:
    folder.mkdir()
    work, tasks = Writing(folder), {f"{n:03d}": f"text {n}" for n in range(120)}
    if name == "killed":
        tasks |= {"017": "kills once", "050": "is bad"}
    elif name == "poisoned":
        tasks |= {"017": "kills once", "018": "kills once", "040": "kills always"}
    elif name == "full":
        tasks = {"000": "fills the disk"}
    elif name == "unseen":
        work = Writing(folder, (folder / "no such model",))
    try:
        return list(RayEngine("local", 2).results(folder, work, tasks, here))
    except DataError as error:
        return str(error)


if __name__ == "__main__":
    place = Path(sys.argv[1])
    print(json.dumps({name: scenario(name, place / name) for name in sys.argv[2:]}))
