"""The programs of benchmarks/evidence: their words, their formulas, the figures they keep."""

from __future__ import annotations

import ast
from pathlib import Path

FOLDER = Path(__file__).parents[2] / "benchmarks" / "evidence"


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
