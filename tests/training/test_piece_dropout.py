"""BPE-dropout: its probabilities, its repeatability, and that it cuts training data alone."""

from __future__ import annotations

import random
from pathlib import Path

import pytest

from headloom.training.config import RunConfig, TranslationConfig
from headloom.training.piece_dropout import WAYS, PieceDropout
from headloom.training.tasks import make_task
from headloom.training.text import Vocabulary

TEXTS = ["the weather in the north", "the other feather", "that was then"] * 5


@pytest.fixture
def vocabulary() -> Vocabulary:
    return Vocabulary.of_pieces(TEXTS, 310)


def test_without_dropout_it_is_byte_pair_encoding(vocabulary: Vocabulary) -> None:
    texts = [*TEXTS, "thethe nöthing known", "a  b"]
    dropout = PieceDropout(vocabulary, 0.0, 1)
    assert dropout.encode_all(texts, 3) == vocabulary.encode_all(texts)


def test_a_merge_is_left_out_with_the_probability(vocabulary: Vocabulary) -> None:
    dropout = PieceDropout(vocabulary, 0.3, 1)
    numbers = random.Random(5)
    drawn = [len(dropout.pieces("th", numbers)) for _ in range(4_000)]
    # One merge: left out 1,200 times of 4,000, standard deviation 29.
    assert abs(drawn.count(2) - 1_200) < 4 * 29


def test_nearly_certain_dropout_leaves_bytes(vocabulary: Vocabulary) -> None:
    dropout = PieceDropout(vocabulary, 1 - 1e-12, 1)
    assert dropout.pieces("weather", random.Random(1)) == list("weather")


def test_every_way_spells_the_text(vocabulary: Vocabulary) -> None:
    dropout = PieceDropout(vocabulary, 0.5, 1)
    ways = set()
    for epoch in range(40):
        (ids,) = dropout.encode_all(["the other weather"], epoch)
        assert vocabulary.decode(ids) == "the other weather"
        ways.add(tuple(ids))
    assert len(ways) > 20


def test_an_epoch_is_the_same_whatever_came_before(vocabulary: Vocabulary) -> None:
    once = PieceDropout(vocabulary, 0.2, 7)
    for epoch in range(WAYS):
        once.encode_all(TEXTS, epoch)
    assert once.encode_all(TEXTS, 9) == PieceDropout(vocabulary, 0.2, 7).encode_all(TEXTS, 9)
    assert once.encode_all(TEXTS, 9) != PieceDropout(vocabulary, 0.2, 8).encode_all(TEXTS, 9)


def test_training_data_alone_are_cut_anew(tmp_path: Path) -> None:
    for name in ("train", "valid"):
        (tmp_path / f"{name}.en").write_text("\n".join(TEXTS) + "\n")
        (tmp_path / f"{name}.de").write_text("\n".join(text.upper() for text in TEXTS) + "\n")

    def batches(epoch: int, piece_dropout: float) -> tuple[list[list[int]], list[list[int]]]:
        config = TranslationConfig(
            kind="translation",
            folder=str(tmp_path),
            train=["train.en", "train.de"],
            valid=["valid.en", "valid.de"],
            vocabulary=320,
            piece_dropout=piece_dropout,
        )
        task = make_task(RunConfig(task=config))
        plans = task.plan_epoch(epoch, 100_000)
        (trained,) = (task.batch(plan) for plan in plans)
        (valid,) = task.validation(100_000)
        return trained.targets.tolist(), valid.targets.tolist()

    first, second, usual = batches(0, 0.3), batches(1, 0.3), batches(0, 0.0)
    assert sorted(first[0]) != sorted(second[0])
    assert first == batches(0, 0.3)
    assert first[1] == second[1] == usual[1]
