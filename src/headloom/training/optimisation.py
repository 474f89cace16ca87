"""Learning rates, the loss, and which weights are the best."""

from __future__ import annotations

import math
from typing import Literal

from torch import Tensor
from torch.nn.functional import cross_entropy

from headloom.models.dense import is_plain, projected_loss
from headloom.models.predictor import Predictor

__all__ = ["Better", "Schedule", "learning_rate", "predictor_loss", "smoothed_cross_entropy"]

#: Which weights are kept: see headloom.training.checkpoint.Position.judge.
Better = Literal["loss", "loss-and-accuracy"]
Schedule = Literal["inverse-sqrt", "cosine", "linear", "constant"]


def learning_rate(
    step: int, *, peak: float, warmup: int, last: int, schedule: Schedule, floor: float = 0.0
) -> float:
    """The learning rate of a step: linear warm-up to the peak, then the schedule.

        inverse-sqrt:  peak * sqrt(warmup / step)
        cosine:        from the peak to floor * peak at the last step, along half a cosine
        linear:        the same along a line
        constant:      the peak

    Args:
        step: from 0.
        peak: the highest rate.
        warmup: steps of the warm-up.
        last: the last step of the training.
        schedule: which.
        floor: the lowest rate of cosine and linear, as a share of the peak.

    Source: Vaswani et al. 2017, equation 3 (inverse-sqrt); Loshchilov and Hutter 2017 (cosine).

    >>> learning_rate(9, peak=1.0, warmup=10, last=100, schedule="cosine")
    1.0
    >>> learning_rate(39, peak=1.0, warmup=10, last=100, schedule="inverse-sqrt")
    0.5
    """
    if step + 1 <= warmup:
        return peak * (step + 1) / warmup
    if schedule == "constant":
        return peak
    if schedule == "inverse-sqrt":
        return peak * math.sqrt(max(warmup, 1) / (step + 1))
    progress = min(1.0, (step + 1 - warmup) / max(1, last - warmup))
    remaining = 1 - progress if schedule == "linear" else (1 + math.cos(math.pi * progress)) / 2
    return peak * (floor + (1 - floor) * remaining)


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
    # (Every row has a target.)
    return smoothed_cross_entropy(model.logits(outputs), targets, smoothing=smoothing, ignore=-100)
