"""What a terminal is told: no control character of a name; and how a command ends that cannot."""

from __future__ import annotations

import io
import json
import os
import subprocess
import sys
from pathlib import Path

import pytest
import torch
from tests.cli.conftest import Command
from tests.forked import Loaded

import headloom
from headloom.api.trace import Trace
from headloom.cli.endings import one_line
from headloom.cli.safe_text import safe, safe_console, safe_output
from headloom.formats.trace import LayerInMemory, TraceLayer
from headloom.mechanism.backends.compiled import kernels

EVIL = "\x1b[2J\x07\u202egnp.exe\x9b31m\r"
UNSAFE = set("\x1b\x07\u202e\x9b\r")


def test_safe_leaves_text_and_shows_what_commands() -> None:
    assert safe("März\t日本\n") == "März\t日本\n"
    assert safe(EVIL) == "\\u001b[2J\\u0007\\u202egnp.exe\\u009b31m\\u000d"
    assert safe("a\ud800") == "a\\ud800"
    assert safe("März → 😀", "ascii") == "M\\u00e4rz \\u2192 \\ud83d\\ude00"
    assert json.loads(safe(json.dumps(EVIL, ensure_ascii=False))) == EVIL


def test_everything_that_is_written_passes(monkeypatch: pytest.MonkeyPatch) -> None:
    out, err = io.StringIO(), io.StringIO()
    monkeypatch.setattr(sys, "stdout", out)
    monkeypatch.setattr(sys, "stderr", err)
    with safe_output():
        print(EVIL)
        print(EVIL, file=sys.stderr)
        safe_console().print(EVIL, markup=False)
        sys.stdout.writelines([EVIL])
    assert sys.stdout is out
    assert not UNSAFE & set(out.getvalue() + err.getvalue())
    assert out.getvalue().count("\\u202e") == 3


def test_rich_may_command_the_terminal_and_text_may_not() -> None:
    from rich.table import Table

    console = safe_console()
    console._force_terminal = True
    with console.capture() as capture:
        table = Table()
        table.add_column(EVIL)
        table.add_row(f"[red]{EVIL}[/]")
        console.print(table)
    # What rich writes for bold and red; nothing of the name's.
    assert "\x1b[2J" not in capture.get()
    assert not (UNSAFE - {"\x1b"}) & set(capture.get())


def test_colours_in_a_pipe_are_no_reason_for_bars(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setenv("FORCE_COLOR", "1")  # as notebooks do for what they start
    monkeypatch.setenv("TERM", "xterm")
    read, write = os.pipe()
    with os.fdopen(read), os.fdopen(write, "w") as pipe:
        monkeypatch.setattr(sys, "stdout", pipe)
        console = safe_console()
        assert console.is_terminal
        assert not console.is_interactive
    ours, theirs = os.openpty()
    with os.fdopen(ours), os.fdopen(theirs, "w") as terminal:
        monkeypatch.setattr(sys, "stdout", terminal)
        assert safe_console().is_interactive


@pytest.fixture
def evil_trace(tmp_path: Path) -> Path:
    queries, keys, values = torch.randn(3, 1, 4, 2)
    _, graph = headloom.attend(queries, keys, values, keep=headloom.Top(2))
    tokens = [EVIL, "a", "b", "c"]
    layer = TraceLayer(
        f"layer {EVIL}", "encoder", 0, (1, 4, 4), "tokens", "tokens", tokens, tokens, 2**-0.5,
        LayerInMemory(graph, (queries, keys)), mask="all",
    )  # fmt: skip
    path = tmp_path / "evil.loom"
    Trace({"tokens": tokens}, (layer,), {"name": EVIL}).save(path)
    return path


@pytest.mark.parametrize(
    "verb",
    [
        ("rollout",), ("flow",), ("heads", "--all"), ("measures",), ("compare",),
        ("query", "select * from tokens"), ("query", "select * from layers", "--json"),
        ("rollout", "--json"), ("heads", "--role", EVIL), ("export", "--html", f"no/{EVIL}"),
    ],
)  # fmt: skip
def test_names_in_every_report(
    headloom_main: Command, evil_trace: Path, verb: tuple[str, ...], tmp_path: Path
) -> None:
    paths = [evil_trace, evil_trace] if verb[0] == "compare" else [evil_trace]
    result = headloom_main(verb[0], *paths, *verb[1:])
    assert not UNSAFE & set(result.out + result.err)
    if result.code:
        result.one_line()
    if "--json" in verb:
        json.loads(result.out)


def test_a_name_of_two_lines_is_an_error_of_one(headloom_main: Command) -> None:
    assert headloom_main("heads", "one\ntwo").one_line() == (
        "headloom: one\\ntwo: no such trace or run. Check the path."
    )


@pytest.mark.parametrize("length", [300, 5_000])
def test_paths_too_long(headloom_main: Command, data: Path, tmp_path: Path, length: int) -> None:
    path = tmp_path / ("a" * length)
    for verb in (
        ("train", path), ("train", data / "dates.toml", "--run", path), ("evaluate", path),
        ("translate", path), ("generate", path, "--prompt", "a"), ("heads", path),
        ("export", path, "--html", tmp_path / "p"), ("measures", path), ("rollout", path),
        ("flow", path), ("query", path, "select 1"), ("compare", path, path), ("projections", path),
        ("trace", path, "--text", "a", "-o", tmp_path / "t"), ("view", path, "--no-browser"),
        ("trace", "x", "--file", path, "-o", tmp_path / "t"), ("relevance", path, "--text", "a"),
        ("trace", "x", "--text", "a", "-o", path), ("ablate", path, "--text", "a"),
    ):  # fmt: skip
        line = headloom_main(*verb).one_line()
        assert "too long" in line or "no such" in line, line
        assert len(line) < 1_500
    assert not list(tmp_path.iterdir())


def test_numbers_too_large(headloom_main: Command, data: Path) -> None:
    for threads in ("99999999999999999999", "5000", "0", "-1"):
        line = headloom_main("train", data / "dates.toml", "--threads", threads).one_line()
        assert "--threads" in line


def _shell(command: str) -> subprocess.CompletedProcess[str]:
    return subprocess.run(
        ["sh", "-c", command], capture_output=True, text=True, check=False,
        env={**os.environ, "HEADLOOM": f"{sys.executable} -m headloom"},
    )  # fmt: skip


@pytest.mark.slow
def test_standard_files_that_are_closed(evil_trace: Path) -> None:
    done = _shell(f"$HEADLOOM rollout {evil_trace} >&-")
    assert (done.returncode, done.stderr) == (
        2,
        "headloom: cannot write the output: it is closed.\n",
    )
    done = _shell(f"$HEADLOOM rollout {evil_trace} 2>&-")
    assert (done.returncode, done.stderr) == (0, "")
    assert "holds" in done.stdout
    done = _shell(f"$HEADLOOM query {evil_trace} - <&-")
    assert done.returncode == 2
    assert done.stderr.count("\n") == 1
    assert "standard input is closed" in done.stderr


@pytest.mark.parametrize("asked", ["--help", "--version", "steps"])
def test_a_reader_that_leaves_at_once_is_no_error(loaded: Loaded, asked: str) -> None:
    reading, writing = os.pipe()
    os.close(reading)
    with loaded.start(asked, stdout=writing) as process:
        os.close(writing)
        assert (process.wait(), process.errors()) == (0, b"")


def test_the_roof_knows_what_a_user_can_mend() -> None:
    assert one_line(RecursionError()) == (
        "the input is nested too deeply to be read. Give a flatter one."
    )
    assert one_line(FileNotFoundError(2, "No such file or directory", "x")) == (
        "x: no such file or directory. Check the path, and that it may be used."
    )
    assert "too large" in (one_line(OverflowError("Python int too large")) or "")
    assert one_line(UnicodeEncodeError("utf-8", "a\udcff", 1, 2, "surrogates not allowed")) == (
        "a\udcff: not UTF-8 text. Rename it, or convert it."
    )
    assert "memory" in (one_line(MemoryError()) or "")
    # A fault of headloom's own is not hidden.
    assert one_line(KeyError("a")) is None
    assert one_line(AssertionError()) is None


@pytest.mark.skipif(kernels is None, reason="built without the native kernels")
def test_kernels_that_are_not_here_are_one_line(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setenv("HEADLOOM_INSTRUCTION_SET", "avx1024")
    with pytest.raises(ValueError, match="no kernels") as caught:
        kernels.multiply(kernels.ProductCall(), 1, "avx1024")
    assert one_line(caught.value) == (
        "HEADLOOM_INSTRUCTION_SET is avx1024, which this processor or build lacks. Unset it, or "
        "take "
        "one that headloom doctor names."
    )


def test_debug_is_in_the_help(headloom_main: Command) -> None:
    assert "--debug" in headloom_main("--help").out


def test_a_reader_that_leaves_is_no_error_of_a_table() -> None:
    read, write = os.pipe()
    os.close(read)
    with os.fdopen(write, "wb", buffering=0) as pipe:
        console = safe_console()
        console.file = io.TextIOWrapper(pipe, write_through=True)
        with pytest.raises(BrokenPipeError):
            console.print("a table")


@pytest.mark.slow
def test_a_home_that_may_not_be_written_is_no_matter_for_a_picture(tmp_path: Path) -> None:
    (tmp_path / "home").write_text("a file, so that nothing can be made in it")
    unset = ("MPLCONFIGDIR", "XDG_CONFIG_HOME", "XDG_CACHE_HOME")
    result = subprocess.run(
        [sys.executable, "-m", "headloom", "steps", "--picture", "steps.png"],
        env={**{name: value for name, value in os.environ.items() if name not in unset},
             "HOME": str(tmp_path / "home")},
        cwd=tmp_path, capture_output=True, text=True, check=True,
    )  # fmt: skip
    assert result.stderr == "written: steps.png\n"
