"""A fixed part of the cases of scripts/damaged_*.py, all slow; all of them run by hand."""

from __future__ import annotations

import re
from pathlib import Path

import pytest
from tests.forked import Loaded, script

SCRIPTS = Path(__file__).parents[2] / "scripts"
both = pytest.mark.parametrize("name", ["damaged_inputs", "damaged_imports"])


def _run(loaded: Loaded, name: str, *options: object) -> tuple[int, str]:
    with loaded.start(*options, program=script(SCRIPTS / f"{name}.py")) as process:
        out, errors = process.communicate()
        return process.wait(), (errors + out).decode()


@both
@pytest.mark.slow
def test_what_is_damaged_is_refused_in_one_line_or_read_as_it_is(loaded: Loaded, name: str) -> None:
    cases = 240
    code, output = _run(loaded, name, "--cases", cases, "--seed", 2026)
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
    # Arrays and tables of other programs have no digest: what is damaged there is another input.
    assert equal + (rewritten if name == "damaged_imports" else 0) > cases // 30


@both
@pytest.mark.slow
def test_faults_planted_in_headloom_are_seen(loaded: Loaded, name: str) -> None:
    code, output = _run(loaded, name, "--self-check")
    assert code == 0, output
    assert re.search(r"(\d+) faults planted: \1 seen, 0 not seen", output), output
