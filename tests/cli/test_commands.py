"""The command itself: help, its options, JSON alone, and how a verb ends that cannot go on."""

from __future__ import annotations

import ast
import inspect
import io
import json
import os
import re
import shlex
import sys
from collections import defaultdict
from collections.abc import Callable
from pathlib import Path
from typing import Any, get_args, get_type_hints

import pytest
import torch
import typer.main
from tests.cli.conftest import Command
from tests.forked import Loaded

import headloom
import headloom.cli.verbs
from headloom.analysis.image_map import ImageMap
from headloom.api.trace import Trace
from headloom.cli import commands
from headloom.cli.output import progress_bar, safe, safe_console, safe_output, say
from headloom.formats.trace import LayerInMemory, TraceLayer

COMMAND: Any = typer.main.get_command(commands.app)
VERBS: dict[str, Any] = COMMAND.commands
EVIL = "\x1b[2J\x07\u202egnp.exe\x9b31m\r"
UNSAFE = set("\x1b\x07\u202e\x9b\r")


def options_of(verb: str) -> dict[str, Any]:
    """The options of a verb by their longest names."""
    params = [param for param in VERBS[verb].params if param.param_type_name == "option"]
    return {max(param.opts, key=len): param for param in params}


def kind_of(verb: str, option: Any) -> type:
    """The type of what an option takes."""
    kind = get_type_hints(VERBS[verb].callback.__wrapped__)[option.name]
    while parts := [part for part in get_args(kind) if part is not type(None)]:
        kind = parts[0]  # of a list, or of what may be left out; of a choice, the first word
    return kind if isinstance(kind, type) else type(kind)


def test_every_file_is_a_verb_of_120_lines_and_13_options() -> None:
    files = list(Path(headloom.cli.verbs.__path__[0]).glob("[a-z]*.py"))
    assert {path.stem.removesuffix("_") for path in files} == set(VERBS)
    for path in files:
        assert len(path.read_text("utf-8").splitlines()) <= 120, path
    for verb in VERBS:
        assert len(options_of(verb)) <= 13, verb


#: Verbs whose function has another name; all others have their own.
NAMED = {"import": "from_files", "map": "image_map"}
#: What is printed of a result, and how: no parameter of a function.
PRINTED = {"json", "csv", "limit", "threads"}
#: Options that are methods of what a function returns, or parameters of another name.
METHODS = {
    "align": {"output", "picture"}, "evict": {"by", "picture"}, "heads": {"all"},
    "map": {"output"}, "steps": {"picture", "html"},
    # A text may stand in a file.
    "ablate": {"file"}, "relevance": {"file"},
}  # fmt: skip
RENAMED = {
    "import": {"output": "save"}, "train": {"set": "settings"}, "predict": {"file": "lines"},
    "trace": {"text": "inputs", "file": "image"},
}  # fmt: skip


@pytest.mark.parametrize("verb", sorted(VERBS))
def test_a_verb_calls_a_function_of_the_face_that_takes_its_options(verb: str) -> None:
    callback = VERBS[verb].callback.__wrapped__
    for node in ast.walk(ast.parse(Path(inspect.getfile(callback)).read_text("utf-8"))):
        taken = [] if not isinstance(node, ast.Import | ast.ImportFrom) else (
            [node.module] if isinstance(node, ast.ImportFrom) else [a.name for a in node.names]
        )  # fmt: skip
        for module in taken:
            ours = str(module).startswith("headloom.")
            assert not ours or str(module).startswith(("headloom.cli", "headloom.errors")), module
    functions = [NAMED.get(verb, verb)] + ["trace_corpus"] * (verb == "trace")
    takes: dict[str, inspect.Parameter] = {}
    for name in reversed(functions):
        takes |= inspect.signature(getattr(headloom, name)).parameters
    renamed = RENAMED.get(verb, {})
    for option in options_of(verb).values():
        words = {word.lstrip("-").replace("-", "_") for word in option.opts}
        if words & (PRINTED | METHODS.get(verb, set())):
            continue
        (word,) = {renamed.get(word, word) for word in words} & set(takes)
        parameter = takes[word]
        default = getattr(option.default, "value", option.default)
        default = tuple(default) if isinstance(default, list) else default
        if parameter.default is not parameter.empty and not option.required:
            assert parameter.default == (str(default) if isinstance(default, Path) else default)


#: Commands that print the table of a function, as comma-separated values.
TABLES: dict[str, Callable[[Path, Path], Any]] = {
    "heads T": lambda t, d: headloom.heads(t),
    "heads T --sort entropy --layer 0": lambda t, d: headloom.heads(t, sort="entropy", layer=0),
    "measure rollout T": lambda t, d: headloom.measure("rollout", t),
    "measure graph D --by head": lambda t, d: headloom.measure("graph", d, by="head"),
    "evict D --budget 2 --by step": lambda t, d: headloom.evict(d, budget=2).to_pandas("step"),
    "query D from+rows+order+by+all": lambda t, d: headloom.query(d, "from rows order by all"),
}


@pytest.mark.parametrize("words", TABLES)
def test_csv_is_the_table_of_the_function(
    headloom_main: Command, small_trace: Path, trace_path: Path, words: str
) -> None:
    places = {"T": small_trace, "D": trace_path}
    line = [str(places.get(word, word)).replace("+", " ") for word in words.split()]
    table = TABLES[words](small_trace, trace_path)
    assert len(table) and headloom_main(*line, "--csv").out == table.to_csv(index=False)


def test_an_option_means_the_same_everywhere() -> None:
    kinds: dict[str, set[type]] = defaultdict(set)
    for verb in VERBS:
        for name, option in options_of(verb).items():
            kinds[name].add(kind_of(verb, option))
    # Some take a name too, where others take a number alone.
    assert kinds.pop("--token") == kinds.pop("--layer") == {int, str}
    assert {name for name, found in kinds.items() if len(found) > 1} == set()
    assert {verb for verb in VERBS if "--json" not in options_of(verb)} == {"steps", "view"}


def test_help(headloom_main: Command) -> None:
    for verb in (None, *VERBS):
        result = headloom_main(*([verb] if verb else []), "--help")
        assert (result.code, result.err) == (0, "")
        named = options_of(verb) if verb else VERBS
        assert "Usage: headloom" in result.out and all(name in result.out for name in named), verb
        if verb:  # an example that the verb takes
            first = shlex.split(result.out.split("Usage:")[0].partition("Example: ")[2])
            words = first[first.index("headloom") + 1 :]
            VERBS[words.pop(0)].make_context(verb, words, resilient_parsing=True)
        else:
            assert 24 <= len(result.out.splitlines()) <= 40


def test_headloom_alone_prints_its_help_and_its_version(headloom_main: Command) -> None:
    assert headloom_main() == headloom_main("--help")
    result = headloom_main("--version")
    assert (result.code, result.out) == (0, f"headloom {headloom.__version__}\n")


@pytest.mark.parametrize(
    ("words", "message"),
    [
        ("trian", "trian: no such command. Try: headloom train"),
        ("Trase a --txt b", "Trase: no such command. Try: headloom trace a --txt b"),
        ("qqqqq", "qqqqq: no such command. Try: headloom --help"),
        ("help trace", "help: no such command. Try: headloom trace --help"),
        ("minilm", "minilm: no such command. Try: headloom view minilm"),
        ("text.txt", "text.txt: no such command. Try: headloom trace minilm --file text.txt"),
        ("--foo", "No such option: --foo. See headloom --help"),
        ("--verson", "No such option: --verson. Try: headloom --version"),
        ("view", "headloom view minilm, headloom view runs/r, headloom view new.loom"),
        ("view text.txt", "To trace a text: headloom trace minilm --file text.txt"),
        ("view no/such/x", "no/such/x: no such trace or run. Try: headloom view minilm, headloom "),
        ("view nwe.loom", "nwe.loom: no such trace or run. Try: headloom view new.loom"),
        ("view new.loom --prot 1", "No such option: --prot. Try: headloom view new.loom --port 1"),
        ("trace text.txt", "To trace a text: headloom trace minilm --file text.txt"),
        ("trace minilm text.txt", "(text.txt). Try: headloom trace minilm --file text.txt"),
        ("trace minilm words", "(words). Try: headloom trace minilm --text words"),
        ("trace minilm --txet=x", "No such option: --txet. Try: headloom trace minilm --text=x"),
        (
            "trace minilm --file txt.txt",
            "txt: no such text file. Try: headloom trace minilm --file",
        ),
        ("heads", "Missing argument 'TRACE'. For example: headloom heads new.loom"),
        ("compare new.loom", "For example: headloom compare new.loom old.loom"),
        ("measure rolout new.loom", "Try: headloom measure rollout new.loom"),
        ("export old.loom --to onx", "Try: headloom export old.loom --to onnx"),
        ("evaluate", "Missing argument 'RUN'. For example: headloom evaluate runs/r"),
        ("evaluate run/r/r", "run/r/r: no such run or model. Try: headloom evaluate runs/r"),
        ("train", "Missing argument 'CONFIG'. For example: headloom train examples/dates.toml"),
        ("evaluate x --no", "No such option: --no"),
        ("demo --seed -1", "Invalid value for '--seed'"),
        ("heads text.txt --csv --json", "--csv and --json: a command prints one of them."),
        ("trace r -o t --text a --generate 1000000000", "Invalid value for '--generate'"),
        ("train c.toml --threads 99999999999999999999", "See headloom train --help"),
        ("heads one\x1btwo", "one\\u001btwo: no such trace or run. Try: headloom heads new.loom"),
        ("heads one\ntwo", "one\\ntwo: no such trace or run. Try: headloom heads new.loom"),
    ],
)
def test_words_that_cannot_be(
    headloom_main: Command, words: str, message: str, monkeypatch: pytest.MonkeyPatch,
    tmp_path: Path,
) -> None:  # fmt: skip
    monkeypatch.chdir(tmp_path)
    (tmp_path / "text.txt").touch()
    for age, name in enumerate(("new.loom/trace.json", "runs/r/run.json", "old.loom/trace.json")):
        (tmp_path / name).parent.mkdir(parents=True)
        (tmp_path / name).touch()
        os.utime(tmp_path / name, (1e9 - age, 1e9 - age))
    assert message in headloom_main(*words.split(" ")).one_line()
    names = ["new.loom", "old.loom", "runs", "text.txt"]
    assert sorted(path.name for path in tmp_path.iterdir()) == names


#: What no option of a type takes, and what some take.
REFUSED = {int: ("x", "", "1.5", "²", "9" * 5_000), float: ("x", "", "1,5", "\u202e1")}
STRANGE = {int: ("99999999999999999999", "-1"), float: ("nan", "-inf", "1e400"),
           str: ("", "\x1b[31m\u202e", "\udcff")}  # fmt: skip
#: What a verb needs besides its arguments.
NEEDED = {
    "demo": "--run N/run", "export": "--graphml F", "relevance": "--text a", "view": "--no-browser",
    "trace": "--text a -o N/t", "predict": "--file F",
}  # fmt: skip


@pytest.mark.parametrize("verb", sorted(set(VERBS) - {"demo"}))  # which would train
def test_strange_values_end_well(
    headloom_main: Command, verb: str, small_trace: Path, tmp_path: Path,
    monkeypatch: pytest.MonkeyPatch,
) -> None:  # fmt: skip
    monkeypatch.chdir(tmp_path)
    named = {"TRACE": str(small_trace), "SQL": "select 1",
             "MEASURE": "rollout"}  # fmt: skip
    words = [verb]
    arguments = [param for param in VERBS[verb].params if param.param_type_name == "argument"]
    words += [named.get(param.metavar, "./nowhere") for param in arguments]
    words += NEEDED.get(verb, "").split()
    for name, option in options_of(verb).items():
        if option.is_flag:
            continue
        kind = kind_of(verb, option)
        own = [(value, True) for value in REFUSED.get(kind, ())]
        own += [(value, False) for value in STRANGE.get(kind, ())]
        for value, refused in own:
            result = headloom_main(*words, f"{name}={value}")
            assert result.code == 2 or (result.code == 0 and not refused), (words, name, value)
            if result.code:
                assert name in result.one_line() or not refused
            assert not UNSAFE & set(result.out + result.err), (words, name, value)


@pytest.fixture(scope="module")
def small_trace(tmp_path_factory: pytest.TempPathFactory) -> Path:
    """A trace whose names would command a terminal."""
    queries, keys, values = torch.randn(3, 2, 4, 2, generator=torch.Generator().manual_seed(1))
    _, graph = headloom.attend(queries, keys, values, keep=headloom.Top(2))
    tokens = [EVIL, "a", "b", "c"]
    layer = TraceLayer(
        f"layer {EVIL}", "encoder", 0, (2, 4, 4), "tokens", "tokens", tokens, tokens, 2**-0.5,
        LayerInMemory(graph, (queries, keys)), mask="all",
    )  # fmt: skip
    path = tmp_path_factory.mktemp("evil") / "t.loom"
    Trace({"tokens": tokens}, (layer,), {"name": EVIL}).save(path)
    return path


#: What verbs with --json are asked: T is a trace, D that of a translator, R the folder of runs, O a
#: file or folder to be.
ASKED = {
    "ablate": "R/language --text hog",
    "align": "R/translation --sources T/../en --targets T/../de -o O",
    "compare": "T T",
    "doctor": "",
    "evaluate": "R/dates --beam 1",
    "evict": "D --budget 2",
    "export": "T --html O.html",
    "heads": "T",
    "import": "T/../edges.csv --mask all -o O",
    "map": "T --layer 0 --token 0 -o O.png",
    "measure": "rollout T",
    "predict": "R/dates --file T/../en",
    "query": "T select+*+from+tokens,layers",
    "relevance": "R/language --text hog",
    "trace": "R/dates --text de:+3.4.2024 -o O",
    "train": "R/../dates.toml --run O",
}


def test_json_of_every_verb_is_asked() -> None:
    assert {*ASKED, "demo"} == {name for name in VERBS if "--json" in options_of(name)}


@pytest.mark.parametrize("verb", sorted(ASKED))
def test_json_is_alone_on_standard_output(
    headloom_main: Command, small_trace: Path, trace_path: Path, runs: Path,
    monkeypatch: pytest.MonkeyPatch, tmp_path: Path, verb: str,
) -> None:  # fmt: skip
    """One object, and nothing else: no table, and nothing that others print in the process."""
    (small_trace.parent / "en").write_text("the cat\n")
    (small_trace.parent / "de").write_text("das cat\n")
    (small_trace.parent / "edges.csv").write_text("layer,head,query,key,weight\n0,0,0,0,1\n")
    patch = [(0, 0, 0, 0, 1.0)], False, 0, "word", "layer", None, 0, [EVIL], None, False
    seen = ImageMap(torch.ones(1, 1), 1.0, 0.0, *patch)
    monkeypatch.setattr(headloom, "image_map", lambda *_, **__: print("also") or seen)
    places = {"T": small_trace, "D": trace_path, "R": runs, "O": tmp_path / "o"}
    words = [re.sub(r"^[TDRO]\b", lambda name: str(places[name[0]]), word.replace("+", " "))
             for word in ASKED[verb].split()]  # fmt: skip
    result = headloom_main(verb, *words, "--json")
    assert result.code == 0, result.err
    assert isinstance(json.loads(result.out), dict)
    assert result.out.count("\n") == 1
    assert not UNSAFE & set(result.out + result.err)


def test_names_command_no_terminal(headloom_main: Command, small_trace: Path) -> None:
    for words in ("measure rollout T", "measure graph T", "heads T --all", "compare T T",
                  "query T select+*+from+tokens"):  # fmt: skip
        line = [str(small_trace) if word == "T" else word for word in words.split()]
        result = headloom_main(*(word.replace("+", " ") for word in line))
        assert result.code == 0, result.err
        assert not UNSAFE & set(result.out + result.err)


def test_safe_leaves_text_and_shows_what_commands(monkeypatch: pytest.MonkeyPatch) -> None:
    assert safe("März\t日本\n") == "März\t日本\n"
    assert safe(EVIL) == "\\u001b[2J\\u0007\\u202egnp.exe\\u009b31m\\u000d"
    assert json.loads(safe(json.dumps(EVIL, ensure_ascii=False))) == EVIL
    out = io.TextIOWrapper(io.BytesIO(), "ascii", write_through=True)
    monkeypatch.setattr(sys, "stdout", out)
    with safe_output():
        print(EVIL, "März")
        safe_console().print(EVIL, markup=False)
        sys.stdout.writelines([EVIL])
    assert sys.stdout is out
    written = out.buffer.getvalue().decode()  # type: ignore[attr-defined]
    assert not UNSAFE & set(written)
    assert written.count("\\u202e") == 3 and "M\\xe4rz" in written


def test_a_bar_commands_the_terminal_and_lines_go_above_it(
    capsys: pytest.CaptureFixture[str], monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setenv("TERM", "xterm")
    monkeypatch.setattr(sys.stdout, "isatty", lambda: True)
    monkeypatch.setattr(sys.stderr, "isatty", lambda: True)
    with safe_output(), progress_bar("parts") as show:
        show(1, 2)
        say("a line \x1b[2J")
    written = capsys.readouterr()
    assert "\x1b[2J" not in written.out + written.err
    assert "a line" in written.out + written.err
    assert "\x1b[2K" in written.err  # the bar is taken away


@pytest.mark.parametrize(
    ("error", "line"),
    [
        (RecursionError(), "the input is nested too deeply. Give a flatter one."),
        (FileNotFoundError(2, "No such file", "x"), "x: no such file. Check the path"),
        (OverflowError("Python int too large"), "a number is too large"),
        (UnicodeEncodeError("utf-8", "a\udcff", 1, 2, "no"), "a\udcff: not UTF-8 text."),
        (MemoryError(), "not enough memory."),
        # A fault of headloom's own is not hidden.
        (KeyError("a"), None),
        (AssertionError(), None),
    ],
)
def test_what_a_user_can_mend_is_one_line(error: BaseException, line: str | None) -> None:
    said = commands.one_line(error)
    assert said is None if line is None else said is not None and said.startswith(line)


def test_a_reader_that_leaves_at_once_is_no_error(loaded: Loaded) -> None:
    reading, writing = os.pipe()
    os.close(reading)
    with loaded.start("steps", stdout=writing) as process:
        os.close(writing)
        assert (process.wait(), process.errors()) == (0, b"")


@pytest.mark.parametrize("words", [("heads",), ("measure", "projections")])
def test_what_is_missing_is_told_before_torch_is_loaded(
    headloom_process: Command, tmp_path: Path, words: tuple[str, ...]
) -> None:
    result = headloom_process(*words, tmp_path / "nowhere", PYTHONPROFILEIMPORTTIME="1")
    assert result.code == 2 and "/nowhere: no such" in result.err
    assert " torch\n" not in result.err


def test_debug_shows_where(headloom_process: Command) -> None:
    result = headloom_process("--debug", "evaluate", "nowhere")
    assert "Traceback" in result.err
    assert "DataError" in result.err
