"""Setup of a run: its locked folder, its task and model; deferred signals."""

from __future__ import annotations

import signal
import threading
from collections.abc import Iterator
from contextlib import ExitStack, contextmanager
from pathlib import Path
from types import FrameType

from headloom.errors import DataError, InputError
from headloom.formats.files import JsonObject
from headloom.formats.run import RunFolder, is_run
from headloom.formats.tensors import load_tensors
from headloom.models.configuration import Architecture
from headloom.models.predictor import Predictor
from headloom.training.config import RunConfig, check_config
from headloom.training.data import DataDescription
from headloom.training.ranks import Ranks
from headloom.training.tasks import begin_model, build_model, make_task
from headloom.training.tasks.task import Task

#: Limits of a run; raising or removing one resumes the run.
_LIMITS = tuple(f"training.{end}" for end in ("max_steps", "max_epochs", "max_minutes", "patience"))
_PUT_BACK = "Put a copy back, or train again in another folder with --run."


def build_new_model(config: RunConfig, task: Task) -> Predictor:
    """Build the model of a new run, before anything is written to disk.

    Raises: InputError: the longest text exceeds the model's positions.
    """
    model = build_model(config, task.description)
    begin_model(config, task, model)
    architecture = getattr(model, "architecture", None)
    room = architecture.room if isinstance(architecture, Architecture) else None
    if room is not None and (longest := task.longest()) > room:
        raise InputError(
            f"model.max_length is {room}, the longest text has {longest} tokens. Set "
            f"model.max_length to {longest} or more, or {task.shorter}."
        )
    return model


def prepare_run(
    config: RunConfig, path: Path, ranks: Ranks, stack: ExitStack, task: Task | None
) -> tuple[RunFolder, Task]:
    """Create or open a run's folder, lock it until the stack closes, and make its task.

    Of several processes the first creates folder and vocabulary; the others read them.

    Args: task: of a new run; None: a resumed run, or another process than the first.
    Raises: HeadloomError: the data cannot be used, the folder holds another run or is damaged.
    """
    if ranks.leader:
        folder, task = _prepare_as_leader(config, path, stack, task)
        if config.task.place is not None:
            folder.keep_place(Path(getattr(config.task, config.task.place)))
        return folder, task
    if not is_run(path):
        raise InputError(
            f"{path}: process {ranks.number} of {ranks.count} does not see this folder, created "
            "by process 0. Choose one that all machines share, with --run-folder."
        )
    folder = RunFolder.open(path)
    return folder, make_task(config, DataDescription.load(folder))


def _prepare_as_leader(
    config: RunConfig, path: Path, stack: ExitStack, task: Task | None
) -> tuple[RunFolder, Task]:
    stack.enter_context(RunFolder.training_lock(path))
    if task is not None and not is_run(path):
        folder = RunFolder.create(path, config.model_dump(mode="json"))
        try:
            task.description.save(folder)
        except BaseException:
            # A run without data has not started: the lock removes its folder on release.
            (path / "run.json").unlink(missing_ok=True)
            raise
        return folder, task
    folder = RunFolder.open(path)
    _check_same(folder, config)
    if folder.state == "finished" and not folder.checkpoint.exists():
        raise DataError(
            f"{folder.path}: this run is finished, but its {folder.checkpoint.name} is missing. "
            f"{_PUT_BACK}"
        )
    # Before the first checkpoint nothing depends on the saved files, which may be incomplete.
    known = DataDescription.load(folder) if folder.checkpoint.exists() else None
    task = make_task(config, known)
    if known is None:
        task.description.save(folder)
    return folder, task


def _saved(folder: RunFolder, now: RunConfig) -> JsonObject:
    """Return a run's saved configuration, with defaults for keys added later.

    now: the configuration of the resumed run, which may give another path to the same data.
    """
    config = check_config(folder.config(), str(folder.path / "config.json"))
    content, key = config.model_dump(mode="json"), now.task.place
    if key is not None and key in content["task"]:
        data = Path(getattr(now.task, key))
        if data.resolve() == (folder.place() or Path(content["task"][key])).resolve():
            content["task"][key] = str(data)
    return content


def _check_same(folder: RunFolder, config: RunConfig) -> None:
    """Raise an InputError unless a configuration equals the run's, or only extends it."""
    if folder.monitored() is not None:
        raise InputError(
            f"{folder.path}: this folder belongs to a training watched by headloom.monitor. "
            "Choose another folder."
        )
    for place, old, new in _differences(_saved(folder, config), config.model_dump(mode="json")):
        if place not in _LIMITS:
            raise InputError(
                f"{folder.path}: this run was started with another configuration: {place} was "
                f"{old!r}, is {new!r}. Choose another folder with --run, or remove this one."
            )
        later = isinstance(old, int | float) and (
            new is None or (isinstance(new, int | float) and new > old)
        )
        if not later:
            raise InputError(
                f"{folder.path}: {place} was {old}, is {new}, and {folder.steps_done()} steps are "
                "done: a run can be extended, not shortened. Keep it, or choose another folder "
                "with --run."
            )


def extend(folder: RunFolder, config: RunConfig) -> None:
    """Raise the limits of a run to those of this configuration.

    A process killed between the two writes leaves a run in state "training" with the old limits;
    the same command then extends it.
    """
    content = config.model_dump(mode="json")
    if _saved(folder, config) != content:
        folder.set_state("training")
        folder.set_config(content)


def _differences(before: JsonObject, after: JsonObject) -> Iterator[tuple[str, object, object]]:
    """Yield each key whose value differs, with both values: "model.width", 256, 128."""
    for section in before:
        old, new = before[section], after[section]
        for key in sorted({*old, *new}):
            if old.get(key) != new.get(key):
                yield f"{section}.{key}", old.get(key), new.get(key)


def check_best(folder: RunFolder, step: int) -> None:
    """Raise a DataError where the best weights, kept at a step, are missing or damaged."""
    try:
        load_tensors(folder.best, "checkpoint")
    except DataError as error:
        raise DataError(
            f"{folder.best}: the run's best weights (step {step:,}) are missing or damaged. "
            f"{_PUT_BACK}"
        ) from error


@contextmanager
def deferred_signals(*, repeated: bool = False) -> Iterator[list[int]]:
    """Hold SIGINT and SIGTERM back until the block ends; yield a list of those received.

    The first is then raised again for the original handler. Python handles signals in the main
    thread only: other threads hold none.

    Args: repeated: whether to hold a second signal too, since launchers of several processes pass
        on signals that the terminal has already sent to all; else it acts at once.
    """
    received: list[int] = []
    main = threading.current_thread() is threading.main_thread()
    handlers = {number: signal.getsignal(number) for number in (signal.SIGINT, signal.SIGTERM)}
    # Ignored signals, such as Ctrl-C in a shell's background job, stay ignored.
    before = {n: old for n, old in handlers.items() if main and old not in (signal.SIG_IGN, None)}

    def restore() -> None:
        for number, handler in before.items():
            signal.signal(number, handler)

    def hold(number: int, frame: FrameType | None) -> None:
        received.append(number)
        if not repeated:
            restore()

    for number in before:
        signal.signal(number, hold)
    try:
        yield received
    finally:
        restore()
        if received:
            signal.raise_signal(received[0])
