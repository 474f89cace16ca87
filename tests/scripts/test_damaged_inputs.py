"""A fixed part of the cases of scripts/damaged_inputs.py; all of them run by hand."""

from __future__ import annotations

import re
import subprocess
import sys
from pathlib import Path

import pytest

SCRIPT = Path(__file__).parents[2] / "scripts" / "damaged_inputs.py"


def _run(*options: str) -> tuple[int, str]:
    result = subprocess.run(
        [sys.executable, str(SCRIPT), *options], capture_output=True, text=True, check=False
    )
    return result.returncode, result.stderr + result.stdout


@pytest.mark.parametrize("cases", [60, pytest.param(240, marks=pytest.mark.slow)])
def test_damaged_inputs_are_refused_in_one_line_or_read_as_they_were(cases: int) -> None:
    code, output = _run("--cases", str(cases), "--seed", "2026")
    assert code == 0, output
    last = output.splitlines()[-1]
    counted = re.match(
        rf"{cases} cases: (\d+) refused in one line, (\d+) read equal, (\d+) read as rewritten, "
        "0 wrong",
        last,
    )
    assert counted is not None, output
    refused, equal, rewritten = map(int, counted.groups())
    assert refused + equal + rewritten == cases
    assert refused > cases // 2
    assert equal > cases // 30


@pytest.mark.slow
def test_faults_planted_in_weft_are_seen() -> None:
    code, output = _run("--self-check")
    assert code == 0, output
    assert re.search(r"(\d+) faults planted: \1 seen, 0 not seen", output), output
