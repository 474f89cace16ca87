"""Labelled texts: how they are read and drawn, and the line that says what is wrong."""

from __future__ import annotations

import gzip
from collections import Counter
from pathlib import Path

import pytest

from headloom.errors import DataError, InputError
from headloom.training.labelled import check_labels, drawn_split, read_labelled


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
        (b"pos good", "line 1 has 0 tabs; expected label TAB text, or label TAB id TAB text."),
        (b"a\tb\tc\td", "line 1 has 3 tabs; expected label TAB text"),
        (b"a\tb\nc\td\te", "line 2 has 2 tabs; expected 1, as in the lines before."),
        (
            b"a\tb\rc\td\r",
            "its lines end by carriage returns (CR) alone; expected line feeds (LF).",
        ),
        (b"a\tb\n\tc", "line 2 has no label. Fill it in, or remove it."),
        (b"a\tb\nc\t ", "line 2 has no text. Fill it in, or remove it."),
        (b"\n \n", "no labelled texts; the file is empty."),
    ],
)
def test_lines_that_are_no_examples(tmp_path: Path, content: bytes, message: str) -> None:
    path = tmp_path / "x.tsv"
    path.write_bytes(content)
    with pytest.raises(InputError) as caught:
        read_labelled(path)
    assert str(caught.value).startswith(f"{path}: {message}")


def test_what_cannot_be_read(tmp_path: Path) -> None:
    (tmp_path / "x.tsv.gz").write_bytes(b"a\tb")
    with pytest.raises(DataError, match=r"x\.tsv\.gz: damaged, or not compressed by gzip"):
        read_labelled(tmp_path / "x.tsv.gz")
    with pytest.raises(DataError, match="no such labelled texts"):
        read_labelled(tmp_path / "no.tsv")
    with pytest.raises(InputError, match="no folders in it; expected one for each class"):
        read_labelled(tmp_path)
    (tmp_path / "neg").mkdir()
    with pytest.raises(InputError, match=r"neg: the class 'neg' has no examples\. Put \.txt files"):
        read_labelled(tmp_path)
    (tmp_path / "neg" / "a.txt").write_text(" ")
    with pytest.raises(InputError, match=r"a\.txt: the text is empty"):
        read_labelled(tmp_path)


def test_a_drawn_split_has_every_class_in_proportion() -> None:
    examples = [("a" if place % 4 else "b", str(place)) for place in range(200)]
    split = drawn_split(examples, {"test": 0.2, "valid": 0.1}, seed=3, source="x")
    counts = {part: Counter(label for label, _ in own) for part, own in split.items()}
    assert counts["test"] == {"a": 30, "b": 10}
    assert counts["valid"] == {"a": 15, "b": 5}
    assert counts["train"] == {"a": 105, "b": 35}
    # Each example once, in order.
    together = sorted((example for own in split.values() for example in own), key=examples.index)
    assert together == examples
    assert split["test"] == sorted(split["test"], key=examples.index)


def test_the_seed_decides_the_split() -> None:
    examples = [("a", str(place)) for place in range(40)]
    split = drawn_split(examples, {"valid": 0.25}, seed=1, source="x")
    assert drawn_split(examples, {"valid": 0.25}, seed=1, source="x") == split
    assert drawn_split(examples, {"valid": 0.25}, seed=2, source="x") != split
    whole = drawn_split(examples, {"valid": 0.0}, seed=1, source="x")
    assert whole == {"train": examples, "valid": []}


def test_every_part_has_an_example_of_a_small_class() -> None:
    examples = [("rare", "1"), ("rare", "2"), ("rare", "3"), *(("a", str(n)) for n in range(90))]
    split = drawn_split(examples, {"test": 0.4, "valid": 0.4}, seed=1, source="x")
    assert all(any(label == "rare" for label, _ in own) for own in split.values())
    with pytest.raises(InputError, match="x: the class 'rare' has 2 examples; expected 3, one for"):
        drawn_split(examples[1:], {"test": 0.4, "valid": 0.4}, seed=1, source="x")


def test_labels_that_are_no_classes_and_classes_without_examples() -> None:
    examples = [("a", "1"), ("c", "2"), ("c", "3")]
    with pytest.raises(
        InputError, match=r"t\.tsv: unknown label 'c', of 2 examples; the model knows"
    ):
        check_labels([label for label, _ in examples], ["a", "b"], "t.tsv", all_there=False)
    with pytest.raises(InputError, match=r"t\.tsv: the class 'b' has no examples\. Add some"):
        check_labels([label for label, _ in examples], ["a", "b", "c"], "t.tsv", all_there=True)
    check_labels([label for label, _ in examples], ["a", "b", "c"], "t.tsv", all_there=False)
