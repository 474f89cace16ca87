"""`headloom trace --corpus`: a trace of each text, and going on after a kill."""

from __future__ import annotations

import json
import os
import signal
import time
from pathlib import Path
from typing import Any

import pytest
from tests.cli.conftest import LETTERS, Command, assert_one_line, traces_in
from tests.forked import Loaded

import headloom

transformers = pytest.importorskip("transformers")


@pytest.fixture
def corpus(tmp_path: Path) -> Path:
    path = tmp_path / "texts.txt"
    lines = [" ".join(LETTERS[(i + j) % 10] for j in range(2 + i % 9)) for i in range(12)]
    lines[4] = ""
    lines[7] = "a " * 30  # more than the model reads
    path.write_text("\n".join(lines) + "\n")
    return path


def test_a_corpus(headloom_main: Command, writer: Path, corpus: Path, tmp_path: Path) -> None:
    folder = tmp_path / "out"
    arguments = ("trace", writer, "--corpus", corpus, "-o", folder)
    result = headloom_main(*arguments, "--json")
    assert result.code == 2
    assert "000008: trace: 30 tokens in input_ids" in result.err
    assert "1 of 11 texts could not be traced" in result.err
    said = json.loads(result.out)
    assert (said["traced"], said["empty"]) == (10, ["000005"])
    assert "Empty, skipped: 000005." in result.out + result.err
    expected = [f"{number:06d}.loom" for number in range(1, 13) if number not in (5, 8)]
    assert traces_in(folder) == expected
    assert headloom.open(folder / "000002.loom").tokens == corpus.read_text().split("\n")[1].split()
    times = [(folder / name / "trace.json").stat().st_mtime_ns for name in expected]
    lines = corpus.read_text().replace("a " * 30, "a b").split("\n")
    corpus.write_text("\n".join([*lines[:-1], "j i h"]) + "\n")
    # The text that failed was not traced: it may change. One more has come.
    said = headloom_main(*arguments, "--json").json()
    assert (said["traced"], said["there"]) == (2, 10)
    assert [(folder / name / "trace.json").stat().st_mtime_ns for name in expected] == times
    assert_one_line(headloom_main(*arguments, "--keep", 3), "were made with other options")
    corpus.write_text(corpus.read_text().replace("j i h", "j i g"))
    assert_one_line(headloom_main(*arguments), "the text 000013 has changed")
    assert_one_line(headloom_main("trace", writer, "--corpus", corpus, "-o", tmp_path), "not empty")
    assert_one_line(headloom_main(*arguments, "--text", "a"), "corpus has the texts")
    (tmp_path / "empty.txt").write_text("\n \n")
    assert_one_line(
        headloom_main("trace", writer, "--corpus", tmp_path / "empty.txt", "-o", tmp_path / "e"),
        "no text; expected",
    )


def test_a_command_that_traced_nothing_may_be_corrected(
    headloom_main: Command, writer: Path, tmp_path: Path
) -> None:
    texts, folder = tmp_path / "texts.txt", tmp_path / "out"
    texts.write_text("a b\n")
    (tmp_path / "nothing").mkdir()
    rest = ("--corpus", texts, "-o", folder)
    assert headloom_main("trace", tmp_path / "nothing", *rest).code == 2
    assert traces_in(folder) == [] and not (folder / "corpus.json").exists()
    assert headloom_main("trace", writer, *rest, "--layers", 99).code == 2
    assert headloom_main("trace", writer, *rest, "--layers", 0).code == 0
    assert traces_in(folder) == ["000001.loom"]
    assert_one_line(headloom_main("trace", writer, *rest), "were made with other options")


def test_a_text_that_fails_does_not_take_the_others_with_it(
    headloom_main: Command, writer: Path, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    from headloom.api.pretrained_model import PretrainedModel

    real = PretrainedModel._traced

    def trace(self: PretrainedModel, inputs: Any, options: Any, *rest: Any, **named: Any) -> Any:
        if options.save.name == "000001.loom":
            raise RuntimeError("DefaultCPUAllocator: can't allocate memory")
        return real(self, inputs, options, *rest, **named)

    monkeypatch.setattr(PretrainedModel, "_traced", trace)
    texts, folder = tmp_path / "texts.txt", tmp_path / "out"
    texts.write_text("a b\nc d\n")
    result = headloom_main("trace", writer, "--corpus", texts, "-o", folder)
    assert result.code == 2 and "000001: not enough memory" in result.err
    assert traces_in(folder) == ["000002.loom"]


def test_a_corpus_of_files(headloom_main: Command, writer: Path, tmp_path: Path) -> None:
    texts = tmp_path / "texts"
    (texts / "deep").mkdir(parents=True)
    (texts / "one.txt").write_text("a b")
    (texts / "deep" / "two.txt").write_text("c d")
    (texts / "notes.md").write_text("not this")
    folder = tmp_path / "out"
    assert headloom_main("trace", writer, "--corpus", texts, "-o", folder).code == 0
    assert traces_in(folder) == ["deep-two.loom", "one.loom"]


def _children(process: int) -> set[int]:
    """The processes that a process has started, and those that they have."""
    found: set[int] = set()
    waiting = [process]
    while waiting:
        for task in Path(f"/proc/{waiting.pop()}/task").glob("*/children"):
            new = set(map(int, task.read_text().split())) - found
            found |= new
            waiting += new
    return found


def _lives(process: int) -> bool:
    try:
        return Path(f"/proc/{process}/stat").read_text().rpartition(")")[2].split()[0] != "Z"
    except OSError:
        return False


@pytest.mark.slow
@pytest.mark.parametrize("killed", ["the command", "a worker"])
def test_a_corpus_that_is_killed_goes_on(
    loaded: Loaded, headloom_main: Command, writer: Path, tmp_path: Path, killed: str
) -> None:
    """Where the command alone is killed, its workers learn of it by themselves, and end."""
    corpus, folder = tmp_path / "texts.txt", tmp_path / "out"
    corpus.write_text("\n".join(["a b c d e f g"] * 40) + "\n")
    arguments = ("trace", writer, "--corpus", corpus, "-o", folder, "--json")
    with loaded.start(*arguments, "--workers", 2, session=True) as process:
        while len(traces_in(folder)) < 3:
            assert process.poll() is None, process.communicate()
            time.sleep(0.02)
        workers = _children(process.pid)
        assert len(workers) >= 2
        if killed == "a worker":
            found = [c for c in workers if b"spawn_main" in Path(f"/proc/{c}/cmdline").read_bytes()]
            os.kill(found[0], signal.SIGKILL)
            _, said = process.communicate()
            assert process.wait() == 2
            assert said.startswith(f"headloom: {folder}: a worker was killed".encode())
        else:
            process.send_signal(signal.SIGKILL)
            assert process.wait() == -signal.SIGKILL
    while any(map(_lives, workers)):
        time.sleep(0.05)
    there = traces_in(folder)
    assert 3 <= len(there) < 40
    for name in there:
        assert headloom.open(folder / name).deviation < 1e-5
    said = headloom_main(*arguments).json()
    assert (said["there"], said["traced"]) == (len(there), 40 - len(there))
    left = {path.name for path in folder.iterdir() if not path.name.endswith(".loom")}
    assert left <= {"corpus.json", ".lock"}


def test_texts_in_a_list_are_traced_by_a_model_that_is_open(writer: Path, tmp_path: Path) -> None:
    model = headloom.load(writer)
    done = headloom.trace_corpus(model, ["a b", "", "c d e"], output=tmp_path / "t", keep=2)
    assert (done.traced, done.empty, done.problem) == (2, ("000002",), None)
    assert [trace.tokens for trace in headloom.open(tmp_path / "t")] == [
        ["a", "b"],
        ["c", "d", "e"],
    ]
    again = headloom.trace_corpus(writer, {"000003": "c d e"}, output=tmp_path / "t", keep=2)
    assert str(again) == f"0 texts traced, 1 existed already. Traces: {tmp_path / 't'}"
    parts = headloom.trace_corpus(model, text="a b c d", window=2, output=tmp_path / "w")
    assert parts.traced == 2 and headloom.open(tmp_path / "w")[1].tokens == ["c", "d"]
