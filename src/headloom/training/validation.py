"""The loss that a model learns by; loss and accuracy on batches that it does not learn from."""

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
    """Cross-entropy with label smoothing, summed over the tokens that count, in nats.

        loss = -(1 - smoothing) log p(target) - smoothing * mean over v of log p(v)

    Args:
        logits: (..., vocabulary).
        targets: ids, (...).
        smoothing: share of the target's mass that is spread over the vocabulary.
        ignore: the id that does not count (padding).

    Source: Szegedy et al. 2016, section 7.

    >>> import torch
    >>> round(float(smoothed_cross_entropy(
    ...     torch.zeros(1, 4), torch.tensor([2]), smoothing=0.1, ignore=0)), 4)   # log 4
    1.3863
    """
    return cross_entropy(
        logits.flatten(0, -2),
        targets.flatten(),
        ignore_index=ignore,
        label_smoothing=smoothing,
        reduction="sum",
    )


def predictor_loss(
    model: Predictor, outputs: Tensor, targets: Tensor, *, smoothing: float
) -> Tensor:
    """The loss of a model's outputs, (rows, width): that of its last map, where it ends in one."""
    last = model.last_map
    if last is not None and is_plain(last):
        return projected_loss(outputs, last.weight, last.bias, targets, smoothing=smoothing)
    # Every row has a target.
    return smoothed_cross_entropy(model.logits(outputs), targets, smoothing=smoothing, ignore=-100)


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
