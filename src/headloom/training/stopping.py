"""Which weights of a training are kept, when its patience begins anew, and signals that end it."""

from __future__ import annotations

import math
import signal
import threading
from collections.abc import Iterator
from contextlib import contextmanager
from types import FrameType
from typing import Literal

from headloom.training.checkpoint import Position

__all__ = ["Better", "held_signals", "judged"]

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


@contextmanager
def held_signals(*, repeated: bool = False) -> Iterator[list[int]]:
    """Hold SIGINT and SIGTERM back until the block ends; the list fills with those that came.

    The first is then raised anew, for who answered to it before. Python handles signals in the main
    thread: in others nothing is held.

    Args: repeated: whether a second one is held too, as launchers of several processes pass on
        what a terminal has sent to all; else it acts at once.
    """
    came: list[int] = []
    main = threading.current_thread() is threading.main_thread()
    handlers = {number: signal.getsignal(number) for number in (signal.SIGINT, signal.SIGTERM)}
    # What is ignored, as Ctrl-C by a shell's job in the background, stays so.
    before = {n: old for n, old in handlers.items() if main and old not in (signal.SIG_IGN, None)}

    def put_back() -> None:
        for number, handler in before.items():
            signal.signal(number, handler)

    def hold(number: int, frame: FrameType | None) -> None:
        came.append(number)
        if not repeated:
            put_back()

    for number in before:
        signal.signal(number, hold)
    try:
        yield came
    finally:
        put_back()
        if came:
            signal.raise_signal(came[0])
