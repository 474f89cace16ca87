"""The task of labels: what is read, learned, measured and classified."""

from __future__ import annotations

import gzip
import json
import math
from collections import Counter
from pathlib import Path
from typing import Any

import pytest
from tests.training.conftest import measures_of

from headloom.errors import DataError, InputError
from headloom.training.config import RunConfig, check_config
from headloom.training.inference import classify, open_run
from headloom.training.loop import train
from headloom.training.progress import Callback
from headloom.training.tasks import make_task
from headloom.training.tasks.labels import LabelledTexts, LabelsTask, drawn_split, read_labelled

GOOD = ["good", "fine", "witty", "warm"]
BAD = ["bad", "dull", "flat", "cold"]
MIDDLE = ["the film is {}", "a {} story", "so {} , so long", "they call it {}"]


def lines(count: int = 60) -> str:
    """Two classes that one word decides."""
    rows = []
    for number in range(count):
        words = GOOD if number % 2 else BAD
        text = MIDDLE[number // 8 % 4].format(words[number // 2 % 4])
        rows.append(f"{'pos' if number % 2 else 'neg'}\t{text}")
    return "\n".join(rows) + "\n"


def config_of(folder: Path, task: dict[str, Any] | None = None, **model: Any) -> RunConfig:
    (folder / "all.tsv").write_text(lines())
    return check_config(
        {
            "task": {"kind": "labels", "folder": str(folder), "train": "all.tsv", **(task or {})},
            "model": {"width": 16, "heads": 2, "feed_forward": 16, "layers": 1, "dropout": 0.0,
                      **model},
            "training": {"max_steps": 120, "batch_tokens": 128, "warmup": 5, "validate_every": 30,
                         "checkpoint_every": 30, "label_smoothing": 0.0,
                         "peak_learning_rate": 5e-3},
        },
        "test",
    )  # fmt: skip


def task_of(config: RunConfig) -> LabelsTask:
    task = make_task(config)
    assert isinstance(task, LabelsTask)
    return task


def test_batches_hold_each_training_text_once_an_epoch(tmp_path: Path) -> None:
    task = task_of(config_of(tmp_path))
    assert task.description.facts["classes"] == ["neg", "pos"]
    plans = task.plan_epoch(0, 64)
    assert sorted(place for plan in plans for place in plan) == list(range(48))
    assert plans != task.plan_epoch(1, 64)
    for plan in plans:
        batch = task.batch(plan)
        assert batch.inputs["tokens"].numel() <= 64
        for place, ids, target in zip(plan, batch.inputs["tokens"], batch.targets, strict=True):
            text = task.texts["train"].texts[place]
            assert ids[0] == task.vocabulary.start
            assert task.vocabulary.token_strings(ids[ids != 0][1:].tolist()) == text.split()
            assert task.classes[target] == task.texts["train"].labels[place]


def test_unknown_labels_and_classes_without_examples(tmp_path: Path) -> None:
    (tmp_path / "t.tsv").write_text("pos\twarm\nmixed\tso so\n")
    with pytest.raises(InputError, match=r"t\.tsv: unknown label 'mixed'; the model knows 'neg',"):
        make_task(config_of(tmp_path, {"test": "t.tsv"}))
    config = config_of(tmp_path)
    known = make_task(config).description
    known.facts["classes"].append("mixed")
    with pytest.raises(InputError, match=r"all\.tsv: the class 'mixed' has no examples"):
        make_task(config, known)
    (tmp_path / "one.tsv").write_text("pos\twarm\n" * 5)
    with pytest.raises(InputError, match="the class 'pos' has no examples, or is the only one"):
        make_task(config_of(tmp_path, {"train": "one.tsv"}))


@pytest.mark.parametrize("pooling", ["mean", "first", "max"])
def test_a_run_learns_is_measured_and_classifies(tmp_path: Path, pooling: str) -> None:
    folder = tmp_path / "run"
    train(config_of(tmp_path, pooling=pooling), folder, Callback())
    assert json.loads((folder / "data.json").read_text())["classes"] == ["neg", "pos"]
    run = open_run(folder)
    measures = measures_of(run, "test")
    assert (measures["split"], measures["examples"]) == ("test", 6)
    assert measures["accuracy"] == measures["macro_f1"] == 1.0
    good, nothing, bad = classify(run.model, run.data, ["A warm film!", " ", "a flat film"])
    assert (good.label, nothing.label, bad["label"]) == ("pos", None, "neg")
    assert good.score == good["score"] == max(good.probabilities.values()) > 0.5
    assert math.isclose(sum(good.probabilities.values()), 1.0)
    # The loss is that of the probabilities, text by text.
    task = make_task(run.config, run.data)
    assert isinstance(task, LabelsTask)
    nats = [
        -math.log(classify(run.model, run.data, [text])[0].probabilities[label])
        for label, text in zip(task.texts["test"].labels, task.texts["test"].texts, strict=True)
    ]
    assert measures["loss"] == pytest.approx(sum(nats) / 6, rel=1e-5)


def test_a_run_says_which_of_its_files_is_missing(tmp_path: Path) -> None:
    folder, config = tmp_path / "run", config_of(tmp_path)
    train(config, folder, Callback())
    file = folder / "vocabulary.json"
    content = file.read_bytes()
    file.unlink()
    message = rf"{folder}: this run lacks its vocabulary\.json\. Put a copy back"
    with pytest.raises(DataError, match=message):
        open_run(folder)
    with pytest.raises(DataError, match=message):
        train(config, folder, Callback())
    file.write_bytes(content)
    (folder / "data.json").write_text('{"max_length": 512}')
    with pytest.raises(DataError, match=rf"{folder}: data\.json of this run names no classes"):
        open_run(folder)
    (folder / "data.json").write_text('{"classes": ["neg"], "max_length": 512}')
    with pytest.raises(DataError, match=rf"{folder}: data\.json of this run names 1 class;"):
        open_run(folder)


def test_other_texts_than_parts_were_drawn_from_are_refused(tmp_path: Path) -> None:
    """A line more, and the test has texts that were learned from."""
    config = config_of(tmp_path)
    task = task_of(config)
    (tmp_path / "all.tsv").write_text("pos\tone more\n" + lines())
    with pytest.raises(InputError, match=r"all\.tsv: this file has changed since the run started"):
        make_task(config, task.description)
    del task.description.facts["drawn_from"]  # as of a run that an earlier version began
    make_task(config, task.description)


def test_lines_with_and_without_an_id_plain_and_compressed(tmp_path: Path) -> None:
    (tmp_path / "two.tsv").write_text("pos\ta good film\n\nneg\ta bad one\n")
    (tmp_path / "three.tsv.gz").write_bytes(gzip.compress(b"pos\t17\ta good film\nneg\t18\tbad"))
    for name, last in (("two.tsv", "a bad one"), ("three.tsv.gz", "bad")):
        found = read_labelled(tmp_path / name)
        assert found == LabelledTexts(["pos", "neg"], ["a good film", last])


def test_a_folder_a_class(tmp_path: Path) -> None:
    for name, text in (("neg/b.txt", "bad"), ("neg/a.txt", "worse\nfilm"), ("pos/a.txt", "good")):
        (tmp_path / name).parent.mkdir(exist_ok=True)
        (tmp_path / name).write_text(text)
    (tmp_path / "README").write_text("no class")
    found = read_labelled(tmp_path)
    assert found == LabelledTexts(["neg", "neg", "pos"], ["worse\nfilm", "bad", "good"])


@pytest.mark.parametrize(
    ("content", "message"),
    [
        (b"pos good", "line 1 has 0 tabs; expected label TAB text, or label TAB id TAB text"),
        (b"a\tb\tc\td", "line 1 has 3 tabs; expected label TAB text"),
        (b"a\tb\nc\td\te", "line 2 has 2 tabs; expected label TAB text"),
        (b"a\tb\n\tc", "line 2 has 1 tabs; expected label TAB text"),
        (b"\n \n", "no labelled texts."),
    ],
)
def test_lines_that_are_no_examples(tmp_path: Path, content: bytes, message: str) -> None:
    path = tmp_path / "x.tsv"
    path.write_bytes(content)
    with pytest.raises(InputError) as caught:
        read_labelled(path)
    assert str(caught.value).startswith(f"{path}: {message}")


def test_a_drawn_split_has_every_class_in_proportion() -> None:
    labels = ["a" if place % 4 else "b" for place in range(200)]
    split = drawn_split(labels, {"test": 0.2, "valid": 0.1}, seed=3, source="x")
    counts = {part: Counter(labels[place] for place in own) for part, own in split.items()}
    assert counts["test"] == {"a": 30, "b": 10}
    assert counts["valid"] == {"a": 15, "b": 5}
    assert counts["train"] == {"a": 105, "b": 35}
    # Each example once, in order.
    assert sorted(place for own in split.values() for place in own) == list(range(200))
    assert split["test"] == sorted(split["test"])


def test_every_part_has_an_example_of_a_small_class() -> None:
    labels = ["rare"] * 3 + ["a"] * 90
    split = drawn_split(labels, {"test": 0.4, "valid": 0.4}, seed=1, source="x")
    assert all(any(labels[place] == "rare" for place in own) for own in split.values())
    with pytest.raises(InputError, match="x: class 'rare' has 2 examples; expected 3, one for"):
        drawn_split(labels[1:], {"test": 0.4, "valid": 0.4}, seed=1, source="x")
