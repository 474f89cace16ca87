"""`headloom trace --window`: a long text in windows, and going on after a kill."""

from __future__ import annotations

import json
import os
import shutil
import time
from pathlib import Path

import pytest
import torch
from tests.cli.conftest import LETTERS, Command, assert_one_line, traces_in
from tests.forked import Loaded

import headloom

transformers = pytest.importorskip("transformers")


def test_windows(headloom_main: Command, writer: Path, tmp_path: Path) -> None:
    text = " ".join(LETTERS[i % 10] for i in range(40))
    folder = tmp_path / "windows"
    arguments = ("trace", writer, "--text", text, "-o", folder, "--window", 16)
    result = headloom_main(*arguments, "--json")
    assert result.code == 0
    assert "3 windows of at most 16 tokens" in result.err
    paths = json.loads(result.out)["traces"]
    traces = [headloom.open(path) for path in paths]
    # A quarter is shared; together they are the text.
    assert [trace.tokens for trace in traces] == [
        text.split()[start : start + 16] for start in (0, 12, 24)
    ]
    for trace in traces:
        for token, (start, end) in zip(
            trace.tokens, trace.positions["tokens"]["offsets"], strict=True
        ):
            assert text[start:end] == token
    assert [trace.model["window"]["number"] for trace in traces] == [0, 1, 2]
    # Given again, the same command finds all there; another one replaces nothing unasked.
    times = [(Path(path) / "trace.json").stat().st_mtime_ns for path in paths]
    for again in ((), ("--overwrite",)):
        result = headloom_main(*arguments, *again, "--json")
        assert result.code == 0
        assert json.loads(result.out)["there"] == 3
        assert "3 were there already" in result.err
    assert [(Path(path) / "trace.json").stat().st_mtime_ns for path in paths] == times
    other = (*arguments, "--keep", 3)
    assert_one_line(headloom_main(*other), "000000.loom exists already, of another text, model or")
    assert headloom_main(*other, "--overwrite").code == 0
    assert {layer.graph.k for path in paths for layer in headloom.open(path).layers} == {3}
    assert_one_line(
        headloom_main(*arguments[:-1], 17), "reads 16 at most. Give --window 16 or less."
    )
    assert_one_line(
        headloom_main(*arguments, "--overlap", 16), "no room for new ones. Give a larger"
    )
    elsewhere = ("trace", writer, "--text", text[:9], "-o", tmp_path / "none.loom")
    assert_one_line(headloom_main(*elsewhere, "--layers", " , "), "--layers names no layer")
    assert_one_line(headloom_main("trace", writer, "--text", text, "-o", folder, "--overlap", 2),
                    "--overlap needs --window")  # fmt: skip


@pytest.mark.slow
def test_windows_that_are_killed_go_on(
    loaded: Loaded, headloom_main: Command, writer: Path, tmp_path: Path
) -> None:
    folder, text = tmp_path / "windows", tmp_path / "text.txt"
    text.write_text(" ".join(LETTERS[i % 10] for i in range(640)))
    arguments = ("trace", writer, "--file", text, "-o", folder, "--window", 16, "--overlap", 0,
                 "--json")  # fmt: skip
    with loaded.start(*arguments) as process:
        while len(traces_in(folder)) < 3:
            assert process.poll() is None, process.communicate()
            time.sleep(0.005)
    there = traces_in(folder)
    assert 3 <= len(there) < 40
    times = [(folder / name / "trace.json").stat().st_mtime_ns for name in there]
    # A window whose manifest was changed since is not taken for whole.
    manifest = folder / there[0] / "trace.json"
    whole = manifest.read_bytes()
    manifest.write_bytes(whole.replace(b'"a"', b'"b"'))
    assert_one_line(headloom_main(*arguments), "damaged")
    manifest.write_bytes(whole)
    os.utime(manifest, ns=(times[0], times[0]))
    done = headloom_main(*arguments)
    assert done.code == 0, done.err
    assert json.loads(done.out)["there"] == len(there)
    assert [(folder / name / "trace.json").stat().st_mtime_ns for name in there] == times
    assert sorted(path.name for path in folder.iterdir()) == [f"{n:06d}.loom" for n in range(40)]
    words = [token for name in traces_in(folder) for token in headloom.open(folder / name).tokens]
    assert words == text.read_text().split()


def test_windows_of_a_language_model_of_headloom(
    headloom_main: Command, runs: Path, tmp_path: Path
) -> None:
    text, folder = "the cat sees the dog the cow", tmp_path / "windows"
    arguments = ("trace", runs / "language", "--text", text, "-o", folder, "--overlap", 2)
    result = headloom_main(*arguments, "--window", 8, "--json")
    assert result.code == 0, result.err
    traces = [headloom.open(path) for path in json.loads(result.out)["traces"]]
    assert ["".join(trace.tokens) for trace in traces] == [
        text[start : start + 8] for start in (0, 6, 12, 18, 24)
    ]
    for trace in traces:
        offsets = trace.positions["tokens"]["offsets"]
        assert [text[start:end] for start, end in offsets] == trace.tokens
        assert trace.positions["tokens"]["special"] == [False] * len(trace.tokens)
    # Each is what the model does with its window alone.
    alone = tmp_path / "alone.loom"
    assert headloom_main("trace", runs / "language", "--text", text[6:14], "-o", alone).code == 0
    expected, found = headloom.open(alone).layers[0].graph, traces[1].layers[0].graph
    assert torch.equal(found.weights, expected.weights)
    assert torch.equal(found.keys, expected.keys)
    assert headloom_main(*arguments, "--window", 8).code == 0
    assert_one_line(headloom_main(*arguments, "--window", 2), "no room for new tokens")
    assert_one_line(
        headloom_main("trace", runs / "dates", "--text", text, "-o", folder, "--window", 8),
        "is a run that translates",
    )


def test_windows_of_an_earlier_text_do_not_stay_among_new_ones(
    headloom_main: Command, writer: Path, tmp_path: Path
) -> None:
    folder = tmp_path / "windows"
    options = ("-o", folder, "--window", 8, "--overlap", 0)
    long, short = (" ".join(LETTERS[i % 10] for i in range(count)) for count in (24, 9))

    def names() -> list[str]:
        return sorted(path.name for path in folder.iterdir())

    assert headloom_main("trace", writer, "--text", long, *options).code == 0
    assert names() == ["000000.loom", "000001.loom", "000002.loom"]
    (folder / "notes.loom").mkdir()
    for number in (0, 1):
        shutil.rmtree(folder / f"00000{number}.loom")
    assert_one_line(
        headloom_main("trace", writer, "--text", short, *options), "000002.loom exists already"
    )
    assert headloom_main("trace", writer, "--text", short, *options, "--overwrite").code == 0
    assert names() == ["000000.loom", "000001.loom", "notes.loom"]

    # What is there and no folder of windows is left alone.
    trace = folder / "000000.loom"
    before = sorted(path.name for path in trace.iterdir())
    into = ("trace", writer, "--text", short, "-o", trace, "--window", 8, "--overwrite")
    assert_one_line(headloom_main(*into), "windows need a folder of their own")
    assert sorted(path.name for path in trace.iterdir()) == before
    (folder / "corpus.json").write_text("{}")
    assert_one_line(
        headloom_main("trace", writer, "--text", short, *options, "--overwrite"),
        "windows need a folder of their own",
    )
