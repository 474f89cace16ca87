"""`headloom evaluate`: one model with intervals, two with a test, files of translations,
refusals."""

from __future__ import annotations

import json
import shutil
from pathlib import Path
from typing import Any

import pytest
from tests.cli.conftest import Command, assert_one_line

from headloom.cli.output import _Lines

SENTENCES = [f"der Hund Nummer {number} sieht den Park und die Katze ." for number in range(30)]


def last_json(text: str) -> dict[str, Any]:
    return json.loads(text)


@pytest.fixture
def files(tmp_path: Path) -> dict[str, Path]:
    """A reference; translations with a few and with many words wrong; one that is too short."""
    texts = {
        "reference": SENTENCES,
        "good": [line.replace("Park", "Wald") if i % 6 == 0 else line
                 for i, line in enumerate(SENTENCES)],
        "bad": [line.replace("die Katze", "der Kater") if i % 2 else line
                for i, line in enumerate(SENTENCES)],
        "short": SENTENCES[:-1],
    }  # fmt: skip
    for name, lines in texts.items():
        (tmp_path / f"{name}.de").write_text("\n".join(lines) + "\n")
    (tmp_path / "empty.de").write_text("\n")
    return {name: tmp_path / f"{name}.de" for name in (*texts, "empty")}


def test_two_files(headloom_main: Command, files: dict[str, Path]) -> None:
    given = ("evaluate", files["bad"], files["good"], "--reference", files["reference"])
    result = headloom_main(*given, "--json")
    assert result.code == 0
    report = last_json(result.out)
    first, second = report["first"]["bleu"], report["second"]["bleu"]
    compared = report["comparison"]["bleu"]
    assert compared["difference"] == pytest.approx(second - first)
    assert compared["interval"][0] <= second - first <= compared["interval"][1]
    assert first < second
    assert compared["p"] < 0.02
    assert report["resampling"]["resamples"] == 1_000
    assert report["in_words"].startswith(f"{files['good']} is better than {files['bad']}: BLEU")
    assert headloom_main(*given, "--json").out == result.out
    out = headloom_main(*given).out
    assert report["in_words"] in out
    assert f"p = {compared['p']:.4f}" in out
    assert "case:mixed" in out
    table = [line for line in out.splitlines() if line.startswith(("measure", "BLEU  "))]
    assert [len(line) <= 80 for line in table] == [True, True]
    assert f"{first:.2f}" in table[1]
    assert f"{second:.2f}" in table[1]


def test_one_file(headloom_main: Command, files: dict[str, Path]) -> None:
    result = headloom_main(
        "evaluate", files["reference"], "--reference", files["reference"], "--json"
    )
    report = last_json(result.out)
    assert report["bleu"] == pytest.approx(100)
    assert report["ter"] == 0
    assert report["intervals"]["chrf"] == pytest.approx([100, 100])


def test_a_run_and_a_file(headloom_main: Command, runs: Path, data: Path, tmp_path: Path) -> None:
    """The right translations against those of an untrained model."""
    pairs = (data / "valid.tsv").read_text().splitlines()
    (tmp_path / "right.de").write_text("".join(line.split("\t")[1] + "\n" for line in pairs))
    for order, split in enumerate(("test", "valid")):
        two = [runs / "translation", tmp_path / "right.de"]
        options = ("--split", split, "--beam", 1, "--json")
        result = headloom_main("evaluate", *(two[::-1] if order else two), *options)
        report = last_json(result.out)
        right, run = ("first", "second") if order else ("second", "first")
        assert report[right]["bleu"] == pytest.approx(100)
        assert report[right]["split"] == report[run]["split"] == split
        assert report[run]["step"] in (2, 3)
        assert report["not_compared"] == ["loss, nats"]
        assert report[run]["loss"] > 0


def test_two_runs(headloom_main: Command, runs: Path) -> None:
    result = headloom_main("evaluate", runs / "dates", runs / "dates", "--beam", 1, "--json")
    report = last_json(result.out)
    assert report["comparison"]["exact_match"]["p"] == 1
    assert report["comparison"]["loss"]["p"] == 1
    assert report["first"] == report["second"]


def long_text(data: Path, folder: Path) -> Path:
    """One of which more than three stretches are held out."""
    path = folder / "long.en"
    path.write_text((data / "train.en").read_text() * 18)
    return path


def test_language_models_with_other_windows(
    headloom_main: Command, data: Path, tmp_path: Path
) -> None:
    """All numbers are of the stretches that both predict whole."""
    text = long_text(data, tmp_path)
    for block in (8, 150):
        options = ("--set", f'task.file="{text}"', "--set", f"task.block={block}")
        headloom_main("train", data / "language.toml", "--run", tmp_path / str(block), *options)
    result = headloom_main("evaluate", tmp_path / "8", tmp_path / "150", "--json")
    report = last_json(result.out)
    first, second = report["first"], report["second"]
    assert first["tokens"] == second["tokens"] == first["bytes"] == second["bytes"] == 767
    for name, compared in report["comparison"].items():
        assert compared["difference"] == pytest.approx(second[name] - first[name], abs=1e-12)
    table = headloom_main("evaluate", tmp_path / "8", tmp_path / "150").out
    assert table.count("767 tokens, 767 bytes") == 2


def test_language_models_with_other_vocabularies(
    headloom_main: Command, runs: Path, data: Path, tmp_path: Path
) -> None:
    """Only bits per byte can be compared: the tokens are not the same."""
    options = ("--set", 'task.tokens="pieces"', "--set", "task.vocabulary=300")
    headloom_main("train", data / "language.toml", "--run", tmp_path / "pieces", *options)
    assert_one_line(
        headloom_main("evaluate", runs / "language", tmp_path / "pieces"),
        "have no 256 characters of the held-out text in common",
    )
    long = ("--set", f'task.file="{long_text(data, tmp_path)}"')
    for name, more in {"pieces": options, "characters": ()}.items():
        headloom_main(
            "train", data / "language.toml", "--run", tmp_path / f"long-{name}", *long, *more
        )
    words = ("evaluate", tmp_path / "long-characters", tmp_path / "long-pieces")
    report = last_json(headloom_main(*words, "--json").out)
    assert list(report["comparison"]) == ["bits_per_byte"]
    assert report["not_compared"] == ["loss, nats", "perplexity", "right tokens"]
    assert "Not comparable: loss, nats, perplexity, right tokens.\n" in headloom_main(*words).out
    assert report["first"]["tokens"] != report["second"]["tokens"]


def test_what_cannot_be_compared(
    headloom_main: Command, runs: Path, data: Path, files: dict[str, Path], tmp_path: Path
) -> None:
    headloom_main(
        "train", data / "dates.toml", "--run", tmp_path / "seed", "--set", "training.seed=2"
    )
    cases: list[tuple[tuple[Any, ...], str]] = [
        ((runs / "dates", tmp_path / "seed"), "differ (drawn with training.seed 1 and 2)"),
        ((runs / "dates", runs / "language"), "differ (task.kind dates and language)"),
        (
            (runs / "language", files["good"]),
            "continues text (headloom predict); it does not translate",
        ),
        ((runs / "translation", files["good"]), "has 30 lines, the test data of"),
        ((files["good"],), "Add --reference FILE"),
        ((files["good"], "--reference", files["short"]), "short.de 29; expected a translation"),
        ((files["good"], "--reference", files["empty"]), "empty.de: the file is empty"),
        ((files["empty"], "--reference", files["good"]), "empty.de: the file is empty"),
        ((files["good"], tmp_path / "no", "--reference", files["good"]), "no such run"),
        ((runs / "dates", "--reference", files["good"]), "a run has its own held-out data"),
        ((runs / "dates", "--data", tmp_path), "data that it draws. Leave it out"),
    ]
    for arguments, message in cases:
        assert_one_line(headloom_main("evaluate", *arguments), message)


def test_a_run_finds_its_data_from_any_folder(
    headloom_main: Command, data: Path, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    """Where they were, by an absolute path; else beside the run, moved with it; else by --data."""
    project, elsewhere = tmp_path / "project", tmp_path / "elsewhere"
    elsewhere.mkdir()
    shutil.copytree(data, project / "texts", ignore=shutil.ignore_patterns("runs", "*.toml"))
    monkeypatch.chdir(project)
    configured = (data / "translation.toml").read_text().replace(str(data), "texts")
    (project / "c.toml").write_text(configured)
    assert headloom_main("train", "c.toml", "--run", "run").code == 0

    def measured(*arguments: object) -> dict[str, Any]:
        result = headloom_main("evaluate", *arguments, "--json")
        assert result.code == 0, result.err
        return {name: last_json(result.out)[name] for name in ("bleu", "loss", "intervals")}

    expected = measured("run")
    monkeypatch.chdir(elsewhere)
    assert measured(project / "run") == expected
    for name in ("train.en", "train.de"):  # a translator is measured on the test data alone
        (project / "texts" / name).unlink()
    assert measured(project / "run", "--split", "valid").keys() == expected.keys()
    moved = project.rename(tmp_path / "moved")
    assert measured(moved / "run") == expected
    texts = (moved / "texts").rename(tmp_path / "texts")
    line = headloom_main("evaluate", moved / "run").one_line()
    assert "valid.tsv: no such text (task.folder says where, in headloom evaluate --data)" in line
    assert measured(moved / "run", "--data", texts) == expected
    assert headloom_main("trace", moved / "run", "--text", "the cat", "-o", "a.loom").code == 0


def test_progress_where_there_is_no_terminal(
    capsys: pytest.CaptureFixture[str], monkeypatch: pytest.MonkeyPatch
) -> None:
    """The first line after a second, then one in ten."""
    clock = [100.0]
    monkeypatch.setattr("headloom.cli.output.time.monotonic", lambda: clock[0])
    lines = _Lines("starting")
    for second in range(25):
        clock[0] = 100.0 + second
        lines(second, 1_000, "measuring")
    assert capsys.readouterr().err.splitlines() == [
        "measuring: 1 of 1,000", "measuring: 11 of 1,000", "measuring: 21 of 1,000",
    ]  # fmt: skip
