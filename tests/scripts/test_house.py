"""scripts/house.py."""

from __future__ import annotations

import subprocess
import sys
from pathlib import Path

ROOT = Path(__file__).parents[2]


def test_the_walks_of_contributing_are_those_of_the_code() -> None:
    drawn = subprocess.run(
        [sys.executable, "scripts/house.py", "--walks"],
        cwd=ROOT,
        capture_output=True,
        text=True,
        check=True,
    ).stdout
    assert drawn.count("the kernel") == 2
    remedy = "print them by scripts/house.py --walks"
    assert drawn in (ROOT / "CONTRIBUTING.md").read_text("utf-8"), remedy
