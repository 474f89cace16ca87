"""`scripts/setup-tests` with an apt-get that only notes what it is asked."""

from __future__ import annotations

import shutil
import subprocess
from pathlib import Path

import pytest

ROOT = Path(__file__).parents[2]
#: Programs by name; each says what it is called with. No package is missing from .venv.
PROGRAMS = {
    "apt-get": 'echo "apt-get $*" >>"$HERE/asked"',
    "apt-cache": "echo chromium-headless-shell:",
    "id": "echo 0",
}


@pytest.fixture
def folder(tmp_path: Path) -> Path:
    """A copy of the project with those programs, and nothing else, on the path."""
    (tmp_path / "scripts").mkdir()
    shutil.copy(ROOT / "scripts" / "setup-tests", tmp_path / "scripts")
    programs = {tmp_path / "bin" / name: text for name, text in PROGRAMS.items()}
    programs[tmp_path / ".venv" / "bin" / "python"] = "exit 0"
    for path, text in programs.items():
        path.parent.mkdir(parents=True, exist_ok=True)
        path.write_text(f"#!/bin/bash\n{text}\n")
        path.chmod(0o755)
    (tmp_path / "bin" / "dirname").symlink_to(str(shutil.which("dirname")))
    return tmp_path


def run(folder: Path) -> tuple[str, list[str]]:
    """What the script says, and what apt-get was asked."""
    environment = {"PATH": str(folder / "bin"), "HERE": str(folder)}
    bash = str(shutil.which("bash"))
    done = subprocess.run(
        [bash, "scripts/setup-tests"], cwd=folder, env=environment, capture_output=True, text=True
    )
    assert done.returncode == 0, done.stderr
    asked = folder / "asked"
    return done.stderr, asked.read_text().splitlines() if asked.exists() else []


def test_chromium_is_installed_where_there_is_none(folder: Path) -> None:
    said, asked = run(folder)
    assert said == "setup-tests: installing Chromium by apt-get, for the tests of the studio\n"
    assert asked[0] == "apt-get update -qq"
    assert "install" in asked[1] and "chromium-headless-shell" in asked[1]


def test_chromium_that_is_there_is_left(folder: Path) -> None:
    browser = folder / "bin" / "chromium-browser"
    browser.write_text("#!/bin/bash\n")
    browser.chmod(0o755)
    assert run(folder) == ("", [])
