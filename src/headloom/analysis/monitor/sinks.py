"""Where a watched training also sends its numbers: TensorBoard, Weights & Biases, trackio, yours.

A sink is anything with ``log(step, values)``; one with ``close()`` is closed at the end. Names of
values are

    attention/entropy                       the mean over all heads; likewise evenness, first_token
    attention/largest_score                 the largest of all heads
    attention/LAYER/entropy, ...            likewise of a layer, and its norms and symmetry
    attention/LAYER/head_3/entropy, ...     of a head that was asked for
"""

from __future__ import annotations

import importlib
import time
from collections.abc import Callable, Iterable, Mapping, Sequence
from pathlib import Path
from typing import Any, Protocol, runtime_checkable

from headloom.analysis.monitor.measures import MATRIX_MEASURES, PROBE_MEASURES, LayerSeen
from headloom.errors import InputError

__all__ = [
    "Sink",
    "TensorBoard",
    "Trackio",
    "WeightsAndBiases",
    "as_sinks",
    "check_tensorboard",
    "values_of",
]


@runtime_checkable
class Sink(Protocol):
    """Who is told numbers of a training."""

    def log(self, step: int, values: Mapping[str, float]) -> None:
        """Take the numbers of a step."""


def _module(name: str, remedy: str) -> Any:
    try:
        return importlib.import_module(name)
    except ImportError as error:
        raise InputError(
            f"the sink needs {error.name}, which is not installed. pip install {remedy}"
        ) from None


def check_tensorboard() -> None:
    """Raise an InputError where TensorBoard is not installed."""
    _module("torch.utils.tensorboard", "tensorboard")


class TensorBoard:
    """Writes TensorBoard's event files.

    Args: folder: where. step: of the training, from which on earlier events are void.
    """

    def __init__(self, folder: Path | str, step: int = 0) -> None:
        writer = _module("torch.utils.tensorboard", "tensorboard").SummaryWriter
        _wait_for_a_new_second(Path(folder))
        self._writer: Any = writer(log_dir=str(folder), purge_step=step or None)

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


class WeightsAndBiases:
    """Logs to the run of Weights & Biases that goes on; its steps are the axis "attention/step".

    Raises: InputError: wandb is not installed, or no run goes on.
    """

    def __init__(self) -> None:
        self._run: Any = _module("wandb", "wandb").run
        if self._run is None:
            raise InputError(
                "monitor: no run of wandb goes on. Call wandb.init(...) before headloom.monitor, "
                "or "
                'with Trainer put report_to="wandb".'
            )
        # Not wandb's own steps: those that another callback has gone past it would leave out.
        self._run.define_metric("attention/step")
        self._run.define_metric("attention/*", step_metric="attention/step")

    def log(self, step: int, values: Mapping[str, float]) -> None:
        """See Sink.log."""
        self._run.log({**values, "attention/step": step})


class Trackio:
    """Logs to the run of trackio that goes on, begun by `trackio.init`."""

    def __init__(self) -> None:
        self._log: Callable[..., None] = _module("trackio", "trackio").log

    def log(self, step: int, values: Mapping[str, float]) -> None:
        """See Sink.log."""
        self._log(dict(values), step=step)


def as_sinks(sinks: object, folder: Path, step: int) -> list[Sink]:
    """The sinks that are asked for, by name or as they are.

    Args: step: steps of the training that are done; what TensorBoard has of later ones is void.
    Raises: InputError: something else, or a package that is not installed.
    """
    if isinstance(sinks, str) or not isinstance(sinks, Iterable):
        sinks = [sinks]
    made: list[Sink] = []
    for sink in sinks:
        if sink == "tensorboard":
            made.append(TensorBoard(folder / "tensorboard", step + 1))
        elif sink == "wandb":
            made.append(WeightsAndBiases())
        elif sink == "trackio":
            made.append(Trackio())
        elif isinstance(sink, Sink):
            made.append(sink)
        else:
            raise InputError(
                f'monitor: no sink {sink!r}; expected "tensorboard", "wandb", "trackio", or an '
                "object with log(step, values)."
            )
    return made


def values_of(layers: Sequence[LayerSeen], heads: Callable[[int, int], bool]) -> dict[str, float]:
    """What sinks are told of a step.

    Args:
        layers: as they were measured.
        heads: whether a head of a layer is wanted by itself.
    """
    values: dict[str, float] = {}
    for name in PROBE_MEASURES:
        everyone = [value for layer in layers for value in layer.measures[name]]
        _put(values, f"attention/{name}", name, everyone)
    for place, layer in enumerate(layers):
        for name in (*PROBE_MEASURES, *MATRIX_MEASURES):
            numbers = layer.measures[name]
            _put(values, f"attention/{layer.name}/{name}", name, numbers)
            for head, number in enumerate(numbers):
                if number is not None and heads(place, head):
                    values[f"attention/{layer.name}/head_{head}/{name}"] = number
    return values


def _put(values: dict[str, float], place: str, name: str, numbers: Sequence[float | None]) -> None:
    """The mean of some numbers, of scores the largest; nothing where there is none."""
    there = [number for number in numbers if number is not None]
    if there:
        values[place] = max(there) if name == "largest_score" else sum(there) / len(there)
