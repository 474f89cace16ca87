"""Repeats: each part comes twice, what is a target can be foretold, and nothing is drawn twice."""

from __future__ import annotations

import pytest
import torch

from headloom.errors import InputError
from headloom.training.sections import RepeatsConfig
from headloom.training.tasks.language import RepeatsTask, repeats_task


def task(seed: int = 1, **changes: int) -> RepeatsTask:
    return repeats_task(RepeatsConfig(kind="repeats", **changes), seed, None)


def test_every_target_follows_an_earlier_copy_of_the_token_before_it() -> None:
    drawn = task()
    lengths = set()
    for plan in drawn.plan_epoch(0, 512)[:20]:
        batch = drawn.batch(plan)
        tokens, targets = batch.inputs["tokens"], batch.targets
        half = tokens.shape[1] // 2
        lengths.add(half)
        assert tokens.shape == targets.shape
        for row, wanted in zip(tokens.tolist(), targets.tolist(), strict=True):
            assert len(set(row[: half + 1])) == half + 1
            for place, target in enumerate(wanted):
                if target == drawn.vocabulary.pad:
                    assert place <= half
                    continue
                (copy,) = [j for j in range(1, place) if row[j - 1] == row[place]]
                assert row[copy] == target
        assert int((targets != drawn.vocabulary.pad).sum()) == (half - 1) * len(tokens)
    # No fixed distance leads back.
    assert len(lengths) > 10
    assert min(lengths) >= 10
    assert max(lengths) <= 30


def test_training_and_validation_never_meet_and_the_seed_decides() -> None:
    drawn = task(shortest=10, longest=10)

    def rows(batches: list[torch.Tensor]) -> set[tuple[int, ...]]:
        return {tuple(row) for batch in batches for row in batch.tolist()}

    epochs = [plan for epoch in range(3) for plan in drawn.plan_epoch(epoch, 200)]
    train = [drawn.batch(plan).inputs["tokens"] for plan in epochs]
    valid = [batch.inputs["tokens"] for batch in drawn.validation(200)]
    assert len(rows(train)) == sum(map(len, train))
    assert not rows(train) & rows(valid)
    again = task(shortest=10, longest=10)
    assert torch.equal(again.batch(epochs[7]).inputs["tokens"], train[7])
    other = task(seed=2, shortest=10, longest=10)
    assert not torch.equal(other.batch(epochs[7]).inputs["tokens"], train[7])


class Knows(torch.nn.Module):
    """Finds the copy, as the data are made; or always says one token."""

    def __init__(self, size: int, always: int | None = None) -> None:
        super().__init__()
        self.size, self.always = size, always

    def outputs(self, tokens: torch.Tensor) -> torch.Tensor:
        logits = torch.zeros(*tokens.shape, self.size)
        for b, row in enumerate(tokens.tolist()):
            for i, token in enumerate(row):
                copies = [j for j in range(1, i) if row[j - 1] == token]
                found = row[copies[-1]] if copies else 0
                logits[b, i, found if self.always is None else self.always] = 20
        return logits

    def logits(self, outputs: torch.Tensor) -> torch.Tensor:
        return outputs


def test_accuracy_is_of_the_repeated_half() -> None:
    drawn = task(symbols=20, shortest=5, longest=6)
    measures = drawn.results(
        Knows(len(drawn.vocabulary)), split="valid", beam=1, progress=lambda done, total: None
    ).values()
    assert measures["accuracy"] == 1
    assert measures["loss"] < 1e-6
    always = drawn.results(
        Knows(len(drawn.vocabulary), 7), split="valid", beam=1, progress=lambda done, total: None
    ).values()
    assert measures["chance"] == 1 / 20
    assert always["accuracy"] == pytest.approx(1 / 20, abs=0.02)
    with pytest.raises(InputError, match="no test data"):
        drawn.results(Knows(9), split="test", beam=1, progress=lambda done, total: None).values()
