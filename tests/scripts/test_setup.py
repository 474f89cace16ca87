"""`scripts/setup` with a Python that only notes what it is asked: how it ends when it fails."""

from __future__ import annotations

import os
import re
import shutil
import signal
import subprocess
import sys
import time
from collections.abc import Callable, Iterator
from pathlib import Path

import pytest

ROOT = Path(__file__).parents[2]
SIGNALS = ("SIGINT", "SIGTERM", "SIGHUP")
#: Building begins and does not end; torch is fetched until somebody ends it, or cannot be found.
PYTHON = """#!/usr/bin/env bash
case "$*" in
    *"--editable ."*) sleep 300 & echo $! >"$HERE/compiler"; echo $$ >"$HERE/build"; wait ;;
    *"import torch"*) exit 1 ;;
    *"torch=="*)
        until [ -s "$HERE/build" ]; do sleep 0.05; done
        [ -n "$WAITS" ] && { touch "$HERE/fetching"; sleep 300; }
        echo "ERROR: No matching distribution found for torch" >&2
        exit 1 ;;
esac
"""


def taken_as_at_a_terminal() -> None:
    """Of a process that is about to begin: the signals end it."""
    for name in SIGNALS:
        signal.signal(signal.Signals[name], signal.SIG_DFL)


@pytest.fixture
def setup(tmp_path: Path) -> Iterator[Callable[[str], subprocess.Popen[str]]]:
    """Begins `scripts/setup --no-tools` in a folder of its own; waits: whether torch takes long."""
    (tmp_path / "native").mkdir()
    (tmp_path / ".venv" / "bin").mkdir(parents=True)
    (tmp_path / "scripts").mkdir()
    for name in ("pyproject.toml", "CMakeLists.txt", "scripts/setup"):
        shutil.copy(ROOT / name, tmp_path / name)
    python = tmp_path / ".venv" / "bin" / "python"
    python.write_text(PYTHON)
    python.chmod(0o755)

    begun: list[subprocess.Popen[str]] = []

    def begin(waits: str) -> subprocess.Popen[str]:
        process = subprocess.Popen(
            ["bash", "scripts/setup", "--no-tools"], cwd=tmp_path, text=True,
            stdin=subprocess.DEVNULL, stdout=subprocess.PIPE, stderr=subprocess.PIPE,
            start_new_session=True, env={**os.environ, "HERE": str(tmp_path), "WAITS": waits},
            # As at a terminal: where tests run in the background, some signals are ignored, which
            # bash passes on and lets no trap change.
            preexec_fn=taken_as_at_a_terminal,
        )  # fmt: skip
        begun.append(process)
        return process

    yield begin
    for process in begun:
        if process.poll() is None:
            os.killpg(process.pid, signal.SIGKILL)
            process.communicate()


def assert_ended(folder: Path) -> None:
    """What was building ends, and what it had begun."""
    for name in ("build", "compiler"):
        process = Path("/proc") / (folder / name).read_text().strip()
        for _ in range(100):
            if not process.exists() or "\nState:\tZ" in (process / "status").read_text():
                break
            time.sleep(0.05)
        else:
            raise AssertionError(f"{name} goes on")
    assert not list((folder / ".venv").glob(".weft-setup*"))


def test_what_pip_says_is_shown_and_the_build_ends(
    setup: Callable[[str], subprocess.Popen[str]], tmp_path: Path
) -> None:
    process = setup("")
    out, err = process.communicate(timeout=60)
    assert process.returncode == 1
    assert out == ""
    assert err.splitlines()[-1] == "ERROR: No matching distribution found for torch"
    assert all(line.startswith("setup: ") for line in err.splitlines()[:-1])
    assert_ended(tmp_path)


@pytest.mark.parametrize("name", SIGNALS)
def test_the_build_ends_when_somebody_ends_it(
    setup: Callable[[str], subprocess.Popen[str]], tmp_path: Path, name: str
) -> None:
    process = setup("yes")
    while not (tmp_path / "fetching").exists():
        assert process.poll() is None
        time.sleep(0.05)
    os.killpg(process.pid, signal.Signals[name])  # as a terminal does
    process.communicate(timeout=60)
    assert process.returncode != 0
    assert_ended(tmp_path)


@pytest.mark.parametrize(
    ("python", "cmake", "new"),
    [
        ((3, 11), "cmake version 3.18.4", True),
        ((3, 11), "cmake version 3.17.0", False),
        ((3, 12), "cmake version 3.26.0-rc1", True),
        ((3, 13), "cmake version 3.25.1", False),
        ((3, 13), "cmake version 4.0.2", True),
        ((3, 13), "no version", False),
        ((3, 13), None, False),
    ],
)
def test_whether_cmake_is_new_enough_for_a_python(
    tmp_path: Path, python: tuple[int, int], cmake: str | None, new: bool
) -> None:
    programs = {
        ".venv/bin/python": f"""exec {sys.executable} -c '
import sys
sys.version_info = {python}
exec(sys.argv[1])' "$2"
"""
    }
    if cmake is not None:
        programs["cmake"] = f"echo '{cmake}'\n"
    (tmp_path / ".venv" / "bin").mkdir(parents=True)
    for name, content in programs.items():
        (tmp_path / name).write_text("#!/bin/bash\n" + content)
        (tmp_path / name).chmod(0o755)
    script = (ROOT / "scripts" / "setup").read_text()
    asked = re.search(r"^cmake_is_new\(\) \{\n.*?^\}\n", script, re.DOTALL | re.MULTILINE)
    assert asked is not None
    command = ["/bin/bash", "-c", f"set -euo pipefail\n{asked[0]}cmake_is_new"]
    done = subprocess.run(command, cwd=tmp_path, env={"PATH": str(tmp_path)}, capture_output=True)
    assert (done.returncode == 0, done.stderr) == (new, b"")
