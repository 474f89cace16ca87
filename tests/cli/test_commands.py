"""The verbs at work: what they print, and where."""

from __future__ import annotations

import json
import os
import signal
import time
from collections.abc import Callable
from pathlib import Path
from typing import Any

import pytest
import typer.main
from tests.forked import Loaded

import headloom
import headloom.cli
from headloom.formats.run import RunFolder

Command = Callable[..., Any]

VERBS = tuple(
    name
    for name, command in vars(typer.main.get_command(headloom.cli.app))["commands"].items()
    if not command.hidden
)

ONE_STEP = ("--set", "training.max_steps=1", "--set", "training.warmup=1")


@pytest.mark.parametrize("verb", VERBS)
def test_help(headloom_main: Command, verb: str) -> None:
    result = headloom_main(verb, "--help")
    assert result.code == 0
    assert verb in result.out
    assert "Usage" in result.out


def test_headloom_alone_prints_its_help(headloom_main: Command) -> None:
    """Who types the name alone wants to know what there is."""
    assert headloom_main() == headloom_main("--help")


def test_help_of_all_names_every_verb(headloom_process: Command) -> None:
    result = headloom_process("--help")
    assert result.code == 0
    assert all(verb in result.out for verb in VERBS)


def test_the_version(headloom_main: Command) -> None:
    result = headloom_main("--version")
    assert (result.code, result.out) == (0, f"headloom {headloom.__version__}\n")


@pytest.mark.parametrize(
    ("arguments", "named", "verb"),
    [
        (("trian",), "trian", ""),
        (("--foo",), "--foo", ""),
        (("--foo", "train"), "--foo", ""),
        (("train",), "CONFIG", " train"),
        (("evaluate", "x", "--no"), "--no", " evaluate"),
        (("demo", "--seed", "-1"), "--seed", " demo"),
    ],
)
def test_verbs_and_options_that_there_are_not(
    headloom_main: Command, arguments: tuple[str, ...], named: str, verb: str
) -> None:
    line = headloom_main(*arguments).one_line()
    assert named in line
    assert line.endswith(f"See headloom{verb} --help.")


def last_json(out: str) -> dict[str, Any]:
    content = json.loads(out)
    assert isinstance(content, dict)
    return content


def test_train_reports_and_a_second_start_does_nothing(
    headloom_main: Command, data: Path, runs: Path
) -> None:
    result = headloom_main("train", data / "dates.toml", "--run", runs / "dates", "--json")
    assert result.code == 0
    report = last_json(result.out)
    assert result.out.count("\n") == 1  # progress goes to standard error
    assert report["run"] == str(runs / "dates")
    assert (report["steps"], report["reason"]) == (3, "max_steps")
    assert report["best_loss"] > 0
    assert RunFolder(runs / "dates").state == "finished"


def test_train_names_the_run_after_the_configuration(
    headloom_main: Command, data: Path, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.chdir(tmp_path)
    result = headloom_main("train", data / "language.toml", *ONE_STEP)
    assert result.code == 0
    assert RunFolder.open(Path("runs/language")).config()["training"]["max_steps"] == 1


@pytest.mark.parametrize(
    ("kind", "asked"),
    [
        ("float32-tiles", "has_matrix_unit"),
        ("bfloat16", "multiplies_bfloat16"),
    ],
)
def test_train_says_where_products_are_not_those_asked_for(
    headloom_main: Command, data: Path, tmp_path: Path, monkeypatch: pytest.MonkeyPatch,
    kind: str, asked: str,
) -> None:  # fmt: skip
    monkeypatch.setattr(f"headloom.models.dense.kinds.{asked}", lambda: False)
    command = ("train", data / "language.toml", *ONE_STEP, "--run")
    result = headloom_main(*command, tmp_path / "a", "--set", f"training.products={kind}")
    assert f'Products are torch\'s in float32, not "{kind}": no ' in result.err
    assert "Products" not in headloom_main(*command, tmp_path / "b").err


def test_translate_keeps_the_lines(headloom_process: Command, runs: Path) -> None:
    """Also empty ones, and those with characters that other programs take for line ends."""
    text = "the cat\n\nthe dog\r\n\x0cthe\u2028cow\x85sees\n\nlast"
    result = headloom_process("translate", runs / "translation", "--beam", 2, stdin=text.encode())
    assert result.code == 0
    lines = result.out.split("\n")
    assert len(lines) == 7
    assert [bool(line) for line in (lines[1], lines[4], lines[6])] == [False] * 3
    alone = headloom_process("translate", runs / "translation", "--beam", 2, stdin=b"the dog\n")
    assert alone.out == lines[2] + "\n"


def test_translate_nothing(headloom_process: Command, runs: Path) -> None:
    for text, lines in ((b"", 0), (b"\n", 1), (b"\n\n", 2)):
        result = headloom_process("translate", runs / "dates", "--beam", 1, stdin=text)
        assert (result.code, result.out) == (0, "\n" * lines)


def test_translate_into_a_reader_that_leaves(loaded: Loaded, runs: Path) -> None:
    ours, theirs = os.pipe()
    with loaded.start("translate", runs / "translation", "--beam", 1, stdin=ours) as process:
        process.stdout.close()
        os.write(theirs, b"the cat\n" * 50)
        os.close(theirs)
        assert process.wait() == 0
        assert process.errors() == b""
    os.close(ours)


def test_a_finished_run_given_again_says_so(headloom_main: Command, runs: Path, data: Path) -> None:
    said = headloom_main("train", data / "language.toml", "--run", runs / "language").err
    assert "Finished already, after 3 steps." in said
    assert "To train again: --run FOLDER; further: a larger training.max_steps. Run: " in said


def test_generate(headloom_main: Command, runs: Path) -> None:
    arguments = ("generate", runs / "language", "--prompt", "the c", "--length", 12)
    first = headloom_main(*arguments, "--json")
    assert first.code == 0
    report = last_json(first.out)
    assert report["prompt"] == "the c"
    assert len(report["text"]) <= 12
    assert headloom_main(*arguments).out == "the c" + report["text"] + "\n"
    texts = {headloom_main(*arguments, "--seed", seed).out for seed in range(5)}
    assert len(texts) > 1
    cold = {headloom_main(*arguments, "--seed", s, "--temperature", 0).out for s in range(3)}
    assert len(cold) == 1
    # A nucleus of one token is the likeliest; one of all is what is drawn without it.
    assert {headloom_main(*arguments, "--seed", s, "--top-p", 1e-9).out for s in range(3)} == cold
    assert headloom_main(*arguments, "--top-p", 1).out == headloom_main(*arguments).out
    for share in (0, -1, 1.5, "nan", "inf"):
        line = headloom_main(*arguments, "--top-p", share).one_line()
        assert f"--top-p {float(share)}: expected a number above 0, 1 at most." in line


@pytest.mark.parametrize(
    ("task", "measures"),
    [
        ("dates", {"exact_match", "loss"}),
        ("translation", {"bleu", "bleu_lowercase_tokenised", "chrf", "ter", "loss", "signatures"}),
        ("language", {"bits_per_byte", "loss", "perplexity", "accuracy"}),
    ],
)
def test_evaluate(headloom_main: Command, runs: Path, task: str, measures: set[str]) -> None:
    result = headloom_main("evaluate", runs / task, "--beam", 1, "--json")
    assert result.code == 0
    report = last_json(result.out)
    assert measures <= report.keys()
    assert report["step"] in (2, 3)
    assert report["loss"] > 0
    low, high = report["intervals"].get("loss", (0, 99))
    assert low <= report["loss"] <= high
    lines = headloom_main("evaluate", runs / task, "--beam", 1).out.splitlines()
    (line,) = (line for line in lines if line.startswith("loss, nats"))
    assert f"{report['loss']:.4f}" in line


def test_trace(headloom_main: Command, runs: Path, tmp_path: Path) -> None:
    path = tmp_path / "t.loom"
    arguments = ("trace", runs / "translation", "--text", "the cat", "-o", path)
    result = headloom_main(*arguments, "--target", "das cat", "--keep", 2, "--json")
    assert result.code == 0
    assert last_json(result.out)["layers"] == 3
    opened = headloom.open(path)
    assert opened.sequences["source"][-1] == "<end>"
    assert opened.sequences["target"][0] == "<start>"
    assert opened.layer("cross", 0).graph.k == 2
    again = headloom_main(*arguments)
    assert again.code == 2
    assert "exists already" in again.err
    assert headloom_main(*arguments, "--overwrite").code == 0


def test_trace_of_a_language_model(headloom_main: Command, runs: Path, tmp_path: Path) -> None:
    path = tmp_path / "t.loom"
    assert headloom_main("trace", runs / "language", "--text", "the", "-o", path).code == 0
    assert headloom.open(path).tokens == ["t", "h", "e"]


def test_paths_with_brackets_are_shown_as_they_are(
    headloom_main: Command, data: Path, runs: Path, tmp_path: Path
) -> None:
    """Square brackets are markup to the console, and a slash after one would be an error."""
    path = tmp_path / "[" / "bold] t.loom"
    path.parent.mkdir()
    result = headloom_main("trace", runs / "language", "--text", "the", "-o", path)
    assert result.code == 0
    assert f"Trace: {path}\n" in result.err
    run = tmp_path / "[" / "b] [red]"
    result = headloom_main("train", data / "language.toml", "--run", run)
    assert result.code == 0
    assert f"Run: {run}\n" in result.err


def test_export(headloom_main: Command, trace_path: Path, tmp_path: Path) -> None:
    files = {
        "--html": tmp_path / "p.html",
        "--picture": tmp_path / "p.png",
        "--parquet": tmp_path / "p.parquet",
        "--graphml": tmp_path / "p.graphml",
    }
    options = [part for pair in files.items() for part in pair]
    result = headloom_main("export", trace_path, *options, "--layer", 2, "--head", 1)
    assert result.code == 0, result.err
    assert result.out.splitlines() == [str(file) for file in files.values()]
    assert all(file.stat().st_size > 0 for file in files.values())
    assert files["--picture"].read_bytes().startswith(b"\x89PNG")


def test_a_head_to_export_needs_its_layer(
    headloom_main: Command, trace_path: Path, tmp_path: Path
) -> None:
    for option in ("--picture", "--graphml"):
        result = headloom_main("export", trace_path, option, tmp_path / "p.png", "--head", "1")
        assert result.one_line() == "headloom: --head 1 of no layer; give its --layer too."
    assert not list(tmp_path.iterdir())


def test_json_of_a_comparison_has_as_many_rows_as_the_table(
    headloom_main: Command, runs: Path, tmp_path: Path, trace_path: Path
) -> None:
    other = tmp_path / "dog.loom"
    words = ("trace", runs / "translation", "--text", "the dog", "-o", other)
    assert headloom_main(*words).code == 0
    for options, rows in (((), 6), (("--limit", "2"), 2), (("--limit", "0"), 0)):
        result = headloom_main("compare", trace_path, other, "--kept", *options, "--json")
        assert result.code == 0, result.err
        content = json.loads(result.out)
        assert len(content["heads"]) == rows
    words = ("trace", runs / "translation", "--text", "the", "-o", tmp_path / "the.loom")
    assert headloom_main(*words).code == 0
    line = headloom_main("compare", trace_path, tmp_path / "the.loom").one_line()
    assert f"in {trace_path}, " in line and f"in {tmp_path / 'the.loom'}. Compare traces" in line
    assert "JSON is whole" not in headloom_main("compare", "--help").out
    for verb in ("rollout", "flow", "relevance", "clusters", "query", "align"):
        assert "JSON is whole" in " ".join(headloom_main(verb, "--help").out.split())


def test_ctrl_c_says_that_a_training_goes_on(loaded: Loaded, data: Path, tmp_path: Path) -> None:
    run = tmp_path / "run"
    command = ("train", data / "language.toml", "--run", run)
    with loaded.start(*command, "--set", "training.max_steps=1000000") as process:
        while not (run / "checkpoint.safetensors").exists():
            assert process.poll() is None, process.communicate()
            time.sleep(0.05)
        process.send_signal(signal.SIGINT)
        _, errors = process.communicate()
    assert process.returncode == 130
    assert errors.decode().splitlines()[-1] == (
        "headloom: stopped. The same command goes on with what is kept."
    )
