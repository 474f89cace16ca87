"""Accuracy and macro-F1 of predicted labels."""

from __future__ import annotations

from collections.abc import Sequence

import numpy as np
from numpy.typing import NDArray

from headloom.errors import InputError
from headloom.training.measures.corpus import CorpusMeasure, Floats, mean_measure

__all__ = ["label_measures", "macro_f1_of"]

Labels = Sequence[int] | NDArray[np.int64]


def _checked(
    expected: Labels, predicted: Labels, classes: int
) -> tuple[NDArray[np.int64], NDArray[np.int64]]:
    right, taken = np.asarray(expected, dtype=np.int64), np.asarray(predicted, dtype=np.int64)
    if right.shape != taken.shape or right.ndim != 1 or not len(right):
        raise InputError(
            f"labels: {right.shape} expected, {taken.shape} predicted; give one of each for every "
            "example, and one example at least."
        )
    for labels in (right, taken):
        if not 0 <= int(labels.min()) <= int(labels.max()) < classes:
            raise InputError(
                f"labels: {int(labels.min())} to {int(labels.max())}; expected numbers of "
                f"{classes} classes, 0 to {classes - 1}."
            )
    return right, taken


def macro_f1_of(sums: Floats) -> Floats:
    """The mean over classes of F1, each class alike however rare it is.

        F1_c = 2 right_c / (predicted_c + expected_c)

    A class that occurs neither in the labels nor in the predictions does not count.

    Args: sums: examples of each class that were right, that were predicted, that there are:
        (..., 3 classes).
    Source: van Rijsbergen 1979; the mean of F1 over classes, Opitz and Burst 2019.
    """
    right, predicted, expected = np.split(sums, 3, axis=-1)
    both = predicted + expected
    scores = 2 * right / np.maximum(both, 1)
    mean: Floats = scores.sum(-1) / np.maximum((both > 0).sum(-1), 1)
    return mean


def label_measures(expected: Labels, predicted: Labels, classes: int) -> list[CorpusMeasure]:
    """Accuracy and macro-F1.

    Args: expected, predicted: the class of each example, 0 to classes - 1.
    Raises: InputError: no examples, not as many, or a number that is no class.

    >>> [round(m.value, 4) for m in label_measures([0, 0, 0, 1], [0, 0, 1, 1], 2)]
    [0.75, 0.7333]
    """
    right, taken = _checked(expected, predicted, classes)
    hits = (right == taken).astype(np.float64)
    one_hot = np.eye(classes)
    statistics = np.concatenate((one_hot[right] * hits[:, None], one_hot[taken], one_hot[right]), 1)
    ones = np.ones_like(hits)
    return [
        mean_measure("accuracy", "accuracy", hits, ones, higher=True),
        CorpusMeasure("macro_f1", "macro-F1", statistics, macro_f1_of, True),
    ]
