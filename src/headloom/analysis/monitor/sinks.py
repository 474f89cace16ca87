"""Where a watched training also sends its numbers: TensorBoard, or yours.

A sink is anything with ``log(step, values)``; one with ``close()`` is closed at the end. Names of
values are

    attention/entropy                       the mean over all heads; likewise evenness, first_token
    attention/largest_score                 the largest of all heads
    attention/LAYER/entropy, ...            likewise of a layer, and its norms and symmetry
"""

from __future__ import annotations

import time
from collections.abc import Iterable, Mapping, Sequence
from pathlib import Path
from typing import Protocol, runtime_checkable

from headloom.analysis.monitor.measures import MATRIX_MEASURES, PROBE_MEASURES, LayerSeen
from headloom.errors import InputError, optional_package

__all__ = [
    "Sink",
    "TensorBoard",
    "as_sinks",
    "check_tensorboard",
    "values_of",
]


@runtime_checkable
class Sink(Protocol):
    """Who is told numbers of a training."""

    def log(self, step: int, values: Mapping[str, float]) -> None:
        """Take the numbers of a step."""


def check_tensorboard() -> None:
    """Raise an InputError where TensorBoard is not installed."""
    with optional_package("tensorboard", "pip install tensorboard"):
        import torch.utils.tensorboard  # noqa: F401


class TensorBoard:
    """Writes TensorBoard's event files.

    Args: folder: where. step: of the training, from which on earlier events are void.
    """

    def __init__(self, folder: Path | str, step: int = 0) -> None:
        check_tensorboard()
        from torch.utils.tensorboard import SummaryWriter

        _wait_for_a_new_second(Path(folder))
        self._writer = SummaryWriter(log_dir=str(folder), purge_step=step or None)

    def log(self, step: int, values: Mapping[str, float]) -> None:
        """See Sink.log."""
        for name, value in values.items():
            self._writer.add_scalar(name, value, step)
        self._writer.flush()

    def close(self) -> None:
        """End the files."""
        self._writer.close()


def _wait_for_a_new_second(folder: Path) -> None:
    """Let a file of events that is begun now be the last by its name, as TensorBoard reads them.

    The name says the second, then host, process and a count, of which 10 comes before 9.
    """
    now = time.time()
    if any(folder.glob(f"events.out.tfevents.{int(now):010d}.*")):
        time.sleep(int(now) + 1 - now)


def as_sinks(sinks: Sink | str | Iterable[Sink | str], folder: Path, step: int) -> list[Sink]:
    """The sinks that are asked for.

    Args: step: steps of the training that are done; what TensorBoard has of later ones is void.
    Raises: InputError: something else, or TensorBoard is not installed.
    """
    if isinstance(sinks, str) or not isinstance(sinks, Iterable):
        sinks = [sinks]
    made: list[Sink] = []
    for sink in sinks:
        if sink == "tensorboard":
            made.append(TensorBoard(folder / "tensorboard", step + 1))
        elif isinstance(sink, Sink):
            made.append(sink)
        else:
            raise InputError(
                f'monitor: no sink {sink!r}; expected "tensorboard", or an object with '
                "log(step, values)."
            )
    return made


def values_of(layers: Sequence[LayerSeen]) -> dict[str, float]:
    """What sinks are told of a step."""
    values: dict[str, float] = {}
    for name in PROBE_MEASURES:
        _put(values, f"attention/{name}", name, [n for seen in layers for n in seen.measures[name]])
        for seen in layers:
            _put(values, f"attention/{seen.name}/{name}", name, seen.measures[name])
    for name in MATRIX_MEASURES:
        for seen in layers:
            _put(values, f"attention/{seen.name}/{name}", name, seen.measures[name])
    return values


def _put(values: dict[str, float], place: str, name: str, numbers: Sequence[float | None]) -> None:
    """The mean of some numbers, of scores the largest; nothing where there is none."""
    there = [number for number in numbers if number is not None]
    if there:
        values[place] = max(there) if name == "largest_score" else sum(there) / len(there)
