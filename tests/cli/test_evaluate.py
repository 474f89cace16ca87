"""`headloom evaluate`: one run with intervals, two with a test, refusals."""

from __future__ import annotations

import shutil
from pathlib import Path
from typing import Any

import pytest
from tests.cli.conftest import Command, assert_one_line

from headloom.cli.output import progress_bar


def test_one_run_and_two(headloom_main: Command, runs: Path, data: Path, tmp_path: Path) -> None:
    run = runs / "translation"
    report = headloom_main("evaluate", run, "--beam", 1, "--json").json()
    assert {
        "bleu",
        "chrf",
        "ter",
        "exact_match",
        "loss",
        "intervals",
        "signatures",
    } <= report.keys()
    assert "case:mixed" in headloom_main("evaluate", run, "--beam", 1).out
    report = headloom_main("evaluate", run, run, "--beam", 1, "--json").json()
    assert report["comparison"]["bleu"]["p"] == report["comparison"]["loss"]["p"] == 1
    assert report["first"] == report["second"]
    assert report["in_words"] == f"{run} and {run} are equal by BLEU."
    assert report["resampling"]["resamples"] == 1_000
    longer, other = tmp_path / "dates", runs / "dates"
    options = ("--set", "training.max_steps=60", "--set", "training.peak_learning_rate=0.01")
    headloom_main("train", data / "dates.toml", "--run", longer, *options)
    given = ("evaluate", other, longer, "--beam", 1)
    result = headloom_main(*given, "--json")
    report, out = result.json(), headloom_main(*given).out
    assert headloom_main(*given, "--json").out == result.out
    for name, compared in report["comparison"].items():
        difference = report["second"][name] - report["first"][name]
        assert compared["difference"] == pytest.approx(difference)
        assert compared["interval"][0] <= difference <= compared["interval"][1]
    assert report["comparison"]["loss"]["difference"] < 0
    assert report["in_words"] in out
    table = [line for line in out.splitlines() if line.startswith(("measure", "loss,"))]
    assert len(table) == 2 and all(len(line) <= 80 for line in table)
    assert f"{report['first']['loss']:.4f}" in table[1]


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
    report = headloom_main("evaluate", tmp_path / "8", tmp_path / "150", "--json").json()
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
        "have no 256 characters of held-out text in common",
    )
    long = ("--set", f'task.file="{long_text(data, tmp_path)}"')
    for name, more in {"pieces": options, "characters": ()}.items():
        headloom_main(
            "train", data / "language.toml", "--run", tmp_path / f"long-{name}", *long, *more
        )
    words = ("evaluate", tmp_path / "long-characters", tmp_path / "long-pieces")
    report = headloom_main(*words, "--json").json()
    assert list(report["comparison"]) == ["bits_per_byte"]
    assert report["not_compared"] == ["loss, nats", "perplexity", "right tokens"]
    assert "Not comparable: loss, nats, perplexity, right tokens.\n" in headloom_main(*words).out
    assert report["first"]["tokens"] != report["second"]["tokens"]


def test_what_cannot_be_compared(
    headloom_main: Command, runs: Path, data: Path, tmp_path: Path
) -> None:
    headloom_main(
        "train", data / "dates.toml", "--run", tmp_path / "seed", "--set", "training.seed=2"
    )
    cases: list[tuple[tuple[Any, ...], str]] = [
        ((runs / "dates", tmp_path / "seed"), "differ (drawn with training.seed 1 and 2)"),
        ((runs / "dates", runs / "language"), "differ (task.kind dates and language)"),
        ((runs / "dates", tmp_path / "no"), "no such run"),
        ((runs / "dates", "--data", tmp_path), "generated data. Leave data out"),
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
        report = headloom_main("evaluate", *arguments, "--json").json()
        return {name: report[name] for name in ("bleu", "loss", "intervals")}

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
    assert "valid.tsv: no such text (task.folder; or --data of headloom evaluate)" in line
    assert measured(moved / "run", "--data", texts) == expected
    assert headloom_main("trace", moved / "run", "--text", "the cat", "-o", "a.loom").code == 0


def test_progress_where_there_is_no_terminal(
    capsys: pytest.CaptureFixture[str], monkeypatch: pytest.MonkeyPatch
) -> None:
    """The first line after a second, then one in ten."""
    clock = [100.0]
    monkeypatch.setattr("headloom.cli.output.time.monotonic", lambda: clock[0])
    with progress_bar("starting", lines=True) as tell:
        for second in range(25):
            clock[0] = 100.0 + second
            tell(second, 1_000, "measuring")
    assert capsys.readouterr().err.splitlines() == [
        "measuring: 1 of 1,000", "measuring: 11 of 1,000", "measuring: 21 of 1,000",
    ]  # fmt: skip
