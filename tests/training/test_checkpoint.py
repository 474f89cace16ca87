"""Checkpoints: everything comes back, and what is damaged or foreign is refused."""

from __future__ import annotations

from pathlib import Path

import pytest
import torch
from torch import Tensor, nn

from headloom.errors import DataError
from headloom.formats.run import RunFolder
from headloom.formats.tensors import load_tensors
from headloom.training.checkpoint import (
    Learner,
    Position,
    load_checkpoint,
    load_weights,
    save_checkpoint,
)
from headloom.training.ranks import Ranks

NAME = "checkpoint.safetensors"


class Tied(nn.Module):
    """Two names for one matrix, and a table that is not learned."""

    table: Tensor
    counts: Tensor

    def __init__(self, seed: int, width: int = 3) -> None:
        super().__init__()
        torch.manual_seed(seed)
        self.first, self.second = nn.Linear(width, width), nn.Linear(width, width)
        self.second.weight = self.first.weight
        self.register_buffer("table", torch.full((2,), float(seed)), persistent=False)
        self.register_buffer("counts", torch.full((2,), float(seed)))

    def step(self, optimiser: torch.optim.Optimizer) -> None:
        self.second(self.first(torch.randn(2, self.first.in_features))).square().sum().backward()
        optimiser.step()
        optimiser.zero_grad()


def adam(model: nn.Module) -> torch.optim.Optimizer:
    return torch.optim.AdamW(model.parameters(), lr=0.1, fused=True)


def learned(path: Path, average: bool = True) -> tuple[Tied, torch.optim.Optimizer]:
    """A model after two steps, with its checkpoint at `path`."""
    model = Tied(1)
    optimiser = adam(model)
    model.step(optimiser)
    model.step(optimiser)
    mean = {name: p.detach() * 2 for name, p in model.named_parameters()} if average else None
    position = Position(2, 1, 5, 1 / 3, losses=[0.1, 0.2])
    save_checkpoint(RunFolder(path.parent), Learner(model, mean, [optimiser]), position, Ranks())
    return model, optimiser


def back(
    path: Path, model: nn.Module, mean: dict[str, Tensor] | None, optimiser: torch.optim.Optimizer
) -> Position:
    """Put back what `learned` saved."""
    return load_checkpoint(RunFolder(path.parent), Learner(model, mean, [optimiser]), 1, Ranks())


def test_everything_comes_back(tmp_path: Path) -> None:
    model, optimiser = learned(tmp_path / NAME)
    other = Tied(2)
    other_optimiser = adam(other)
    mean = {name: torch.zeros_like(p) for name, p in other.named_parameters()}
    torch.randn(99)
    position = back(tmp_path / NAME, other, mean, other_optimiser)
    assert position == Position(2, 1, 5, 1 / 3, losses=[0.1, 0.2])
    for (name, parameter), found in zip(model.named_parameters(), other.parameters(), strict=True):
        assert torch.equal(parameter, found)
        assert torch.equal(mean[name], parameter * 2)
    assert torch.equal(other.counts, model.counts)
    assert other.table.tolist() == [2, 2]
    assert other.second.weight is other.first.weight
    # The next step draws the same numbers and has the same moments.
    other.step(other_optimiser)
    after = [p.detach().clone() for p in other.parameters()]
    back(tmp_path / NAME, model, mean, optimiser)
    model.step(optimiser)
    assert all(torch.equal(a, b) for a, b in zip(after, model.parameters(), strict=True))


def test_a_shared_matrix_is_kept_once(tmp_path: Path) -> None:
    learned(tmp_path / NAME)
    tensors, _ = load_tensors(tmp_path / NAME, "checkpoint")
    names = {name for name in tensors if name.startswith("model/")}
    assert names == {
        "model/first.weight", "model/first.bias", "model/second.bias", "model/counts",
    }  # fmt: skip


@pytest.mark.parametrize("damage", ["half", "bit", "empty", "position bit"])
def test_damaged(tmp_path: Path, damage: str) -> None:
    model, optimiser = learned(tmp_path / NAME)
    content = bytearray((tmp_path / NAME).read_bytes())
    if damage == "half":
        del content[len(content) // 2 :]
    elif damage == "bit":
        content[-100] ^= 4
    elif damage == "empty":
        content.clear()
    else:
        place = content.index(b"batch") + 9
        assert content[place : place + 1] == b"5"
        content[place] ^= 1
    (tmp_path / NAME).write_bytes(content)
    before = [p.detach().clone() for p in model.parameters()]
    with pytest.raises(DataError, match="this checkpoint is damaged") as caught:
        back(tmp_path / NAME, model, None, optimiser)
    assert "\n" not in str(caught.value)
    assert all(torch.equal(a, b) for a, b in zip(before, model.parameters(), strict=True))


def test_of_another_model(tmp_path: Path) -> None:
    learned(tmp_path / NAME)
    other = Tied(1, width=4)
    with pytest.raises(DataError, match="these weights are of another model"):
        back(tmp_path / NAME, other, None, adam(other))
    with pytest.raises(DataError, match="these weights are of another model"):
        load_weights(tmp_path / NAME, Tied(1))


@pytest.mark.parametrize("average", [True, False])
def test_with_and_without_a_running_mean(tmp_path: Path, average: bool) -> None:
    model, optimiser = learned(tmp_path / NAME, average)
    mean = {name: p.detach().clone() for name, p in model.named_parameters()}
    with pytest.raises(DataError, match=r"have different training\.average"):
        back(tmp_path / NAME, model, None if average else mean, optimiser)


def test_the_running_mean_is_applied_and_taken_back() -> None:
    model = Tied(1)
    start = {name: p.detach().clone() for name, p in model.named_parameters()}
    learner = Learner(model, {name: p.clone() for name, p in start.items()}, [])
    with torch.no_grad():
        for parameter in model.parameters():
            parameter += 11
    learner.update_average(0.15, 1)  # early on the decay is 1 / 11
    assert learner.average is not None
    for name, value in start.items():
        torch.testing.assert_close(learner.average[name], value + 10)
    learner.update_average(0.15, 2)  # 2 / 12 is more than 0.15
    with pytest.raises(KeyboardInterrupt), learner.averaged():
        for name, parameter in model.named_parameters():
            torch.testing.assert_close(parameter.detach(), start[name] + 0.15 * 10 + 0.85 * 11)
        raise KeyboardInterrupt
    for name, parameter in model.named_parameters():
        torch.testing.assert_close(parameter.detach(), start[name] + 11)


def test_which_weights_are_kept() -> None:
    """A lower loss, or both as good as the best before; either renews patience."""
    position = Position()
    found = [position.add_validation(*v, "loss") for v in ((2.0, 0.5), (2.0, 0.9), (1.0, 0.1))]
    assert found == [(True, True), (False, False), (True, True)]
    assert (position.best_loss, position.best_accuracy) == (1.0, 0.9)
    position = Position()
    validations = ((2.0, 0.5), (1.0, 0.4), (1.5, 0.4), (1.0, 0.5), (1.2, 0.5))
    found = [position.add_validation(*v, "loss-and-accuracy") for v in validations]
    assert found == [(True, True), (False, True), (False, False), (True, True), (False, True)]


@pytest.mark.parametrize(("count", "number"), [(1, 0), (2, 1)])
def test_processes_go_on_with_their_own_random_numbers(
    tmp_path: Path, count: int, number: int, monkeypatch: pytest.MonkeyPatch
) -> None:
    """As many as before: each its own state; another number: drawn anew, of seed, step and rank."""
    states = [torch.Generator().manual_seed(n).get_state() for n in (7, 8)]
    monkeypatch.setattr(Ranks, "random_states", lambda ranks: states[: ranks.count])
    model = Tied(1)
    learner, folder = Learner(model, None, [adam(model)]), RunFolder(tmp_path)
    save_checkpoint(folder, learner, Position(3), Ranks(0, count))
    load_checkpoint(folder, learner, 5, Ranks(number, count))
    assert torch.equal(torch.get_rng_state(), states[number])
    drawn = []
    for ranks in (Ranks(0, 3), Ranks(1, 3), Ranks(0, 3 - count)):
        load_checkpoint(folder, learner, 5, ranks)
        drawn.append(torch.initial_seed())
    assert drawn[:2] == [((5 * 1_000_003 + 3) * 1_009 + rank) for rank in (1, 2)]
    assert drawn[2] == drawn[0]
    save_checkpoint(folder, learner, Position(9), Ranks(1, count + 1))  # the first one writes
    assert load_checkpoint(folder, learner, 5, Ranks(number, count)).step == 3
