"""scripts/house.py."""

from __future__ import annotations

from pathlib import Path

from tests.forked import Loaded, script

ROOT = Path(__file__).parents[2]


def test_the_walks_of_contributing_are_those_of_the_code(loaded: Loaded) -> None:
    program = script(ROOT / "scripts" / "house.py")
    with loaded.start("--walks", program=program, folder=ROOT) as process:
        out, errors = process.communicate()
        assert process.wait() == 0, errors
    drawn = out.decode()
    assert " ".join(drawn.split()).count("the kernel") == 3
    remedy = "print them by scripts/house.py --walks"
    assert drawn in (ROOT / "CONTRIBUTING.md").read_text("utf-8"), remedy
