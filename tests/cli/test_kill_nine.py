"""scripts/kill_nine.py: every command is killed; and the faults that the script would see."""

from __future__ import annotations

import importlib
import os
import shutil
import subprocess
import sys
from pathlib import Path
from types import ModuleType

import pytest

SCRIPT = Path(__file__).parents[2] / "scripts" / "kill_nine.py"


@pytest.mark.slow
@pytest.mark.timeout(1800)
def test_every_command_is_killed() -> None:
    done = subprocess.run(
        [sys.executable, str(SCRIPT), "--seed", "2"], capture_output=True, text=True, check=False
    )
    assert done.returncode == 0, done.stdout + done.stderr
    last = done.stdout.splitlines()[-1]
    kills = int(last.split()[0])
    assert kills >= 30
    assert last == f"{kills} kills: {kills} finished equal, 0 processes left, 0 different"
    # Some of them came while files were there that a reader must not see.
    assert "1 temporary names then" in done.stdout


@pytest.fixture
def processes(monkeypatch: pytest.MonkeyPatch) -> ModuleType:
    monkeypatch.syspath_prepend(str(SCRIPT.parent))
    return importlib.import_module("killing.processes")


def test_a_process_that_lives_on_is_seen(
    processes: ModuleType, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setenv(processes.MARK, "of this test")
    assert processes.living() == []
    command = [sys.executable, "-c", "import subprocess; subprocess.run(['sleep', '60'])"]
    with subprocess.Popen(command, env={**os.environ}) as parent:
        assert processes.wait_until(lambda: len(processes.living()) == 2, 60)
        parent.kill()
        parent.wait()
        # While a process becomes another program, its environment is empty for a moment.
        assert processes.wait_until(lambda: len(processes.living()) == 1, 60)
        (orphan,) = processes.living()
        os.kill(orphan, 9)
        assert processes.wait_until(lambda: processes.living() == [], 60)


def test_only_the_clock_may_differ(
    runs: Path, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.syspath_prepend(str(SCRIPT.parent))
    contents = importlib.import_module("killing.contents").contents
    copy = tmp_path / "run"
    shutil.copytree(runs / "language", copy)
    before = contents(copy)
    metrics = copy / "metrics.jsonl"
    lines = metrics.read_text()
    metrics.write_text(lines.replace('"seconds": ', '"seconds": 1'))
    assert metrics.read_text() != lines
    assert contents(copy) == before
    metrics.write_text(lines.replace('"step": ', '"step": 1'))
    assert contents(copy) != before
    metrics.write_text(lines)
    checkpoint = copy / "checkpoint.safetensors"
    content = checkpoint.read_bytes()
    checkpoint.write_bytes(content[:-1] + bytes([content[-1] ^ 1]))
    assert contents(copy) != before
    checkpoint.write_bytes(content)
    (copy / ".left.headloom-part-x").touch()
    assert contents(copy) != before
