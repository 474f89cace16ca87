"""`scripts/setup` with a Python that only notes what it is asked: how it ends when it fails."""

from __future__ import annotations

import os
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
    *"import torch"* | *"--dry-run"*) exit 1 ;;
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
    assert not list((folder / ".venv").glob(".headloom-setup*"))


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


def test_the_build_ends_when_somebody_ends_it(
    setup: Callable[[str], subprocess.Popen[str]], tmp_path: Path
) -> None:
    process = setup("yes")
    while not (tmp_path / "fetching").exists():
        assert process.poll() is None
        time.sleep(0.05)
    os.killpg(process.pid, signal.SIGINT)  # as a terminal does
    process.communicate(timeout=60)
    assert process.returncode != 0
    assert_ended(tmp_path)


#: In place of pip: notes what it is asked, and says of torch what its index would say.
PIP = """import os, sys
with open("asked", "a") as asked:
    print(*sys.argv[1:], file=asked)
if "-r" in sys.argv:
    sys.stdin.read()
if "--dry-run" in sys.argv:
    print(os.environ.get("REPORT", ""))
"""
#: A Python that has a torch of version $HAS, and makes environments with that pip.
CHOSEN = f"""#!/usr/bin/env bash
export PYTHONPATH="$PWD/own/site-packages"
mkdir -p "$PYTHONPATH/torch" && echo "__version__ = '$HAS'" >"$PYTHONPATH/torch/__init__.py"
if [ "$*" != "-m venv .venv" ]; then exec {sys._base_executable} "$@"; fi
{sys._base_executable} -m venv --without-pip .venv
cp -r stub/pip .venv/lib/python3*/site-packages
"""


@pytest.fixture
def set_up(tmp_path: Path) -> Callable[..., tuple[int, str, list[str]]]:
    """Runs the whole script: how it ends, what it says, and what pip is asked of torch."""
    texts = {
        name: (ROOT / name).read_text()
        for name in ("pyproject.toml", "CMakeLists.txt", "scripts/setup", "src/headloom/version.py")
    }
    texts |= {
        "stub/pip/__init__.py": "",
        "stub/pip/__main__.py": PIP,
        "chosen": CHOSEN,
        "scripts/studio": "#!/bin/bash\n",
    }
    for name, text in texts.items():
        (tmp_path / name).parent.mkdir(parents=True, exist_ok=True)
        (tmp_path / name).write_text(text)
        (tmp_path / name).chmod(0o755)
    (tmp_path / "native").mkdir()

    def run(**environment: str) -> tuple[int, str, list[str]]:
        done = subprocess.run(
            ["bash", "scripts/setup", "--no-tools"], cwd=tmp_path, text=True, capture_output=True,
            env={**os.environ, "PYTHON": "./chosen", "HAS": "2.5.1", "PYTHONPATH": "src",
                 **environment},
        )  # fmt: skip
        asked = tmp_path / "asked"
        lines = asked.read_text().splitlines() if asked.exists() else []
        return done.returncode, done.stderr, [line for line in lines if " torch" in line]

    return run


def test_a_torch_with_cuda_is_announced(set_up: Callable[..., tuple[int, str, list[str]]]) -> None:
    """Its size and the way round it come before it is fetched; no index but pip's is named."""
    code, said, asked = set_up(REPORT='"requires_dist": [\n  "nvidia-cudnn-cu13==9"\n]')
    assert code == 0, said
    assert "2.7 GB to download" in said and 'make demo TORCH="torch --index-url' in said
    assert ["--dry-run" in line for line in asked] == [True, False]
    assert asked[1].endswith(" torch==2.13.0") and "index" not in "".join(asked)


def test_the_line_of_pytorchs_page(set_up: Callable[..., tuple[int, str, list[str]]]) -> None:
    line = "torch torchvision --index-url https://download.pytorch.org/whl/cpu"
    code, said, asked = set_up(TORCH="pip3 install " + line, HAS="2.9.1")
    assert code == 0, said
    (only,) = asked
    assert only.startswith("--disable") and only.endswith(f" --force-reinstall {line}")


def test_the_torch_of_the_chosen_python_is_taken(
    set_up: Callable[..., tuple[int, str, list[str]]], tmp_path: Path
) -> None:
    code, said, asked = set_up(HAS="2.9.1+cpu")
    assert (code, asked) == (0, []), said
    assert "setup: taking torch 2.9.1+cpu of ./chosen, whose packages .venv sees\n" in said
    python = tmp_path / ".venv" / "bin" / "python"
    seen = subprocess.run(
        [python, "-c", "import torch; print(torch.__version__)"], cwd=tmp_path, text=True,
        capture_output=True, env={"PATH": os.environ["PATH"]}, check=True,
    )  # fmt: skip
    assert seen.stdout == "2.9.1+cpu\n"
