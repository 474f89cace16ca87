"""Loss and accuracy on batches that the model does not learn from."""

from __future__ import annotations

from collections.abc import Iterable
from dataclasses import dataclass

import torch
from torch import Tensor
from torch.nn.functional import cross_entropy

from headloom.models.predictor import Predictor
from headloom.training.batches import Batch
from headloom.training.optimisation import smoothed_cross_entropy

__all__ = ["Evaluation", "evaluate_batches", "mean_loss", "score_targets"]


@dataclass(frozen=True)
class Evaluation:
    """Means over targets.

    loss: cross-entropy, in nats.
    accuracy: share of the targets that the model thought the likeliest.
    targets: how many there were.
    """

    loss: float
    accuracy: float
    targets: int


@torch.no_grad()
def evaluate_batches(
    model: Predictor,
    batches: Iterable[Batch],
    ignored: int,
) -> Evaluation:
    """Score the predictions of a model against the targets of batches.

        loss = -mean of log p(target)

    Args:
        model: in evaluation mode.
        batches: what it reads, and the targets.
        ignored: the number that is no target; nothing is scored for it.
    """
    total, right, count = 0.0, 0, 0
    for batch in batches:
        logits, targets = _predictions(model, batch, ignored)
        total += float(smoothed_cross_entropy(logits, targets, smoothing=0.0, ignore=ignored))
        right += int((logits.argmax(-1) == targets).sum())
        count += len(targets)
    return Evaluation(total / max(count, 1), right / max(count, 1), count)


def mean_loss(model: Predictor, batches: Iterable[Batch], ignored: int) -> Tensor:
    """The loss of `evaluate_batches`, with its gradient where gradients are kept."""
    losses, count = [], 0
    for batch in batches:
        logits, targets = _predictions(model, batch, ignored)
        losses.append(smoothed_cross_entropy(logits, targets, smoothing=0.0, ignore=ignored))
        count += len(targets)
    return torch.stack(losses).sum() / max(count, 1)


def _predictions(model: Predictor, batch: Batch, ignored: int) -> tuple[Tensor, Tensor]:
    """The logits of the targets that count, (targets, choices), and these, (targets,)."""
    real = batch.targets != ignored
    return model.logits(model.outputs(**batch.inputs)[real]), batch.targets[real]


@dataclass(frozen=True, eq=False)
class TargetScores:
    """The predictions of the targets of a batch, in order, padding left out: (targets,) each.

    nats: -log p(target), float64.
    right: whether the model thought the target the likeliest.
    rows: which sequence of the batch a target is of.
    """

    nats: Tensor
    right: Tensor
    rows: Tensor


@torch.no_grad()
def score_targets(model: Predictor, batch: Batch, ignored: int) -> TargetScores:
    """Score each prediction of a model against its target; see `evaluate_batches`."""
    logits, targets = _predictions(model, batch, ignored)
    nats = cross_entropy(logits, targets, reduction="none").double()
    rows = (batch.targets != ignored).nonzero()[:, 0]
    return TargetScores(nats, logits.argmax(-1) == targets, rows)
