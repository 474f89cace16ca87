"""Characters that a run's vocabulary lacks are named, once each, by whatever reads a text."""

from __future__ import annotations

import json
import re
from pathlib import Path

import pytest
from tests.cli.conftest import Command, traces_in

#: What the tiny runs have never seen, and how it is shown.
STRANGE, SHOWN = "ж\u202e€ж", r"3 characters that are not in the vocabulary .*: ж ‹202E› €$"


def _one_note(error: str, what: str) -> None:
    (line,) = [line for line in error.splitlines() if "vocabulary" in line]
    assert line.startswith(f"headloom: {what} has ")
    assert re.search(SHOWN, line), line


@pytest.mark.parametrize(
    ("words", "what"),
    [
        ("generate R --prompt cat@ --length 2", "the prompt"),
        ("trace R --text cat@ -o t.loom", "the text"),
        ("trace R --file text.txt --window 4 -o windows", "the text"),
        ("relevance R --text cat@", "the text"),
        ("ablate R --text cat@ --together", "the text"),
        ("ablate R --text cats --patch @ --together", "the text"),
    ],
)
def test_a_text(
    headloom_main: Command, runs: Path, tmp_path: Path, monkeypatch: pytest.MonkeyPatch,
    words: str, what: str,
) -> None:  # fmt: skip
    monkeypatch.chdir(tmp_path)
    (tmp_path / "text.txt").write_text(f"the {STRANGE} cat")
    line = words.replace("@", STRANGE).replace("R", str(runs / "language"), 1).split()
    result = headloom_main(*line)
    assert result.code == 0, result.err
    _one_note(result.err, what)
    assert "\u202e" not in result.err


def test_a_corpus(headloom_main: Command, runs: Path, tmp_path: Path) -> None:
    corpus, folder = tmp_path / "texts.txt", tmp_path / "out"
    corpus.write_text(f"the cat\n{STRANGE}\nthe €\n")
    command = ("trace", runs / "language", "--corpus", corpus, "-o", folder, "--json")
    result = headloom_main(*command)
    assert result.code == 0, result.err
    _one_note(result.err, "the corpus")
    assert traces_in(folder) == ["000001.loom", "000002.loom", "000003.loom"]
    # Nothing of it is read the second time.
    result = headloom_main(*command)
    assert json.loads(result.out)["there"] == 3
    assert "vocabulary" not in result.err


def test_standard_input(headloom_process: Command, runs: Path) -> None:
    result = headloom_process("translate", runs / "dates", stdin=f"de: 1 {STRANGE}\n".encode())
    assert result.code == 0, result.err
    _one_note(result.err, "standard input")


def test_known_characters_are_not_named(headloom_main: Command, runs: Path, tmp_path: Path) -> None:
    """Nor are any where the vocabulary has a piece for every byte, as that of a translation."""
    for run, text in (("language", "the cat"), ("translation", STRANGE)):
        result = headloom_main("trace", runs / run, "--text", text, "-o", tmp_path / f"{run}.loom")
        assert result.code == 0, result.err
        assert "vocabulary" not in result.err
