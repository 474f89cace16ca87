"""Which weights of a training are kept, and when its patience begins anew."""

from __future__ import annotations

import math
from typing import Literal

from weft.training.checkpoint import Position

__all__ = ["Better", "judged"]

Better = Literal["loss", "loss-and-accuracy"]


def judged(position: Position, loss: float, accuracy: float, rule: Better) -> tuple[bool, bool]:
    """Whether the weights are the best so far, and whether patience begins anew.

        loss                the weights of the lowest loss are kept; only they renew patience
        loss-and-accuracy   the weights are kept where loss and accuracy are both as good as the
                            best of either before; one of the two renews patience

    The position's best loss and best accuracy move along.

    Source: "loss-and-accuracy", the program of Velickovic et al. 2018,
    https://github.com/PetarV-/GAT.

    >>> position = Position()
    >>> judged(position, 2.0, 0.5, "loss-and-accuracy")
    (True, True)
    >>> judged(position, 1.0, 0.4, "loss-and-accuracy")          # a lower loss alone
    (False, True)
    >>> judged(position, 1.5, 0.5, "loss-and-accuracy")          # as right as the best, no more
    (False, True)
    >>> judged(position, 1.5, 0.4, "loss-and-accuracy")
    (False, False)
    >>> judged(position, 1.0, 0.5, "loss-and-accuracy")
    (True, True)
    """
    lowest = math.inf if position.best_loss is None else position.best_loss
    lower, as_low = loss < lowest, loss <= lowest
    as_right = accuracy >= position.best_accuracy
    position.best_loss = min(loss, lowest)
    position.best_accuracy = max(accuracy, position.best_accuracy)
    if rule == "loss":
        return lower, lower
    return as_low and as_right, as_low or as_right
