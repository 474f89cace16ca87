"""Labelled texts: how they are read and drawn, and the line that says what is wrong."""

from __future__ import annotations

import gzip
from collections import Counter
from pathlib import Path

import pytest

from headloom.errors import InputError
from headloom.training.tasks.labelled import check_labels, drawn_split, read_labelled


def test_lines_with_and_without_an_id_plain_and_compressed(tmp_path: Path) -> None:
    (tmp_path / "two.tsv").write_text("pos\ta good film\n\nneg\ta bad one\n")
    (tmp_path / "three.tsv.gz").write_bytes(gzip.compress(b"pos\t17\ta good film\nneg\t18\tbad"))
    assert read_labelled(tmp_path / "two.tsv") == [("pos", "a good film"), ("neg", "a bad one")]
    assert read_labelled(tmp_path / "three.tsv.gz") == [("pos", "a good film"), ("neg", "bad")]


def test_a_folder_a_class(tmp_path: Path) -> None:
    for name, text in (("neg/b.txt", "bad"), ("neg/a.txt", "worse\nfilm"), ("pos/a.txt", "good")):
        (tmp_path / name).parent.mkdir(exist_ok=True)
        (tmp_path / name).write_text(text)
    (tmp_path / "README").write_text("no class")
    expected = [("neg", "worse\nfilm"), ("neg", "bad"), ("pos", "good")]
    assert read_labelled(tmp_path) == expected


@pytest.mark.parametrize(
    ("content", "message"),
    [
        (b"pos good", "line 1 has 0 tabs; expected label TAB text, or label TAB id TAB text"),
        (b"a\tb\tc\td", "line 1 has 3 tabs; expected label TAB text"),
        (b"a\tb\nc\td\te", "line 2 has 2 tabs; expected label TAB text"),
        (b"a\tb\rc\td\r", "its lines end by carriage returns (CR) alone; expected line feeds"),
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
    with pytest.raises(InputError, match="x: the class 'rare' has 2 examples; expected 3, one for"):
        drawn_split(labels[1:], {"test": 0.4, "valid": 0.4}, seed=1, source="x")


def test_labels_that_are_no_classes_and_classes_without_examples() -> None:
    labels = ["a", "c", "c"]
    with pytest.raises(InputError, match=r"t\.tsv: unknown label 'c'; the model knows 'a', 'b'"):
        check_labels(labels, ["a", "b"], "t.tsv", all_there=False)
    with pytest.raises(InputError, match=r"t\.tsv: the class 'b' has no examples"):
        check_labels(labels, ["a", "b", "c"], "t.tsv", all_there=True)
    check_labels(labels, ["a", "b", "c"], "t.tsv", all_there=False)
