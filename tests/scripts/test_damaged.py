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


@pytest.mark.slow
def test_what_is_damaged_is_refused_in_one_line_or_read_as_it_is(loaded: Loaded) -> None:
    code, output = _run(loaded, "--cases", 240, "--seed", 2026)
    assert code == 0, output
    last = output.splitlines()[-1]
    counted = re.match(r"240 cases: (\d+) refused .* (\d+) read equal, (\d+) .*, 0 wrong", last)
    assert counted is not None, output
    refused, equal, rewritten = map(int, counted.groups())
    assert refused + equal + rewritten == 240
    assert refused > 120
    assert equal > 8
