"""The command `headloom` itself: its verbs, their panels, and words that are no verb."""

from __future__ import annotations

import re
from pathlib import Path
from typing import Any

import pytest
import typer.main
from tests.cli.conftest import Command

import headloom.cli.commands
import headloom.cli.verbs

VERBS: dict[str, Any] = typer.main.get_command(headloom.cli.commands.app).commands


def test_every_file_of_the_folder_is_a_verb_of_120_lines() -> None:
    files = list(Path(headloom.cli.verbs.__path__[0]).glob("*.py"))
    assert {path.stem.removesuffix("_") for path in files if path.stem[0] != "_"} == set(VERBS)
    assert all(len(path.read_text("utf-8").splitlines()) <= 120 for path in files)


def test_help_lists_the_verbs_in_four_panels(headloom_main: Command) -> None:
    text = headloom_main("--help").out
    places = [text.index(f"\n{panel}:\n") for panel in headloom.cli.commands.PANELS]
    assert places == sorted(places)
    listed = re.findall(r"^  ([a-z]+) ", text[places[0] :], re.MULTILINE)
    assert listed[:3] == ["demo", "train", "evaluate"]
    assert sorted(listed) == sorted(VERBS)


def test_no_help_repeats_the_name_of_its_verb() -> None:
    for name, verb in VERBS.items():
        assert verb.help, name
        assert not verb.help.lower().startswith(name + ":"), verb.help
        assert verb.help.endswith("."), verb.help


@pytest.mark.parametrize(
    ("word", "line"),
    [
        ("trac", "headloom: trac: no such command. Did you mean trace? See headloom --help.\n"),
        ("qqqqq", "headloom: qqqqq: no such command. See headloom --help.\n"),
        ("weight", "headloom: weight: no such command. See headloom --help.\n"),
    ],
)
def test_a_word_that_is_no_verb(headloom_main: Command, word: str, line: str) -> None:
    result = headloom_main(word)
    assert (result.code, result.out, result.err) == (2, "", line)


@pytest.mark.parametrize("verb", ["heads", "measures", "rollout", "flow", "export", "compare"])
def test_a_missing_trace_is_told_before_torch_is_loaded(
    headloom_process: Command, tmp_path: Path, verb: str
) -> None:
    words = [tmp_path / "nowhere"] * (2 if verb == "compare" else 1)
    result = headloom_process(verb, *words, PYTHONPROFILEIMPORTTIME="1")
    assert result.code == 2
    what = "trace or run" if verb in ("heads", "export") else "trace"
    assert f"headloom: {tmp_path}/nowhere: no such {what}. Check the path." in result.err
    assert " torch\n" not in result.err


def test_a_missing_model_is_told_before_torch_is_loaded(
    headloom_process: Command, tmp_path: Path
) -> None:
    for words in (("projections",), ("relevance", "--text", "a"), ("ablate", "--text", "a")):
        result = headloom_process(
            words[0], tmp_path / "nowhere", *words[1:], PYTHONPROFILEIMPORTTIME="1"
        )
        assert result.code == 2
        assert "no such run or model" in result.err
        assert " torch\n" not in result.err, words


def test_lengths_have_an_end(headloom_main: Command) -> None:
    for words in (("generate", "r", "--prompt", "a", "--length"), ("trace", "r", "-o", "t",
                  "--text", "a", "--generate")):  # fmt: skip
        line = headloom_main(*words, 10**9).one_line()
        assert "'--length'" in line or "'--generate'" in line
        assert "less than or equal to 100000" in line
