"""The claims of examples/asked.py: two words that belong together need attention weights."""

from __future__ import annotations

import random
from pathlib import Path

import pytest
from tests.training.test_induction import example_called

from weft.training.inference import evaluate_run


def test_no_word_has_the_label() -> None:
    """The same words, put together otherwise, have the other one."""
    example = example_called("asked")
    numbers = random.Random(3)
    labels: dict[tuple[str, ...], set[str]] = {}
    for _ in range(20_000):
        label, text = example.sentence(numbers)
        words = ["<start>", *text.split()]
        where = example.places(words)
        assert words[where["thing"]] == words[where["question"]]
        assert words[where["answer"]] in example.MOODS[label]
        labels.setdefault(tuple(sorted(words[3:])), set()).add(label)
    assert sum(len(both) == 2 for both in labels.values()) > 100


@pytest.mark.slow
def test_learned_weights_find_the_answer_and_uniform_ones_do_not(tmp_path: Path) -> None:
    example = example_called("asked")
    example.draw(tmp_path / "sentences.tsv", 12_000)
    changes = [f"task.folder={tmp_path}"]
    same = ["model.weights=uniform", "model.positions=sinusoidal"]
    accuracy = {}
    for name, more in (("learned", []), ("uniform", same)):
        run = example.trained(tmp_path / name, [*changes, *more])
        measures = evaluate_run(run, split="test", beam=1, progress=lambda done, total: None)
        accuracy[name] = measures["accuracy"]
    assert accuracy["learned"] > 0.98
    assert accuracy["uniform"] < 0.85
