"""`headloom.train`: the same bits as the command; data in memory; keywords; ends; callbacks."""

from __future__ import annotations

import json
import runpy
from collections.abc import Iterator
from pathlib import Path
from typing import Any

import numpy as np
import pandas
import pytest
import torch
from tests.cli.conftest import Command
from tests.training.conftest import TEXT, assert_same, everything, toml

import headloom
from headloom.errors import HeadloomError, InputError
from headloom.formats.files import JsonObject
from headloom.training import config, model_sections, sections
from headloom.training.config import RunConfig, check_config
from headloom.training.model_sections import Section, described
from headloom.training.optimisers import learning_rate
from headloom.training.settings import canonical_names, sections_of, with_settings

TINY: dict[str, Any] = {
    "width": 16, "heads": 2, "feed_forward": 16, "n_layers": 1, "dropout": 0.1, "max_steps": 6,
    "validate_every": 3, "batch_tokens": 64, "warmup": 2,
}  # fmt: skip
FRAME = pandas.DataFrame(
    {"review": ["so good", "so bad", "good", "bad , bad"] * 15, "stars": ["for", "against"] * 30}
)
PAIRS = [(f"the cat {n}", f"le chat {n}") for n in range(16)]
ENGLISH = ["the cat sleeps", "the dog eats", "the bird sings", "the cat eats"]


def tiny(**training: Any) -> RunConfig:
    """A language model on a file of this folder."""
    Path("text.txt").write_text(TEXT)
    keys = {"max_steps": 12, "batch_tokens": 32, "warmup": 2, "validate_every": 4}
    sizes = {"width": 16, "heads": 2, "feed_forward": 16, "decoder_layers": 1, "dropout": 0.2}
    task = {"kind": "language", "file": "text.txt", "block": 8}
    return check_config({"task": task, "model": sizes, "training": keys | training}, "test")


@pytest.fixture(autouse=True)
def in_a_folder(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> Iterator[None]:
    """Runs without a name are in it; one thread."""
    monkeypatch.chdir(tmp_path)
    before = torch.get_num_threads()
    torch.set_num_threads(1)
    yield
    torch.set_num_threads(before)


def learned(run: Path) -> object:
    """All that a run learned, without where its data are."""
    tensors, (_, *others) = everything(run)
    return {name: tensor.tolist() for name, tensor in tensors.items()}, others


def test_a_file_gives_the_same_bits_by_the_command(headloom_main: Command) -> None:
    settings = tiny()
    Path("mine.toml").write_text(toml(settings))
    printed = headloom_main("train", "mine.toml", "--run", "command", "--threads", 1, "--json")
    run = headloom.train("mine.toml")
    assert run.path == Path("runs/mine")
    headloom.train(settings, run="object")
    sizes = {"model": dict(settings.model), "task": dict(settings.task)}
    headloom.train(sizes, run="dict", **dict(settings.training))
    parts = headloom.TrainingConfig(**dict(settings.training))
    headloom.train(parts, run="section", task=settings.task, model=settings.model)
    for other in ("runs/mine", "object", "dict", "section"):
        assert_same(Path("command"), Path(other))
    outcome = printed.json()
    assert outcome | {"run": "", "train_seconds": 0} == run.outcome | {
        "run": "",
        "train_seconds": 0,
    }
    assert (outcome["steps"], outcome["reason"]) == (12, "max_steps")
    again = headloom_main("train", "mine.toml", "--run", "command")
    assert "Finished already, after 12 steps" in again.err


@pytest.mark.parametrize(
    ("data", "end", "keys"),
    [
        (FRAME, "csv", {"text": "review", "label": "stars"}),
        (FRAME, "parquet", {"task": "classification", "text": "review", "label": "stars"}),
        (PAIRS, "tsv", {"vocabulary": 300}),
        (ENGLISH * 9, "txt", {"task": "lm"}),
        (
            (np.arange(40 * 36).reshape(40, 6, 6) % 9 / 8, np.arange(40) % 2),
            "npz",
            {"patch": (3, 3)},
        ),
    ],
    ids=["frame", "parquet", "pairs", "texts", "images"],
)
def test_data_in_memory_give_the_same_bits_as_files(
    data: Any, end: str, keys: JsonObject, headloom_main: Command
) -> None:
    run = headloom.train(data, run="memory", **TINY, **keys)
    file = Path(f"data.{end}")
    if end == "csv":
        data.to_csv(file, index=False)
    elif end == "parquet":
        data.to_parquet(file)
    elif end == "tsv":
        file.write_text("".join(f"{source}\t{target}\n" for source, target in data))
    elif end == "txt":
        file.write_text("\n".join(data) + "\n")
    else:
        np.savez(file, images=(data[0] * 8 / 8), labels=data[1])
    own = run.config.model_dump(mode="json", exclude_unset=True)
    place = {"file": str(file)} if end == "txt" else {"folder": ".", "train": file.name}
    own["task"] |= place
    Path("file.toml").write_text(toml(check_config(own, "test")))
    headloom_main("train", "file.toml", "--run", "files", "--threads", 1)
    assert learned(Path("memory")) == learned(Path("files"))
    assert headloom.train(file, run="python", **TINY, **keys).outcome["steps"] == 6
    assert learned(Path("python")) == learned(Path("files"))


def test_held_out_data_stay_held_out() -> None:
    run = headloom.train(PAIRS[:12], valid=PAIRS[12:14], test_data=PAIRS[14:], run="held", **TINY)
    parts = {"train": PAIRS[:12], "valid": PAIRS[12:14], "test": PAIRS[14:]}
    for part, pairs in parts.items():
        assert getattr(run.config.task, part) == [f"{part}.jsonl"]
        lines = Path(f"held/data/{part}.jsonl").read_text().splitlines()
        assert [tuple(json.loads(line).values()) for line in lines] == pairs


def test_folders_of_runs_and_going_on(
    headloom_main: Command, monkeypatch: pytest.MonkeyPatch
) -> None:
    first = headloom.train(PAIRS, vocabulary=300, **TINY)
    seconds = first.outcome["train_seconds"]
    assert first.path == Path("runs/translation")
    same = headloom.train(PAIRS, vocabulary=300, **TINY)
    assert (same.path, same.outcome["train_seconds"]) == (first.path, seconds)  # at once
    other = headloom.train(PAIRS[1:], vocabulary=300, **TINY)
    assert other.path == Path("runs/translation-2")
    with pytest.raises(InputError, match="this run was trained on other data"):
        headloom.train(PAIRS[1:], run=first.path, vocabulary=300, **TINY)
    assert headloom.train(first.path, max_steps=8).outcome["steps"] == 8
    Path("elsewhere").mkdir()
    Path("runs").rename("elsewhere/moved")
    monkeypatch.chdir("elsewhere")
    done = headloom_main("train", "moved/translation", "--set", "training.max_steps=9", "--json")
    assert done.json()["steps"] == 9
    straight = headloom.train(PAIRS, run="straight", vocabulary=300, **{**TINY, "max_steps": 9})
    assert learned(straight.path)[0] == learned(Path("moved/translation"))[0]  # type: ignore[index]
    for wrong in ({"heads": 3}, {"model": "graph"}, {"max_length": 1}, {"vocabulary": 3}):
        with pytest.raises(HeadloomError):
            headloom.train(PAIRS, run="deep/new", **{**TINY, **wrong})
        assert not Path("deep").exists()


def test_small_data() -> None:
    """What fits a notebook's cell is learned, or one error says what to do."""
    assert headloom.train(PAIRS, **TINY).outcome["steps"] == 6
    text = [f"the {a} {b}" for a in ("red", "big", "old") for b in ("cat", "dog", "car")]
    run = headloom.train(text, task="language-modeling", **TINY)
    assert run.config.task.kind == "language"
    assert headloom.train(FRAME[:6], text="review", label="stars", **TINY).outcome["steps"] == 6
    for data, message in (
        (PAIRS[:1], "one pair; give more"),
        (FRAME[:2], "has 1 example; expected 3.*Add some"),
        (["a b"], "Give more text, a larger task.valid_share or a smaller task.block"),
        ([("a", "b")] * 9, "is the only one"),
    ):
        kind = {} if "more" in message else {"task": "labels"}
        with pytest.raises(InputError, match=message):
            headloom.train(data, run="never", **TINY, **kind)
    assert not Path("never").exists()


def test_callbacks_hear_what_is_written() -> None:
    class Heard(headloom.Callback):
        steps = 0

        def stepped(self, position: Any, loss: float, rate: float) -> None:
            self.steps += 1

    heard, reports = Heard(), []
    run = headloom.train(tiny(), run="a", callbacks=[reports.append, heard])
    assert heard.steps == 12
    assert reports == run.metrics.to_dict("records") and len(reports) == 3
    with pytest.raises(InputError, match=r"expected a function of a report .* headloom\.Callback"):
        headloom.train(tiny(), run="b", callbacks=[Heard])
    with pytest.raises(InputError, match="callbacks need a single process"):
        headloom.train(tiny(), run="b", callbacks=[heard], processes=2)


def test_minutes_end_a_training_and_its_schedule() -> None:
    settings = tiny(max_steps=10**6, max_minutes=0.01, schedule="linear", validate_every=10**6)
    rates: list[float] = []

    class Rates(headloom.Callback):
        def stepped(self, position: Any, loss: float, rate: float) -> None:
            rates.append(rate)

    run = headloom.train(settings, run="a", callbacks=[Rates()])
    outcome = run.outcome
    assert outcome["reason"] == "max_minutes"
    assert 0.6 <= outcome["train_seconds"] < 60 and outcome["steps"] < 10**6
    assert rates[-1] < 0.3 * max(rates)
    later = headloom.train(run.path, max_minutes=0.02).outcome
    assert later["steps"] > outcome["steps"]
    with pytest.raises(InputError, match=r"training\.max_minutes was 0\.02, is 0\.01"):
        headloom.train(settings, run="a")
    rate = learning_rate(9, peak=1.0, warmup=0, last=100, schedule="linear", done=0.75)
    assert rate == pytest.approx(0.25)


@pytest.mark.parametrize(
    ("task", "settings", "section", "expected"),
    [
        ("lm", {"lr": 0.1}, "training", {"peak_learning_rate": 0.1}),
        ("lm", {"epochs": np.int64(3)}, "training", {"max_epochs": 3}),
        ("classify", {"time": "30s"}, "training", {"max_minutes": 0.5}),
        ("classify", {"max_time": 90}, "training", {"max_minutes": 1.5}),
        ("lm", {"batch_size": 4, "block": 8}, "training", {"batch_tokens": 32}),
        ("lm", {"num_layers": 2, "d_model": 8}, "model", {"decoder_layers": 2, "width": 8}),
        ("seq2seq", {"layers": 2}, "model", {"decoder_layers": 2, "encoder_layers": 2}),
        ("labels", {"n_layers": 2}, "model", {"layers": 2}),
        ("labels", {"task.max_length": 9}, "task", {"kind": "labels", "max_length": 9}),
    ],
)
def test_keywords_find_their_section(
    task: str, settings: JsonObject, section: str, expected: JsonObject
) -> None:
    assert (
        with_settings(sections_of({"task": task}), canonical_names(settings))[section] == expected
    )


@pytest.mark.parametrize(
    ("settings", "message"),
    [
        ({"lerning_rate": 1}, r"did you mean learning_rate \(training\.peak_learning_rate\)"),
        (
            {"max_length": 9},
            r"it is a key of task and of model\. Write task={\.\.\., 'max_length': 9} or",
        ),
        ({"batch_size": 9}, "such as batch_tokens=2048"),
        (
            {"steps": 1, "max_steps": 2},
            "max_steps means max_steps, which is given too|steps means max",
        ),
        ({"zzz": 9}, "no such key; there are accumulate, activation, "),
        ({"snapshot_every": 9}, "history_growth=1.5"),
    ],
)
def test_keywords_that_no_section_has(settings: JsonObject, message: str) -> None:
    with pytest.raises(InputError, match=message):
        with_settings(sections_of({"task": "labels"}), canonical_names(settings))


def test_every_key_is_described_once() -> None:
    """In its section, from which the tables of the page and the docstrings are made."""
    keys = runpy.run_path(str(Path(__file__).parents[2] / "scripts" / "keys.py"))
    page = keys["filled"](keys["PAGE"].read_text("utf-8"))
    assert "| `peak_learning_rate` | `0.001` |" in page and "<!-- end -->" in page
    assert "max_minutes (none): limit of training time" in str(headloom.TrainingConfig.__doc__)
    every = [each for m in (config, sections, model_sections) for each in vars(m).values()]
    for section in every:
        if isinstance(section, type) and issubclass(section, Section):
            if section is model_sections.RotaryScalingConfig:
                continue
            names = {name for name, _, _ in described(section)} | {"kind"}
            assert names >= set(section.model_fields), section
