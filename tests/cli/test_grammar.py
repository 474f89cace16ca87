"""One grammar for all verbs (docs/decisions/0031-grammar.md): names, help, tables, progress."""

from __future__ import annotations

import csv
import io
import json
import re
import sys
from collections import defaultdict
from enum import Enum
from pathlib import Path
from types import SimpleNamespace
from typing import Any, get_args, get_type_hints
from unittest.mock import MagicMock

import numpy as np
import pytest
import torch
import typer.main
from hypothesis import HealthCheck, given, settings
from hypothesis import strategies as st
from tests.cli.conftest import Command
from tests.cli.test_demo import small_demo

import headloom
import headloom.cli.commands
from headloom.api import demo
from headloom.cli.output import progress_bar, say
from headloom.cli.safe_text import safe_output
from headloom.cli.tables import _Column, _width, fitted

VERBS: dict[str, Any] = typer.main.get_command(headloom.cli.commands.app).commands

#: Options whose help differs from verb to verb, and the meaning that all of these have.
ONE_MEANING = {
    "--by": "what a row of the table is",
    "--file": "the file with the text to read, instead of --text or standard input",
    "--head": "the number of a head",
    "--heads": "heads, by their names",
    "--html": "the page to write",
    "--image": "a picture, as a file",
    "--json": "JSON on standard output",
    "--kind": "the kind of attention: encoder, decoder or cross",
    "--layer": "the number of a layer",
    "--limit": "how many rows are printed at most",
    "--logit": "the token or the label whose logit is meant",
    "--output": "the file or folder that the verb is asked to make",
    "--picture": "the picture to draw",
    "--target": "the text on the side of the decoder",
    "--text": "the text that the model reads",
    "--token": "a token, by its position",
}
#: Where one of them takes a text rather than a number or a file: more can be said by it.
WIDER = {"--layer": {"clusters", "export", "heads", "map"}, "--token": {"map"}}
#: Verbs whose answer is one table.
TABLES = {
    "ablate", "clusters", "evict", "flow", "heads", "measures", "projections", "query", "relevance",
    "rollout", "runs",
}  # fmt: skip
#: Verbs that show pages to a person, and have no answer that a program could take.
PAGES = {"steps", "view"}


def _options(verb: str) -> dict[str, Any]:
    """The options of a verb by their longest names."""
    return {
        max(param.opts, key=len): param
        for param in VERBS[verb].params
        if param.param_type_name == "option"
    }


def _kind(verb: str, option: Any) -> str:
    """What an option takes: nothing, a choice, a number, a path or a text."""
    function = VERBS[verb].callback.__wrapped__
    kind = get_type_hints(function)[option.name]
    while parts := [part for part in get_args(kind) if part is not type(None)]:
        kind = parts[0]
    if issubclass(kind, Enum):
        return f"one of {[member.value for member in kind]}"
    return str(kind.__name__)


def test_no_name_has_two_meanings() -> None:
    said: dict[str, dict[str, list[str]]] = defaultdict(lambda: defaultdict(list))
    kinds: dict[str, dict[str, list[str]]] = defaultdict(lambda: defaultdict(list))
    for verb in VERBS:
        for name, option in _options(verb).items():
            said[name][option.help].append(verb)
            if verb not in WIDER.get(name, ()):
                kinds[name][_kind(verb, option)].append(verb)
    for name, helps in said.items():
        assert len(kinds[name]) == 1, (name, dict(kinds[name]))
        assert len(helps) == 1 or name in ONE_MEANING, (name, dict(helps))
    alike = [name for name in ONE_MEANING if len(said[name]) < 2]
    assert not alike, f"these need no line in ONE_MEANING: {alike}"


def test_answers_are_asked_for_alike() -> None:
    for verb in VERBS:
        options = _options(verb)
        assert ("--csv" in options) == (verb in TABLES), verb
        assert ("--json" in options) == (verb not in PAGES), verb
        assert "-o" not in options
        if "--output" in options:
            assert "-o" in options["--output"].opts, verb


def test_csv_and_json_at_once(headloom_main: Command) -> None:
    line = headloom_main("runs", "nowhere", "--csv", "--json").one_line()
    assert line == "headloom: --csv and --json: a command prints one of them. Leave one out."


#: What verbs with --json are asked in the test: T and U are traces, R is a folder of runs, O a file
#: or folder to be.
ASKED = {
    "ablate": ("R/language", "--text", "two me"),
    "align": ("R/translation", "--source-file", "T/../en", "--target-file", "T/../de", "-o", "O"),
    "classify": ("R/language",),
    "clusters": ("T",),
    "compare": ("T", "U"),
    "demo": ("--run", "O"),
    "doctor": (),
    "evaluate": ("R/dates", "--beam", "1"),
    "evict": ("T", "--prompt-tokens", "4", "--budget", "2"),
    "export": ("T", "--html", "O.html"),
    "flow": ("T",),
    "generate": ("R/language", "--prompt", "a", "--length", "3"),
    "heads": ("T",),
    "import": ("T/../layer_0_weights.npy", "-o", "O"),
    "map": ("T", "--layer", "0", "--token", "0", "-o", "O.png"),
    "measures": ("T",),
    "projections": ("R/language",),
    "query": ("T", "from layers"),
    "relevance": ("R/language", "--text", "two hog"),
    "rollout": ("T",),
    "runs": ("R",),
    "trace": ("R/dates", "--text", "de: 3.4.2024", "-o", "O"),
    "train": ("R/../dates.toml", "--run", "O"),
    "translate": ("R/dates", "--file", "T/../en"),
}
#: What the test takes instead of a model of images and a classifier.
PRETENDED: dict[str, Any] = {
    "headloom.api.word_map.draw_word_map": SimpleNamespace(line="the word", content={"mass": 1.0}),
    "headloom.training.inference.open_classifier": MagicMock(),
    "headloom.training.tasks.labels.classify": [None],
}


@pytest.mark.parametrize("verb", [verb for verb in VERBS if verb not in PAGES])
def test_json_is_alone_on_standard_output(
    headloom_main: Command, wide_trace: Path, runs: Path, monkeypatch: pytest.MonkeyPatch,
    tmp_path: Path, verb: str,
) -> None:  # fmt: skip
    """One object, and nothing else: no table, and nothing that others print in the process."""
    (wide_trace.parent / "en").write_text("the cat\n")
    (wide_trace.parent / "de").write_text("das cat\n")
    np.save(wide_trace.parent / "layer_0_weights.npy", np.full((1, 2, 2), 0.5))
    monkeypatch.setattr(demo, "demo_config", small_demo)
    for name, result in PRETENDED.items():
        monkeypatch.setattr(name, lambda *given, result=result, **named: print("also") or result)
    monkeypatch.setattr(sys, "stdin", io.TextIOWrapper(io.BytesIO(b"a line\n")))
    places = {"T": wide_trace, "U": wide_trace.with_name("u.loom"), "R": runs, "O": tmp_path / "o"}
    words = [re.sub(r"^[TURO]\b", lambda found: str(places[found[0]]), w) for w in ASKED[verb]]
    result = headloom_main(verb, *words, "--json")
    assert result.code == 0, result.err
    assert isinstance(json.loads(result.out), dict)
    assert result.out.count("\n") == 1


@pytest.mark.parametrize("verb", [None, *VERBS])
@pytest.mark.parametrize("columns", [80, 60])
def test_help_fits(
    headloom_main: Command, monkeypatch: pytest.MonkeyPatch, verb: str | None, columns: int
) -> None:
    monkeypatch.setenv("COLUMNS", str(columns))
    lines = headloom_main(*([verb] if verb else []), "--help").out.splitlines()
    assert lines[0].startswith("Usage: headloom")
    # What is no text, as --dtype float32|bfloat16|float16, is not broken.
    assert all(len(line) <= columns or " " not in line.strip() for line in lines[1:])
    if verb:
        text = " ".join(lines)
        for name, option in _options(verb).items():
            assert f"{name} " in text
            assert option.help.split()[-1] in text
        assert max(map(len, lines)) <= 80


# Tables.

_WORDS = st.text("abcdefghij", max_size=40)
_NUMBERS = st.floats(allow_nan=False).map(lambda number: f"{number:.6g}")


@settings(deadline=None, suppress_health_check=[HealthCheck.too_slow])
@given(st.data(), st.integers(30, 120), st.integers(1, 12), st.integers(0, 4))
def test_a_table_fits_and_no_number_is_cut(
    data: st.DataObject, width: int, count: int, rows: int
) -> None:
    columns = []
    for number in range(count):
        words = data.draw(st.booleans())
        cells = data.draw(st.lists(_WORDS if words else _NUMBERS, min_size=rows, max_size=rows))
        columns.append(_Column(f"c{number}", cells, words))
    parts = fitted(columns, width)
    shown = {column.name: column for part in parts for column in part}
    assert list(shown) == [column.name for column in columns]
    for column in columns:
        if not column.words:
            assert shown[column.name].cells == column.cells
        for before, after in zip(column.cells, shown[column.name].cells, strict=True):
            assert after == before or (
                after.count("…") == 1
                and before.startswith(after.split("…")[0])
                and before.endswith(after.split("…")[1])
            )
    widest = max(column.width for column in columns)
    for part in parts:
        lines = ["  ".join(cells) for cells in zip(*(c.lines() for c in part), strict=True)]
        assert len({_width(line) for line in lines}) == 1
        # The first column comes again in each part; a number of 12 digits has room beside it.
        assert _width(lines[0]) <= max(width, part[0].width + 2 + widest if len(part) > 1 else 0)
        assert part[0].name == "c0"


@pytest.fixture(scope="module")
def wide_trace(tmp_path_factory: pytest.TempPathFactory) -> Path:
    generator = torch.Generator().manual_seed(1)
    path = tmp_path_factory.mktemp("wide") / "t.loom"
    for place in (path, path.with_name("u.loom")):
        queries, keys = torch.randn(2, 2, 3, 8, 4, generator=generator)
        headloom.from_queries_keys(
            queries, keys, tokens=[f"token{number}" for number in range(8)], mask=headloom.causal(),
            kind="decoder", save=place,
        )  # fmt: skip
    return path


def _on_terminal(monkeypatch: pytest.MonkeyPatch, columns: int) -> None:
    """Standard output and standard error are a terminal of so many columns."""
    monkeypatch.setenv("COLUMNS", str(columns))
    monkeypatch.setenv("TERM", "xterm")
    monkeypatch.setattr(sys.stdout, "isatty", lambda: True)
    monkeypatch.setattr(sys.stderr, "isatty", lambda: True)


def _plain(text: str) -> str:
    return re.sub("\x1b\\[[0-9;]*m", "", text)


@pytest.mark.parametrize(
    "words",
    [
        ("measures", "T", "--by", "head"), ("heads", "T", "--role", "broad"),
        ("heads", "T", "--all"), ("compare", "T", "U"),
        ("query", "T", "from named order by all"), ("rollout", "T"), ("flow", "T"),
        ("evict", "T", "--prompt-tokens", "4", "--budget", "2"),
        ("evict", "T", "--prompt-tokens", "4", "--budget", "2", "--by", "head"),
    ],
)  # fmt: skip
def test_tables_on_a_terminal(
    headloom_main: Command,
    wide_trace: Path,
    monkeypatch: pytest.MonkeyPatch,
    words: tuple[str, ...],
) -> None:
    places = {"T": wide_trace, "U": wide_trace.with_name("u.loom")}
    line = [places.get(word, word) for word in words]
    whole = headloom_main(*line)
    assert whole.code == 0, whole.err
    _on_terminal(monkeypatch, 80)
    narrow = _plain(headloom_main(*line).out)
    rows = [row for row in narrow.splitlines() if "No room for" not in row]
    # Sentences may be long, and are broken by the terminal; rows of a table are not.
    table = [row for row in rows if "  " in row.strip()]
    assert table
    assert all(len(row) <= 80 for row in table), max(table, key=len)
    if "--role" in words:
        return  # it leaves columns out, and says so
    numbers = {word for word in whole.out.split() if word[0].isdigit() and "." in word}
    assert numbers <= set(narrow.split()) | set(narrow.replace("…", " ").split())


def test_wider_tables_go_on_below(
    headloom_main: Command, wide_trace: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    _on_terminal(monkeypatch, 80)
    parts = _plain(headloom_main("measures", wide_trace, "--by", "head").out).rstrip().split("\n\n")
    assert len(parts) > 1
    heads = [part.splitlines()[0].split()[:2] for part in parts]
    assert heads == [["layer", "head"]] * len(parts)
    assert {len(part.splitlines()) for part in parts} == {7}


@pytest.mark.parametrize(
    ("words", "shown"),
    [
        (("measures", "T"), "measuring"), (("heads", "T"), "measuring heads"),
        (("rollout", "T"), "rolling out"), (("flow", "T"), "computing flows"),
        (("compare", "T", "U"), "comparing"), (("query", "T", "select 1"), "asking"),
        (("evict", "T", "--prompt-tokens", "4"), "layers"),
        (("export", "T", "--html", "P"), "writing"), (("steps",), "computing"),
    ],
)  # fmt: skip
def test_what_takes_time_says_so_on_a_terminal(
    headloom_main: Command, wide_trace: Path, monkeypatch: pytest.MonkeyPatch, tmp_path: Path,
    words: tuple[str, ...], shown: str,
) -> None:  # fmt: skip
    places = {"T": wide_trace, "U": wide_trace.with_name("u.loom"), "P": tmp_path / "page.html"}
    line = [places.get(word, word) for word in words]
    assert shown not in headloom_main(*line).err
    _on_terminal(monkeypatch, 80)
    result = headloom_main(*line)
    assert result.code == 0
    assert shown in result.err


# Rows that are asked for.


def _rows(text: str) -> list[dict[str, str]]:
    return list(csv.DictReader(io.StringIO(text)))


def test_rows_of_a_table(headloom_main: Command, wide_trace: Path) -> None:
    for verb in ("flow", "rollout"):
        whole = _rows(headloom_main(verb, wide_trace, "--csv").out)
        assert sorted(int(row["position"]) for row in whole) == list(range(8))
        assert whole[0]["token"] == f"token{whole[0]['position']}"
        assert _rows(headloom_main(verb, wide_trace, "--csv", "--limit", 3).out) == whole[:3]
        assert (
            len(headloom_main(verb, wide_trace, "--limit", 0).out.splitlines())
            == len(headloom_main(verb, wide_trace).out.splitlines()) - 8
        )
    question = "select layer, head, query from rows"
    assert len(_rows(headloom_main("query", wide_trace, question, "--csv").out)) == 48
    assert len(_rows(headloom_main("query", wide_trace, question, "--csv", "--limit", 5).out)) == 5
    assert headloom_main("query", wide_trace, question, "--limit", 5).out.endswith("43 more rows\n")


def test_a_bar_commands_the_terminal_and_lines_go_above_it(
    capsys: pytest.CaptureFixture[str], monkeypatch: pytest.MonkeyPatch
) -> None:
    _on_terminal(monkeypatch, 80)
    with safe_output(), progress_bar("parts") as show:
        show(1, 2)
        say("a line \x1b[2J")
    written = capsys.readouterr()
    assert "\\u001b[" not in written.err
    assert "\x1b[2J" not in written.out + written.err
    assert "a line" in written.out + written.err
    assert "\x1b[2K" in written.err  # the bar is taken away
