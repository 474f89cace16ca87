"""Training loss with label smoothing; loss and accuracy on held-out batches."""

from __future__ import annotations

from collections.abc import Iterable
from dataclasses import dataclass

import torch
from torch import Tensor
from torch.nn.functional import cross_entropy

from headloom.models.dense import is_plain, projected_loss
from headloom.models.predictor import Predictor
from headloom.training.batches import Batch


def smoothed_cross_entropy(
    logits: Tensor, targets: Tensor, *, smoothing: float, ignore: int
) -> Tensor:
    """Compute cross-entropy with label smoothing, summed over the targets, in nats.

        loss = -(1 - smoothing) log p(target) - smoothing * mean over v of log p(v)

    Args:
        logits: (..., vocabulary).
        targets: ids, (...).
        smoothing: share of the target's mass that is spread over the vocabulary.
        ignore: the id that is not scored (padding).

    Source: Szegedy et al. 2016, section 7.

    >>> import torch
    >>> round(float(smoothed_cross_entropy(
    ...     torch.zeros(1, 4), torch.tensor([2]), smoothing=0.1, ignore=0)), 4)   # log 4
    1.3863
    """
    return cross_entropy(
        logits.flatten(0, -2), targets.flatten(), ignore_index=ignore, label_smoothing=smoothing,
        reduction="sum",
    )  # fmt: skip


def predictor_loss(
    model: Predictor, outputs: Tensor, targets: Tensor, *, smoothing: float
) -> Tensor:
    """Compute the loss of outputs, (rows, width), fused with a last linear map."""
    last = model.last_map
    if last is not None and is_plain(last):
        return projected_loss(outputs, last.weight, last.bias, targets, smoothing=smoothing)
    # Every row has a target.
    return smoothed_cross_entropy(model.logits(outputs), targets, smoothing=smoothing, ignore=-100)


@dataclass(frozen=True)
class Evaluation:
    """Means over targets.

    loss: cross-entropy, in nats.
    accuracy: share of targets with the highest logit.
    targets: their number.
    """

    loss: float
    accuracy: float
    targets: int


@torch.no_grad()
def evaluate_batches(model: Predictor, batches: Iterable[Batch], ignored: int) -> Evaluation:
    """Compute loss and accuracy of a model on batches.

        loss = -mean of log p(target)

    Args:
        model: in evaluation mode.
        batches: inputs and targets.
        ignored: the target value that is not scored.
    """
    total, right, count = 0.0, 0, 0
    for batch in batches:
        logits, targets = _predictions(model, batch, ignored)
        total += float(smoothed_cross_entropy(logits, targets, smoothing=0.0, ignore=ignored))
        right += int((logits.argmax(-1) == targets).sum())
        count += len(targets)
    return Evaluation(total / max(count, 1), right / max(count, 1), count)


def mean_loss(model: Predictor, batches: Iterable[Batch], ignored: int) -> Tensor:
    """Compute the loss of `evaluate_batches` with its gradient."""
    losses, count = [], 0
    for batch in batches:
        logits, targets = _predictions(model, batch, ignored)
        losses.append(smoothed_cross_entropy(logits, targets, smoothing=0.0, ignore=ignored))
        count += len(targets)
    return torch.stack(losses).sum() / max(count, 1)


def _predictions(model: Predictor, batch: Batch, ignored: int) -> tuple[Tensor, Tensor]:
    """Return logits, (targets, choices), and ids, (targets,), of the targets that count."""
    real = batch.targets != ignored
    return model.logits(model.outputs(**batch.inputs)[real]), batch.targets[real]


@dataclass(frozen=True, eq=False)
class TargetScores:
    """Scores of the targets of a batch, in order, padding excluded: (targets,) each.

    nats: -log p(target), float64.
    right: whether the target has the highest logit.
    rows: sequence of each target in the batch.
    """

    nats: Tensor
    right: Tensor
    rows: Tensor


@torch.no_grad()
def score_targets(model: Predictor, batch: Batch, ignored: int) -> TargetScores:
    """Score the predictions of a model against the targets; see `evaluate_batches`."""
    logits, targets = _predictions(model, batch, ignored)
    nats = cross_entropy(logits, targets, reduction="none").double()
    rows = (batch.targets != ignored).nonzero()[:, 0]
    return TargetScores(nats, logits.argmax(-1) == targets, rows)
