"""The programs of benchmarks/evidence: their words, their formulas, the figures they keep."""

from __future__ import annotations

import ast
import importlib.util
import math
import sys
from pathlib import Path
from types import ModuleType

import pytest
import torch

FOLDER = Path(__file__).parents[2] / "benchmarks" / "evidence"


@pytest.fixture
def program(monkeypatch: pytest.MonkeyPatch, request: pytest.FixtureRequest) -> ModuleType:
    monkeypatch.syspath_prepend(str(FOLDER))
    spec = importlib.util.spec_from_file_location(request.param, FOLDER / f"{request.param}.py")
    assert spec is not None and spec.loader is not None
    made = importlib.util.module_from_spec(spec)
    monkeypatch.setitem(sys.modules, request.param, made)
    spec.loader.exec_module(made)
    return made


def said_by(program: Path) -> list[str]:
    """The texts of its claims that no figure enters: name, claim, source, published, command."""
    calls = [
        node for node in ast.walk(ast.parse(program.read_text("utf-8")))
        if isinstance(node, ast.Call) and getattr(node.func, "id", "") == "Claim"
    ]  # fmt: skip
    return [
        keyword.value.value for call in calls for keyword in call.keywords
        if keyword.arg != "details" and isinstance(keyword.value, ast.Constant)
        and isinstance(keyword.value.value, str)
    ]  # fmt: skip


def test_the_page_has_the_words_of_its_programs() -> None:
    """A claim that is mended in one of them alone comes back with the next measurement."""
    page = (FOLDER.parents[1] / "docs" / "evidence.md").read_text("utf-8")
    words = " ".join(page.split())
    sections = page.count("\n## ")
    said = {program: said_by(program) for program in sorted(FOLDER.glob("*.py"))}
    missing = [(program.name, text) for program, texts in said.items() for text in texts
               if " ".join(text.split()) not in words]  # fmt: skip
    assert missing == []
    assert said
    commands = [line[2:] for line in page.splitlines() if line.startswith("$ python ")]
    assert len(commands) == sections
    assert all((FOLDER.parents[1] / line.split()[1]).is_file() for line in commands)


@pytest.mark.parametrize("program", ["smollm2_heads"], indirect=True)
def test_the_loss_of_the_second_time_is_that_of_its_tokens(program: ModuleType) -> None:
    """Logits that name each next token of the second half, and are even in the first one."""
    ids = torch.arange(program.PART).repeat(2)[None]
    logits = torch.zeros(1, 2 * program.PART, program.PART)
    for place in range(program.PART, 2 * program.PART - 1):
        logits[0, place, ids[0, place + 1]] = 50.0
    assert program.second_half(logits, ids) < 1e-6
    even = math.log(program.PART) * program.PART / (2 * program.PART - 1)
    assert program.all_but_first(logits, ids) == pytest.approx(even, rel=1e-5)


@pytest.mark.parametrize("program", ["runs"], indirect=True)
def test_figures_of_a_training_are_measured_once_for_each_setting(
    program: ModuleType, monkeypatch: pytest.MonkeyPatch, tmp_path: Path
) -> None:
    monkeypatch.setattr(program, "FIGURES", tmp_path / "figures")
    config = tmp_path / "small.toml"
    config.write_text("# a remark\n[task]\nkind = 'dates'\n")
    measured = []

    def asked(changes: list[str], *, again: bool = False) -> tuple[dict[str, float], float]:
        kept = program.Figures("small", again=again)
        found = kept.of("small-1", config, changes, lambda: measured.append(0) or {
            "seconds": 2.0, "bleu": len(measured) + 1 / 3,
        })  # fmt: skip
        return found, kept.seconds()

    first, seconds = asked(["task.folder=here", "training.seed=1"])
    assert (first["bleu"], seconds, len(measured)) == (1.3333, 2.0, 1)
    # Where the data lie, and what a remark says, change no figure.
    config.write_text("# another one\n[task]\nkind = 'dates'\n")
    assert asked(["task.folder=there", "training.seed=1"])[0] == first
    assert len(measured) == 1
    assert asked(["training.seed=2"])[0]["bleu"] == 2.3333
    assert asked(["training.seed=2"], again=True)[0]["bleu"] == 3.3333
    config.write_text("[task]\nkind = 'names'\n")
    assert asked(["training.seed=2"])[0]["bleu"] == 4.3333
