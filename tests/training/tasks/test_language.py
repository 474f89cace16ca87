"""Windows of a text: what is learned from, what is held out."""

from __future__ import annotations

import math
from pathlib import Path
from typing import Any

import pytest
import torch

from headloom.errors import InputError
from headloom.models.language_model import LanguageModel
from headloom.training.sections import LanguageConfig
from headloom.training.tasks.language import LanguageTask, language_task

TEXT = "".join(f"line {number} of the text\n" for number in range(200))


def task(folder: Path, text: str = TEXT, **changes: Any) -> LanguageTask:
    (folder / "text.txt").write_text(text)
    content = {"kind": "language", "file": str(folder / "text.txt"), "block": 16, **changes}
    return language_task(LanguageConfig(**content), 1, None)


def test_the_end_is_held_out(tmp_path: Path) -> None:
    made = task(tmp_path, valid_share=0.25)
    words = made.vocabulary
    sizes = made.sizes()
    assert sizes["train_tokens"] + sizes["valid_tokens"] == len(TEXT)
    assert sizes["valid_tokens"] == pytest.approx(len(TEXT) / 4, abs=1)
    held_out = "".join(
        words.decode(row) for batch in made.validation(64) for row in batch.targets.tolist()
    )
    assert held_out in TEXT[sizes["train_tokens"] :]
    assert len(held_out) > sizes["valid_tokens"] - 2 * 16
    border = sizes["train_tokens"]
    for plan in made.plan_epoch(0, 64):
        assert all(start >= 0 and start + 17 <= border for start in plan)


def test_targets_are_the_next_tokens(tmp_path: Path) -> None:
    made = task(tmp_path)
    batch = made.batch(made.plan_epoch(0, 64)[0])
    assert batch.inputs["tokens"].shape == batch.targets.shape == (4, 16)
    assert torch.equal(batch.inputs["tokens"][:, 1:], batch.targets[:, :-1])
    assert batch.tokens == 64
    assert made.vocabulary.decode(batch.targets[0].tolist()) in TEXT


def test_pieces(tmp_path: Path) -> None:
    made = task(tmp_path, tokens="pieces", vocabulary=300)
    assert made.vocabulary.has_pieces
    assert made.sizes()["train_tokens"] < 0.9 * len(TEXT)
    assert "\n" in made.vocabulary.decode(made.batch([0]).targets[0].tolist())


def test_evaluation_is_the_mean_over_the_windows(tmp_path: Path) -> None:
    made = task(tmp_path)
    torch.manual_seed(1)
    model = LanguageModel(len(made.vocabulary), width=8, heads=2, feed_forward=8, layers=1).eval()
    measures = made.results(
        model, split="valid", beam=1, progress=lambda done, total: None
    ).values()
    losses = []
    with torch.no_grad():
        for batch in made.validation(16):
            logs = model(**batch.inputs).log_softmax(-1)
            losses += [-float(logs[0, i, t]) for i, t in enumerate(batch.targets[0].tolist())]
    assert measures["tokens"] == len(losses)
    assert measures["loss"] == pytest.approx(sum(losses) / len(losses), rel=1e-5)
    assert measures["perplexity"] == pytest.approx(math.exp(measures["loss"]))


def test_too_short(tmp_path: Path) -> None:
    with pytest.raises(InputError, match=r"the held-out part has 4 tokens; .*task\.block \+ 1"):
        task(tmp_path, text="abcdefghij" * 4)
    with pytest.raises(InputError, match=r"the training part has 3 tokens"):
        task(tmp_path, text="abcd")
    with pytest.raises(InputError, match=r"text\.txt: the training part of the text is empty"):
        task(tmp_path, text="a")
    # One window more than the least there must be.
    assert task(tmp_path, text="abcdefghij" * 4, valid_share=0.5).validation(16)


def test_a_held_out_character_that_was_never_learned(tmp_path: Path) -> None:
    made = task(tmp_path, text=TEXT + "ß" * 30)
    assert any(bool((batch.targets == 1).any()) for batch in made.validation(64))
    assert "<unk>" not in made.probe().tokens["tokens"]
