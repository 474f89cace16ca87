"""Every verb, every option, values that it cannot take: one line, exit code 2, no traceback."""

from __future__ import annotations

from collections.abc import Iterator
from enum import Enum
from pathlib import Path
from typing import Any, get_args

import pytest
import torch
import typer.main
from tests.cli.conftest import Command, Result

import headloom
import headloom.cli.commands
from headloom.api.trace import Trace
from headloom.formats.trace import LayerInMemory, TraceLayer

COMMANDS: Any = typer.main.get_command(headloom.cli.commands.app)
VERBS: dict[str, Any] = COMMANDS.commands
#: What a required argument gets, by its name: T is a trace, N nothing that is there.
ARGUMENTS = {"TRACE": "T", "TRACE...": "T", "SQL": "select+1"}
#: What a verb needs besides: F is a file that can be made.
OPTIONS = {
    "demo": "--run N/run", "generate": "--prompt a", "export": "--graphml F",
    "relevance": "--text a", "trace": "--text a -o N/t", "view": "--no-browser",
}  # fmt: skip


def _needed(verb: str) -> str:
    """The words without which a verb does not begin."""
    arguments = [p for p in VERBS[verb].params if p.param_type_name == "argument"]
    words = [ARGUMENTS.get(argument.metavar, "N") for argument in arguments]
    return " ".join([*words, OPTIONS.get(verb, "")])


#: What is no whole number, and no number, whatever its bounds.
NO_INTEGERS = ("x", "", "1.5", "1e3", "0x10", "--", "nan", "1,2", "\x1b[31m", "²", "9" * 5_000)
NO_FRACTIONS = ("x", "", "1,5", "0x10", "--", "\u202e1")
NO_CHOICES = ("x", "", "\x1b[31m")
#: Numbers that some options take; a command that takes one ends well.
HUGE = ("99999999999999999999", "-99999999999999999999", str(10**30), "2147483648")
STRANGE_FRACTIONS = ("nan", "inf", "-inf", "1e400", "-1e308")
STRANGE_TEXTS = ("", "\x1b[31m\u202e", "x" * 5_000, "\udcff")


@pytest.fixture(autouse=True)
def in_an_empty_folder(monkeypatch: pytest.MonkeyPatch, tmp_path: Path) -> None:
    monkeypatch.chdir(tmp_path)


@pytest.fixture(scope="module")
def small_trace(tmp_path_factory: pytest.TempPathFactory) -> Path:
    queries, keys, values = torch.randn(3, 2, 4, 2, generator=torch.Generator().manual_seed(1))
    _, graph = headloom.attend(queries, keys, values, keep=headloom.Top(2))
    tokens = list("abcd")
    layer = TraceLayer(
        "layer", "encoder", 0, (2, 4, 4), "tokens", "tokens", tokens, tokens, 2**-0.5,
        LayerInMemory(graph), mask="all",
    )  # fmt: skip
    path = tmp_path_factory.mktemp("options") / "t.loom"
    Trace({"tokens": tokens}, (layer,)).save(path)
    return path


def _options(verb: str) -> Iterator[tuple[str, type]]:
    """The options of a verb that take a value, and the type of it."""
    for option in VERBS[verb].params:
        if option.param_type_name == "option" and not option.is_flag:
            kind = option.type_descriptor.annotation
            while args := [part for part in get_args(kind) if part is not type(None)]:
                kind = args[0]  # of a list, or of what may be left out
            yield max(option.opts, key=len), kind


def _values(kind: type) -> tuple[tuple[str, ...], tuple[str, ...]]:
    """Values that no option of a kind takes, and such as some do."""
    if issubclass(kind, int):
        return NO_INTEGERS, HUGE
    if issubclass(kind, float):
        return NO_FRACTIONS, STRANGE_FRACTIONS
    if issubclass(kind, Enum):
        return NO_CHOICES, ()
    return (), STRANGE_TEXTS


def _call(headloom_main: Command, verb: str, trace: Path, *more: str) -> Result:
    places = {"T": str(trace), "N": "./no-such", "N/run": "./no-such/run", "N/t": "./no-such/t"}
    needed = [places.get(word, word.replace("+", " ")) for word in _needed(verb).split()]
    result: Result = headloom_main(verb, *needed, *more)
    return result


def _assert_ends_well(result: Result, what: object) -> None:
    assert result.code in (0, 2), (what, result)
    assert "Traceback" not in result.err, (what, result)
    if result.code == 2:
        assert result.err.count("\n") == 1, (what, result)
        assert result.err.startswith("headloom: "), (what, result)
        assert len(result.err) < 2_000, what
    assert not set("\x1b\x07\u202e") & set(result.out + result.err), (what, result)


def _assert_refused(result: Result, what: object) -> None:
    _assert_ends_well(result, what)
    assert result.code == 2, (what, result)


def test_every_verb_and_every_kind_of_option_is_tried() -> None:
    assert set(OPTIONS) <= set(VERBS)
    options = [kind for verb in VERBS for _, kind in _options(verb)]
    assert len(options) > 60
    # A new kind of option needs values here that it cannot take.
    assert all(issubclass(kind, int | float | str | Path | Enum) for kind in options), options


@pytest.mark.parametrize("verb", sorted(VERBS))
def test_values_that_no_option_takes(
    headloom_main: Command, verb: str, small_trace: Path, tmp_path: Path
) -> None:
    for name, kind in _options(verb):
        for value in _values(kind)[0]:
            result = _call(headloom_main, verb, small_trace, f"{name}={value}")
            _assert_refused(result, (verb, name, value))
            assert f"'{name}'" in result.err, (verb, name, value, result.err)
    assert list(tmp_path.iterdir()) == []


@pytest.mark.parametrize("verb", sorted(set(VERBS) - {"demo"}))  # which would train
def test_values_that_some_options_take(
    headloom_main: Command, verb: str, small_trace: Path, tmp_path: Path
) -> None:
    for name, kind in _options(verb):
        for value in _values(kind)[1]:
            result = _call(headloom_main, verb, small_trace, f"{name}={value}")
            _assert_ends_well(result, (verb, name, value))
    assert not [path for path in tmp_path.rglob("*") if "headloom" in path.name]


@pytest.mark.parametrize("verb", sorted(VERBS))
def test_words_that_are_out_of_place(headloom_main: Command, verb: str, small_trace: Path) -> None:
    for word in ("--no-such-option", "--no-such-option=1", "-q", "--\x1b[31m", "--hlep", "-\u202e"):
        _assert_refused(_call(headloom_main, verb, small_trace, word), (verb, word))
    too_many = ("one", "word", "too", "many", "\x1b")
    _assert_refused(_call(headloom_main, verb, small_trace, *too_many), (verb, too_many))
    for name, _ in _options(verb):
        # A value is missing at the end of the line.
        result = _call(headloom_main, verb, small_trace, name)
        _assert_refused(result, (verb, name))
        assert result.err.endswith(f" See headloom {verb} --help.\n"), (verb, name, result)
    if verb not in ("demo", "doctor", "steps"):  # which need no words
        _assert_refused(headloom_main(verb), verb)


def test_verbs_that_are_none(headloom_main: Command) -> None:
    for verb in ("", "x", "tarce", "\x1b[31m", "-", "TRACE", "trace ", "x" * 5_000, "\udcff"):
        _assert_refused(headloom_main(verb), verb)


@pytest.mark.parametrize(
    ("words", "message"),
    [
        ("measures T --share 2", "share=2.0; expected a number above 0"),
        ("measures T --threshold nan", "threshold=nan; expected a number above 0"),
        ("measures T --by x", "by='x'; expected"),
        ("heads T --alpha 2", "alpha=2.0; expected a number above 0"),
        ("heads T --least nan", "least=nan; expected a number from 0 to 1"),
        ("heads T --clusters 99", "clusters: count"),
        ("rollout T --token 99", "no position 99; the sequence has positions 0 to 3."),
        ("rollout T --kind x", "the trace has no x layer; it has "),
        ("flow T --token 99", "no position 99; the sequence has positions 0 to 3."),
        ("flow T --from 99", "no input position 99; the sequence has input positions 0 to"),
        ("flow T --kind x", "the trace has no x layer; it has "),
        ("evict D --budget 999", "budget '999'; expected a share of the prompt"),
        ("evict D --policy x", "no policy 'x'; there are h2o"),
        ("evict D --prompt-tokens 9999", "the prompt, of "),
        # About a layer that was not asked for.
        ("evict E", "evict: layer layers.0 has no exact weights"),
        ("evict D --by x", "by='x'; expected policy, layer"),
        ("steps a --kind x", "kind='x'; expected one of encoder"),
        ("steps a --kind cross --model R", "kind cross: "),
        ("steps a --query z", "query 'z': not among the words that look: a."),
        ("steps a --query 9", "query 9: there are words 0 to 0."),
        ("steps a --head 9", "head 9: there are heads 0 to 1."),
        ("steps a --layer 9", "layer 9: drawn or given matrices are one layer"),
        ("steps a --target x", "target: an encoder reads one sentence"),
        ("trace M --text a -o F --layers 9", "no layer 9; the model has layers 0 to 1"),
        ("ablate R --text the --patch thee", "a patch of "),
        # By typer, whose newer versions leave the value out.
        ("steps a --head -1", "Invalid value for '--head': '-1' should be"),
        ("steps a --head 1.5", "Invalid value for '--head': '1.5' should be a valid integer"),
        ("generate R --prompt a --temperature -1", "Invalid value for '--temperature': '-1'"),
        ("align D --method x", "Invalid value for '--method': 'x' is not one of"),
    ],
)
def test_an_error_of_a_value_says_what_was_expected(
    headloom_main: Command, small_trace: Path, trace_path: Path, writer: Path, runs: Path,
    words: str,
    message: str,
) -> None:  # fmt: skip
    names = {
        "T": small_trace, "D": trace_path, "M": writer, "R": runs / "language", "F": "f.loom",
    }  # fmt: skip
    if "E" in words.split():
        names["E"] = Path("edges.loom")
        Path("e.csv").write_text("layer,head,query,key,weight\n0,0,0,0,1\n0,0,1,0,1\n0,0,2,1,1\n")
        assert not headloom_main("import", "e.csv", "--mask", "causal", "-o", names["E"]).code
    result = headloom_main(*(names.get(word, word) for word in words.split()))
    assert message in result.one_line()
    assert result.code == 2


@pytest.mark.parametrize(
    "words",
    [
        "generate R --prompt the --length 1 --top-k H",
        "generate R --prompt the --length 3 --temperature 1e308",
        "generate R --prompt the --length 3 --temperature 1e-320",
        "trace R --text the -o F --layers H",
        "trace R --text the -o F --layers -1",
        "trace R --text the -o F --layers ²",
        "trace R --file X --window H -o F",
        "trace R --file X --window 8 --overlap H -o F",
        "relevance R --text the --token H",
        "relevance R --text the --token -H",
        "relevance R --text the --limit H",
        "relevance R --text the --logit H",
        "ablate R --text the --layer H",
        "ablate R --text the --limit H",
        "ablate R --data-tokens H --limit 1 --layer 0 --together",
        "projections R --by H",
    ],
)
def test_values_that_reach_a_model(
    headloom_main: Command, runs: Path, tmp_path: Path, words: str
) -> None:
    (tmp_path / "x.txt").write_text("the cat sees the dog")
    places = {"R": str(runs / "language"), "F": "./f", "X": "x.txt"}
    line = [places.get(word, word.replace("H", "9" * 20)) for word in words.split()]
    result = headloom_main(*line)
    _assert_ends_well(result, line)
    if result.code == 2:
        assert not (tmp_path / "f").exists()


def test_a_text_without_its_option_gets_a_hint(headloom_main: Command) -> None:
    line = headloom_main("trace", "runs/demo", "a text", "-o", "t.loom").one_line()
    assert line.endswith("(a text). A text is given by --text. See headloom trace --help.")
    assert "--text" not in headloom_main("heads", "a", "b", "c").one_line()
