"""Data as people have them: what is made of each form, and what the files of each format say."""

from __future__ import annotations

import json
from pathlib import Path
from types import SimpleNamespace
from typing import Any

import datasets
import numpy as np
import pandas
import polars
import pyarrow
import pyarrow.parquet
import pytest
import torch

from headloom.errors import DataError, InputError
from headloom.training.examples import read_columns
from headloom.training.in_memory import Gathered, gather

TEXTS = ["a good film", "a bad film"] * 10
LABELS = ["for", "against"] * 10
SOURCES = [f"the cat {number}" for number in range(20)]
TARGETS = [f"le chat {number}" for number in range(20)]
FRAME = pandas.DataFrame({"n": range(20), "review": TEXTS, "stars": LABELS})
NAMED = datasets.Dataset.from_dict(
    {"sentence": TEXTS, "label": [0, 1] * 10},
    features=datasets.Features(
        {"sentence": datasets.Value("string"), "label": datasets.ClassLabel(names=LABELS[:2])}
    ),
)
LANGUAGES = datasets.Dataset.from_dict(
    {"translation": [{"en": s, "fr": t} for s, t in zip(SOURCES, TARGETS, strict=True)]}
)
IMAGES = np.arange(20 * 8 * 8).reshape(20, 8, 8) % 16


def rows(data: Gathered, part: str = "train") -> list[tuple[str, ...]]:
    lines = data.files[f"{part}.jsonl"].decode().splitlines()
    return [tuple(json.loads(line).values()) for line in lines]


@pytest.mark.parametrize(
    ("data", "roles"),
    [
        (list(zip(TEXTS, LABELS, strict=True)), {}),
        (zip(TEXTS, LABELS, strict=True), {}),
        ((TEXTS, LABELS), {}),
        ((np.array(TEXTS), pandas.Series(LABELS)), {}),
        (list(zip(LABELS, SOURCES, strict=True)), {}),  # few different ones are the labels
        ({"text": TEXTS, "label": LABELS}, {}),
        ([{"label": a, "text": b} for a, b in zip(LABELS, TEXTS, strict=True)], {}),
        (FRAME.rename(columns={"stars": "label"}), {}),
        (FRAME, {"text": "review", "label": "stars"}),
        (polars.from_pandas(FRAME), {"text": "review", "label": "stars"}),
        (pyarrow.Table.from_pandas(FRAME), {"text": "review", "label": "stars"}),
        (NAMED, {}),
        (datasets.DatasetDict(train=NAMED, validation=NAMED), {}),
    ],
)
def test_labelled_texts(data: Any, roles: dict[str, str]) -> None:
    found = gather(data, None, roles)
    assert found.kind == "labels"
    texts = SOURCES if rows(found)[0][0] == SOURCES[0] else TEXTS
    assert rows(found) == list(zip(texts, LABELS, strict=True))
    assert ("valid" in found.settings) == isinstance(data, datasets.DatasetDict)


@pytest.mark.parametrize(
    ("data", "roles"),
    [
        (list(zip(SOURCES, TARGETS, strict=True)), {}),
        ((SOURCES, TARGETS), {}),
        (pandas.DataFrame({"target": TARGETS, "source": SOURCES}), {}),
        (LANGUAGES, {}),
        (LANGUAGES.select_columns("translation"), {"source": "en", "target": "fr"}),
        ({"train": LANGUAGES, "valid": LANGUAGES, "test": LANGUAGES}, {"target": "fr"}),
    ],
)
def test_pairs(data: Any, roles: dict[str, str]) -> None:
    found = gather(data, None, roles)
    assert (found.kind, found.settings["train"]) == ("translation", ["train.jsonl"])
    assert rows(found) == list(zip(SOURCES, TARGETS, strict=True))
    turned = gather(LANGUAGES, "translation", {"source": "fr", "target": "en"})
    assert rows(turned)[0] == (TARGETS[0], SOURCES[0])


def test_texts_ids_images_and_graphs() -> None:
    parts = {"train": SOURCES[:18], "valid": SOURCES[18:]}
    found = gather(parts, None, {})
    text = found.files["text.txt"].decode()
    assert (found.kind, text) == ("language", "\n".join(SOURCES) + "\n")
    border = int(len(text) * (1 - found.settings["valid_share"]))
    assert text[border:] == "\n".join(SOURCES[18:]) + "\n"
    for ids in (np.arange(500) % 50, [[1, 2, 3], [4, 5, 6]], torch.arange(9)):
        found = gather(ids, None, {})
        assert (found.kind, found.usual["tokens"]) == ("language", "words")
    found = gather((np.array([[1, 2], [3, 4]] * 5), torch.tensor([0, 1] * 5)), None, {})
    assert (found.kind, rows(found)[:2]) == ("labels", [("1 2", "0"), ("3 4", "1")])
    labels = np.arange(20) % 2
    pictures = [(torch.tensor(image), label) for image, label in zip(IMAGES, labels, strict=True)]
    for data in ({"X": IMAGES, "y": labels}, {"train": (IMAGES, labels)}, pictures):
        found = gather(data, None, {})
        assert found.kind == "images"
        assert found.files["train.npz"] == gather((IMAGES, labels), None, {}).files["train.npz"]
    graph = SimpleNamespace(edge_index=np.zeros((2, 3)), x=np.ones((2, 2)), y=np.zeros(2))
    assert gather(graph, None, {}).settings == {"graph": "graph.npz"}


@pytest.mark.parametrize(
    ("data", "kind", "roles", "message"),
    [
        (FRAME, None, {}, "the task of the columns 'n', 'review', 'stars' is not clear"),
        (FRAME, "labels", {"text": "reviews"}, "did you mean 'review'"),
        (5, None, {}, "a int, '5', is not a data set"),
        (object(), None, {}, "is not a data set"),
        ("no.csv", None, {}, "no such table"),
        ("a text", "labels", {}, "no such file"),
        ({"valid": [("a", "b")], "test": []}, None, {}, "'train' is missing"),
        ([("a", "b"), ("a", None)] * 5, "labels", {}, "row 2: 'None' is no text"),
        ([("a", "b"), ("a",)], None, {}, "row 1 is .*expected a pair"),
        (([[0.5, 1.0]] * 4, [0, 1] * 2), None, {}, "is no text"),
        ((IMAGES - 50.5, range(20)), None, {}, "from -50.5 to"),
        ([("a", "b")] * 9, "dates", {}, "not learned from columns"),
    ],
)  # fmt: skip
def test_what_cannot_be_used(
    data: Any, kind: str | None, roles: dict[str, str], message: str
) -> None:
    with pytest.raises((InputError, DataError), match=message):
        gather(data, kind, roles)


def test_files_of_every_format(tmp_path: Path) -> None:
    """The same columns of each, and a task for each where nobody names it."""
    frame = pandas.DataFrame(
        {"id": range(3), "source": ["a, b", 'c "d"', "e"], "target": ["1", "2", "3"]}
    )
    frame.to_csv(tmp_path / "a.csv", index=False)
    frame.to_csv(tmp_path / "a.csv.gz", index=False)
    frame.to_parquet(tmp_path / "a.parquet")
    frame.to_json(tmp_path / "a.jsonl", orient="records", lines=True)
    frame.to_json(tmp_path / "a.json", orient="records")
    (tmp_path / "a.tsv").write_text('id\tsource\ttarget\n0\ta, b\t1\n1\tc "d"\t2\n2\te\t3\n')
    for path in sorted(tmp_path.iterdir()):
        columns = read_columns(path, {"source": None, "target": "target"}, "pairs")
        assert columns == [["a, b", 'c "d"', "e"], ["1", "2", "3"]], path
        found = gather(str(path), None, {})
        assert (found.kind, found.files) == ("translation", {})
        assert found.task(tmp_path / "other") == {"folder": str(tmp_path), "train": [path.name]}
    (tmp_path / "b.tsv").write_text("for\tgood\nagainst\tbad\n" * 9)
    assert read_columns(tmp_path / "b.tsv", {"text": None, "label": None}, "texts") is None
    assert gather(tmp_path / "b.tsv", None, {}).kind == "labels"
    assert gather((tmp_path / "a.tsv", tmp_path / "b.tsv"), None, {}).kind == "translation"
    (tmp_path / "d.csv").write_bytes(b'source,target\r\n"a\nb",NA\r\n,\r\n\r\n c ,007\r\n')
    columns = read_columns(tmp_path / "d.csv", {"source": None, "target": None}, "pairs")
    assert columns == [["a\nb", "c"], ["NA", "007"]]
    (tmp_path / "c.csv").write_text("source,target\na,b,c\n")
    with pytest.raises(InputError, match=r"c\.csv: .*Expected 2 fields in line 2, saw 3"):
        read_columns(tmp_path / "c.csv", {"source": None, "target": None}, "pairs")
