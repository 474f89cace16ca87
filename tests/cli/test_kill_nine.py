"""kill -9 at one of a command's writes: the same command again ends with the same bytes."""

from __future__ import annotations

import json
import random
import shutil
import signal
from pathlib import Path

import pytest
from tests.forked import Loaded

CONFIG = """
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
COMMANDS = (
    "train config.toml --run new --threads 1",
    "trace run --corpus texts.txt -o traces",
    "trace run --file text.txt --window 16 -o windows",
    "trace run --file new.txt -o old.loom --overwrite",
    "export old.loom --html page.html",
    "export old.loom --parquet edges.parquet",
)
#: Runs the command in sys.argv[2:]; it is killed before the write of this number, 0: never, and
#: says then how many there were.
PROGRAM = """
import os, signal, sys
from pathlib import Path
import headloom.cli
kill_at, count = int(sys.argv.pop(1)), 0

def hook(event, arguments):
    global count
    writes = event in ("os.rename", "os.remove", "os.mkdir")
    if event == "open":
        writes = bool((arguments[2] or 0) & (os.O_WRONLY | os.O_RDWR))
    if writes and str(arguments[0]).startswith(os.getcwd()):
        count += 1
        if count == kill_at:
            os.kill(os.getpid(), signal.SIGKILL)

sys.addaudithook(hook)
try:
    headloom.cli.main(sys.argv[1:])
finally:
    if not kill_at:
        print("writes", count, file=sys.stderr)
"""


def contents(folder: Path) -> dict[str, object]:
    """Every file below a folder, but for the seconds that the clock says."""
    files: dict[str, object] = {}
    for path in sorted(path for path in folder.rglob("*") if path.is_file()):
        content: object = path.read_bytes()
        if path.name == "metrics.jsonl":
            content = [{**json.loads(line), "seconds": 0} for line in path.read_text().splitlines()]
        elif path.name == "checkpoint.safetensors":
            data = path.read_bytes()
            end = 8 + int.from_bytes(data[:8], "little")
            notes = json.loads(json.loads(data[8:end])["__metadata__"]["notes"])
            del notes["position"]["seconds"]
            content = notes, data[end:]
        elif path.name == "places.json":  # names this folder
            content = json.loads(path.read_bytes())[1]
        files[str(path.relative_to(folder))] = content
    return files


@pytest.fixture(scope="module")
def start(loaded: Loaded, tmp_path_factory: pytest.TempPathFactory) -> Path:
    """A folder with a text, a configuration, a small run and a trace."""
    folder = tmp_path_factory.mktemp("start")
    (folder / "text.txt").write_text(TEXT * 8)
    (folder / "new.txt").write_text("the dog sat on the log")
    lines = [TEXT[number % 40 :][: 5 + number % 9] for number in range(12)]
    (folder / "texts.txt").write_text("\n".join(lines) + "\n")
    (folder / "config.toml").write_text(CONFIG)
    for command in (
        "train config.toml --run run --threads 1 --set training.max_steps=4",
        "trace run --file text.txt -o old.loom",
    ):
        with loaded.start(*command.split(), folder=folder) as process:
            _, errors = process.communicate()
            assert process.wait() == 0, errors
    return folder


@pytest.mark.slow
@pytest.mark.timeout(900)
@pytest.mark.parametrize("command", COMMANDS)
def test_a_killed_command_given_again_ends_the_same(
    loaded: Loaded, start: Path, tmp_path: Path, command: str
) -> None:
    work = tmp_path / "work"  # of one name, so that no file holds another

    def run(kill_at: int) -> tuple[int, str]:
        with loaded.start(kill_at, *command.split(), program=PROGRAM, folder=work) as process:
            _, errors = process.communicate()
            return process.wait(), errors.decode()

    shutil.copytree(start, work)
    code, errors = run(0)
    assert code == 0, errors
    writes = int(errors.split()[-1])
    whole = contents(work)
    chance = random.Random(command)
    for _ in range(4):
        shutil.rmtree(work)
        shutil.copytree(start, work)
        assert run(chance.randint(1, writes))[0] == -signal.SIGKILL
        code, errors = run(0)
        assert code == 0, errors
        assert contents(work) == whole
