"""A fixed part of the cases of scripts/damaged_imports.py; all of them run by hand."""

from __future__ import annotations

import re
from pathlib import Path

import pytest
from tests.forked import Loaded, script

SCRIPT = Path(__file__).parents[2] / "scripts" / "damaged_imports.py"


def _run(loaded: Loaded, *options: object) -> tuple[int, str]:
    with loaded.start(*options, program=script(SCRIPT)) as process:
        out, errors = process.communicate()
        return process.wait(), (errors + out).decode()


@pytest.mark.parametrize("cases", [30, pytest.param(240, marks=pytest.mark.slow)])
def test_damaged_dumps_are_refused_in_one_line_or_say_what_is_there(
    loaded: Loaded, cases: int
) -> None:
    code, output = _run(loaded, "--cases", cases, "--seed", 2026)
    assert code == 0, output
    counted = re.match(
        rf"{cases} cases: (\d+) refused in one line, (\d+) read equal, (\d+) read as rewritten, "
        "0 wrong",
        output.splitlines()[-1],
    )
    assert counted is not None, output
    refused, equal, rewritten = map(int, counted.groups())
    assert refused + equal + rewritten == cases
    assert refused > cases // 2
    assert equal + rewritten > cases // 30


@pytest.mark.slow
def test_faults_planted_in_weft_are_seen(loaded: Loaded) -> None:
    code, output = _run(loaded, "--self-check")
    assert code == 0, output
    assert re.search(r"(\d+) faults planted: \1 seen, 0 not seen", output), output
