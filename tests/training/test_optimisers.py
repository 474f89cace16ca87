"""Muon's steps, and which parameters are whose."""

from __future__ import annotations

import math
from pathlib import Path

import pytest
import torch
from torch import Tensor, nn

from headloom.formats.tensors import load_tensors
from headloom.models.dense import Products
from headloom.models.language_model import LanguageModel
from headloom.training import optimisers
from headloom.training.config import RunConfig, Schedule, TrainingConfig
from headloom.training.loop import train
from headloom.training.optimisers import (
    COEFFICIENTS,
    ITERATIONS,
    Muon,
    learning_rate,
    make_optimisers,
    orthogonal,
)
from headloom.training.progress import Callback


@pytest.mark.parametrize("shape", [(16, 16), (48, 16), (16, 48)])
def test_singular_values_become_about_1_and_directions_stay(shape: tuple[int, int]) -> None:
    torch.manual_seed(0)
    matrix = torch.randn(*shape, dtype=torch.float64)
    u, s, v = torch.linalg.svd(matrix, full_matrices=False)
    expected = s / s.norm()
    a, b, c = COEFFICIENTS
    for _ in range(ITERATIONS):
        expected = a * expected + b * expected**3 + c * expected**5
    assert 0.6 < float(expected.min()) <= float(expected.max()) < 1.25
    exact = u * expected @ v
    assert float((orthogonal(matrix[None])[0] - exact).abs().max()) < 1e-9


@pytest.mark.skipif(not hasattr(torch.optim, "Muon"), reason="before torch 2.9")
def test_equal_to_torch() -> None:
    """Which computes in bfloat16: three steps of three matrices, to its precision."""
    torch.manual_seed(0)
    start = [torch.randn(12, 12), torch.randn(24, 12), torch.randn(12, 12), torch.randn(12, 24)]
    gradients = [[torch.randn_like(matrix) for matrix in start] for _ in range(3)]

    def after(kind: type[torch.optim.Optimizer], **settings: object) -> list[Tensor]:
        matrices = [nn.Parameter(matrix.clone()) for matrix in start]
        optimiser = kind(matrices, lr=0.1, weight_decay=0.3, **settings)  # type: ignore[arg-type]
        for step in gradients:
            for matrix, gradient in zip(matrices, step, strict=True):
                matrix.grad = gradient.clone()
            optimiser.step()
        return [matrix.detach() for matrix in matrices]

    theirs = after(torch.optim.Muon)
    for dtype, error in ((torch.float32, 0.02), (torch.bfloat16, 0.02)):
        for ours, expected in zip(after(Muon, dtype=dtype), theirs, strict=True):
            assert float((ours - expected).abs().max()) < error
    moved = max(float((a - b).abs().max()) for a, b in zip(theirs, start, strict=True))
    assert moved > 0.2


def test_a_matrix_without_gradient_stays() -> None:
    used, unused = nn.Parameter(torch.ones(4, 4)), nn.Parameter(torch.ones(4, 4))
    optimiser = Muon([used, unused])
    used.grad = torch.eye(4)
    optimiser.step()
    assert torch.equal(unused, torch.ones(4, 4))
    assert not torch.equal(used, torch.ones(4, 4))


def test_embeddings_and_last_map_are_left_to_adamw() -> None:
    model = LanguageModel(20, width=16, heads=2, feed_forward=32, layers=1)
    muon, adamw = make_optimisers(model, TrainingConfig(optimiser="muon"))
    assert isinstance(muon, Muon)
    assert isinstance(adamw, torch.optim.AdamW)
    names = {id(parameter): name for name, parameter in model.named_parameters()}
    matrices = [names[id(p)] for p in muon.param_groups[0]["params"]]
    rest = [names[id(p)] for p in adamw.param_groups[0]["params"]]
    assert sorted([*matrices, *rest]) == sorted(names.values())
    assert len(matrices) == 6  # W_Q, W_K, W_V, W_O and the two of the feed-forward
    assert not any("embedding" in name or "bias" in name for name in matrices)
    assert (muon.param_groups[0]["peak"], adamw.param_groups[0]["peak"]) == (0.02, 1e-3)


def test_a_run_that_was_stopped_ends_with_the_same_weights(tmp_path: Path) -> None:
    content = {
        "task": {"kind": "dates", "train_examples": 500, "test_examples": 20},
        "model": {
            "kind": "transformer", "width": 32, "heads": 2,
            "encoder_layers": 1, "decoder_layers": 1,
        },
        "training": {
            "optimiser": "muon", "batch_tokens": 512, "max_steps": 6, "warmup": 2,
            "history": False, "checkpoint_every": 3,
        },
    }  # fmt: skip
    config = RunConfig.model_validate(content)
    train(config, tmp_path / "whole", Callback())
    half = config.model_copy(
        update={"training": config.training.model_copy(update={"max_steps": 3})}
    )
    train(half, tmp_path / "halves", Callback())
    train(config, tmp_path / "halves", Callback())
    whole, _ = load_tensors(tmp_path / "whole" / "checkpoint.safetensors", "checkpoint")
    halves, _ = load_tensors(tmp_path / "halves" / "checkpoint.safetensors", "checkpoint")
    assert any(name.endswith("/momentum") for name in whole)
    assert whole.keys() == halves.keys()
    assert all(torch.equal(whole[name], halves[name]) for name in whole)


@pytest.mark.parametrize(("multiplies", "dtype"), [(True, torch.bfloat16), (False, torch.float32)])
def test_matrices_are_made_orthogonal_in_bfloat16_where_the_processor_has_it(
    multiplies: bool, dtype: torch.dtype, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(optimisers, "multiplies_bfloat16", lambda: multiplies)
    model = LanguageModel(11, width=8, heads=2, feed_forward=8, layers=1)
    kinds: list[tuple[Products, torch.dtype]] = [("bfloat16", dtype), ("float32", torch.float32)]
    for products, expected in kinds:
        settings = TrainingConfig(optimiser="muon", products=products)
        muon, _ = make_optimisers(model, settings)
        assert isinstance(muon, Muon) and muon.dtype == expected


@pytest.mark.parametrize(
    ("schedule", "floor", "step", "expected"),
    [
        ("constant", 0.0, 11, 2.0),
        ("inverse-sqrt", 0.0, 15, 2.0 * math.sqrt(4 / 16)),
        ("linear", 0.0, 5, 2.0 * 6 / 8),
        ("linear", 0.0, 11, 0.0),
        ("linear", 0.25, 11, 0.5),
        ("linear", 0.25, 99, 0.5),
        ("cosine", 0.0, 7, 1.0),
        ("cosine", 0.0, 5, 2.0 * (1 + math.sqrt(0.5)) / 2),
        ("cosine", 0.0, 11, 0.0),
        ("cosine", 0.1, 11, 0.2),
        ("cosine", 0.1, 7, 1.1),
    ],
)
def test_after_the_warm_up(schedule: Schedule, floor: float, step: int, expected: float) -> None:
    found = learning_rate(step, peak=2.0, warmup=4, last=12, schedule=schedule, floor=floor)
    assert found == pytest.approx(expected, abs=1e-12)
