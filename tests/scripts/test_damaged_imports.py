"""A fixed part of the cases of scripts/damaged_imports.py; all of them run by hand."""

from __future__ import annotations

import re
import subprocess
import sys
from pathlib import Path

import pytest

SCRIPT = Path(__file__).parents[2] / "scripts" / "damaged_imports.py"


def test_damaged_dumps_are_refused_in_one_line_or_say_what_is_there() -> None:
    result = subprocess.run(
        [sys.executable, str(SCRIPT), "--cases", "120", "--seed", "2026"],
        capture_output=True, text=True, check=False,
    )  # fmt: skip
    output = result.stderr + result.stdout
    assert result.returncode == 0, output
    counted = re.match(
        r"120 cases: (\d+) refused in one line, (\d+) read equal, (\d+) read as rewritten, 0 wrong",
        result.stdout.splitlines()[-1],
    )
    assert counted is not None, output
    refused, equal, rewritten = map(int, counted.groups())
    assert refused + equal + rewritten == 120
    assert refused > 60
    assert equal + rewritten > 5


@pytest.mark.slow
def test_faults_planted_in_weft_are_seen() -> None:
    result = subprocess.run(
        [sys.executable, str(SCRIPT), "--self-check"], capture_output=True, text=True, check=False
    )
    output = result.stderr + result.stdout
    assert result.returncode == 0, output
    assert re.search(r"(\d+) faults planted: \1 seen, 0 not seen", output), output
