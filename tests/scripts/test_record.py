"""benchmarks/evidence/record.py."""

from __future__ import annotations

import importlib.util
import re
import sys
from pathlib import Path
from types import ModuleType

import pytest

from headloom.errors import InputError

PLACE = Path(__file__).parents[2] / "benchmarks" / "evidence" / "record.py"


@pytest.fixture
def module(monkeypatch: pytest.MonkeyPatch) -> ModuleType:
    spec = importlib.util.spec_from_file_location("evidence_record", PLACE)
    assert spec is not None and spec.loader is not None
    made = importlib.util.module_from_spec(spec)
    monkeypatch.setitem(sys.modules, "evidence_record", made)
    spec.loader.exec_module(made)
    return made


def claim_of(module: ModuleType, name: str, ours: str = "1") -> object:
    return module.Claim(name, "word " * 60, "a paper", "2", ours, "python x.py", "| a | b |")


def test_sections_stand_in_order_and_one_of_the_same_name_is_replaced(
    module: ModuleType, tmp_path: Path
) -> None:
    path = tmp_path / "evidence.md"
    for name, ours in (("Zeta", "first"), ("alpha", "kept"), ("Zeta", "second")):
        module.record(claim_of(module, name, ours), path)
    text = path.read_text("utf-8")
    assert re.findall("^#+ .*", text, re.MULTILINE) == ["# Evidence", "## alpha", "## Zeta"]
    assert "first" not in text and "**Ours:** kept" in text and "**Ours:** second" in text
    assert max(map(len, text.splitlines())) <= 100
    assert "\n\n\n" not in text and text.count("| a | b |") == 2


def test_time_and_memory_are_those_of_the_program(module: ModuleType, tmp_path: Path) -> None:
    text = module.section_of(claim_of(module, "Claim"))
    measured = re.search(r"memory:\*\* (?:\d+ h )?(?:\d+ min )?(?:[\d.]+ s)?, ([\d,]+) MB;", text)
    assert measured is not None and int(measured[1].replace(",", "")) > 50


def test_spread_is_that_of_a_sample(module: ModuleType) -> None:
    # By hand: mean 5, squares 9 + 1 + 1 + 9 = 20, 20 / 3 = 6.67, root 2.58.
    assert module.mean_and_spread([2.0, 4.0, 6.0, 8.0], digits=2) == "5.00 ± 2.58 (4 seeds)"
    with pytest.raises(InputError, match="have no spread; give 2 or more"):
        module.mean_and_spread([2.0])


@pytest.mark.parametrize("name", ["", " ", "two\nlines"])
def test_a_name_is_one_line(module: ModuleType, name: str) -> None:
    with pytest.raises(InputError, match="expected one line of text"):
        module.section_of(claim_of(module, name))
