"""Files of pairs: what can be read, what is refused, and how translations are measured."""

from __future__ import annotations

from pathlib import Path
from typing import Any

import pytest
import torch

from headloom.errors import DataError, InputError
from headloom.models.decoding import Hypothesis, beam_hypotheses
from headloom.models.transformer import Transformer
from headloom.training import translation
from headloom.training.sections import TranslationConfig
from headloom.training.tasks.pairs import (
    TranslationTask,
    read_pairs,
    translation_task,
)

PAIRS = [("a cat sits", "eine Katze sitzt"), ("a dog", "ein Hund"), ("two cats", "zwei Katzen")]


@pytest.fixture
def folder(tmp_path: Path) -> Path:
    (tmp_path / "a.en").write_text("".join(f"{source}\n" for source, _ in PAIRS))
    (tmp_path / "a.de").write_text("".join(f"{target}\n" for _, target in PAIRS))
    (tmp_path / "a.tsv").write_text("".join("\t".join(pair) + "\n" for pair in PAIRS))
    return tmp_path


def task(folder: Path, **changes: Any) -> TranslationTask:
    content = {
        "kind": "translation", "folder": str(folder), "train": ["a.en", "a.de"],
        "valid": ["a.tsv"], "vocabulary": 300, **changes,
    }  # fmt: skip
    return translation_task(TranslationConfig(**content), 1, None)


def test_two_files_or_one(folder: Path) -> None:
    assert read_pairs(folder, ["a.en", "a.de"]) == PAIRS
    assert read_pairs(folder, ["a.tsv"]) == PAIRS


def test_what_does_not_pair(folder: Path) -> None:
    (folder / "short").write_text("ein\nzwei\n")
    (folder / "gap").write_text("eine Katze\n\nzwei Katzen\n")
    (folder / "tabs").write_text("a\tb\n\na\tb\tc\n")
    (folder / "none").write_text("a\tb\nab\n")
    (folder / "later").write_text("a\tb\n\n \n\tb\n")
    (folder / "empty").write_text("")
    (folder / "latin").write_bytes("ein\nMädchen\n".encode("latin-1"))
    for files, error, message in (
        (["a.en", "short"], InputError, r"a\.en has 3 lines, .*short 2; .*Align them again"),
        (["a.en", "gap"], InputError, r"gap: line 2 is empty, its partner is not"),
        (["gap", "a.en"], InputError, r"gap: line 2 is empty, its partner is not"),
        (["tabs"], InputError, r"tabs: line 3 has 2 tabs; expected source TAB target"),
        (["none"], InputError, r"none: line 2 has 0 tabs"),
        (["later"], InputError, r"later: line 4 is empty"),
        (["empty", "empty"], InputError, r"empty and .*empty: no pairs; the files are empty"),
        (["latin", "a.de"], DataError, r"latin: line 2 is not UTF-8 text"),
        (
            ["a.en", "no"],
            DataError,
            r"no: no such text \(task\.folder; or --data of headloom evaluate\)\.",
        ),
    ):
        with pytest.raises(error, match=message) as caught:
            read_pairs(folder, files)
        assert "\n" not in str(caught.value)


def test_batches_hold_the_pairs(folder: Path) -> None:
    made = task(folder)
    words = made.vocabulary
    seen = []
    for plan in made.plan_epoch(0, 30):
        batch = made.batch(plan)
        source, target = batch.inputs["source"], batch.inputs["target"]
        assert batch.tokens == int((source != 0).sum() + (batch.targets != 0).sum())
        # Each target is the next token: shifted by one, from start to end.
        for row in range(len(plan)):
            given = [i for i in target[row].tolist() if i != words.pad]
            wanted = [i for i in batch.targets[row].tolist() if i != words.pad]
            ids = [i for i in source[row].tolist() if i != words.pad]
            if wanted[-1] == words.end and len(given) > len(wanted):
                given = given[: len(wanted)]
            assert given[0] == words.start
            assert given[1:] == wanted[:-1]
            assert wanted[-1] == ids[-1] == words.end
            seen.append((words.decode(ids), words.decode(wanted)))
    assert sorted(seen) == sorted(PAIRS)
    assert made.plan_epoch(0, 30) == made.plan_epoch(0, 30)
    assert made.sizes()["train"] == 3


def test_long_pairs_are_left_out_of_training_only(folder: Path) -> None:
    longest = max(len(task(folder).vocabulary.encode(text)) for pair in PAIRS for text in pair)
    made = task(folder, max_length=longest - 1)
    assert len(made.texts["train"]) < 3
    assert len(made.texts["valid"]) == 3
    with pytest.raises(InputError, match=r"every training pair is longer than task\.max_length"):
        task(folder, max_length=1)


@pytest.fixture
def model(folder: Path) -> Transformer:
    torch.manual_seed(1)
    return Transformer(
        len(task(folder).vocabulary), width=16, heads=2, feed_forward=16, positions="learned",
        max_length=20, padding=0,
    ).eval()  # fmt: skip


def test_evaluation(folder: Path, model: Transformer) -> None:
    made = task(folder)
    told: list[tuple[int, int]] = []
    measures = made.results(
        model, split="valid", beam=2, progress=lambda done, total: told.append((done, total))
    ).values()
    assert told[-1] == (3, 3)
    assert told == sorted(told)
    assert len(told) > 10  # at every token: an untrained model does not end
    assert measures["examples"] == 3
    assert {
        "bleu",
        "bleu_lowercase_tokenised",
        "chrf",
        "ter",
        "exact_match",
        "loss",
    } <= measures.keys()
    # The loss is the mean over target tokens, pair by pair without padding.
    total, count = 0.0, 0
    for source, target in PAIRS:
        words = made.vocabulary
        ids = [*words.encode(target), words.end]
        with torch.no_grad():
            logits = model(
                torch.tensor([[*words.encode(source), words.end]]),
                torch.tensor([[words.start, *ids[:-1]]]),
            )[0]
        total -= sum(float(logits[i].log_softmax(-1)[token]) for i, token in enumerate(ids))
        count += len(ids)
    assert measures["loss"] == pytest.approx(total / count, rel=1e-4)
    with pytest.raises(InputError, match="this run has no test data; name it in the config"):
        made.results(model, split="test", beam=1, progress=lambda done, total: None).values()


def test_the_length_penalty_of_the_task_is_that_of_its_search(
    folder: Path, model: Transformer, monkeypatch: pytest.MonkeyPatch
) -> None:
    asked: list[float] = []

    def search(*args: Any, length_penalty: float, **options: Any) -> list[list[Hypothesis]]:
        asked.append(length_penalty)
        return beam_hypotheses(*args, length_penalty=length_penalty, **options)

    monkeypatch.setattr(translation, "beam_hypotheses", search)
    for changes in ({}, {"length_penalty": 1.5}):
        made = task(folder, **changes)
        made.results(model, split="valid", beam=2, progress=lambda done, total: None).values()
    assert set(asked[: len(asked) // 2]) == {1.0}
    assert set(asked[len(asked) // 2 :]) == {1.5}
