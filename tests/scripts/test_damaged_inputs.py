"""A fixed part of the cases of scripts/damaged_inputs.py; all of them run by hand."""

from __future__ import annotations

import re
from pathlib import Path

import pytest
from tests.forked import Loaded, script

SCRIPT = Path(__file__).parents[2] / "scripts" / "damaged_inputs.py"


def _run(loaded: Loaded, *options: object) -> tuple[int, str]:
    with loaded.start(*options, program=script(SCRIPT)) as process:
        out, errors = process.communicate()
        return process.wait(), (errors + out).decode()


@pytest.mark.parametrize("cases", [30, pytest.param(240, marks=pytest.mark.slow)])
def test_damaged_inputs_are_refused_in_one_line_or_read_as_they_were(
    loaded: Loaded, cases: int
) -> None:
    code, output = _run(loaded, "--cases", cases, "--seed", 2026)
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
def test_faults_planted_in_weft_are_seen(loaded: Loaded) -> None:
    code, output = _run(loaded, "--self-check")
    assert code == 0, output
    assert re.search(r"(\d+) faults planted: \1 seen, 0 not seen", output), output
